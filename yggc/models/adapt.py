"""A Hugging Face model becomes a static, exportable module without any code per architecture.

transformers' modelling code stays the definition of the verifier. Three things are substituted:
the attention function, the cache layer, and the modules that hold matrices. What cannot be exact
is refused by name.

What is covered: decoder-only models whose layers call transformers' attention interface. What is
not: encoder-decoder models, recurrent layers, rope types that depend on the length of the call,
attention with terms the operator lacks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.initialization import no_init_weights
from transformers.masking_utils import AttentionMaskInterface
from ygg_kernels.ops import Operators

# Makes its configuration known to transformers.
import yggc.models.eagle3  # noqa: F401
from yggc.errors import SourceError
from yggc.heads import Medusa, Taps
from yggc.models.eagle import HeadConfig, cache_argument
from yggc.models.matrices import Matrix, find_matrices, tied_names
from yggc.models.medusa import MedusaForCausalLM
from yggc.models.packing import packed_dtype, packed_shape
from yggc.models.taps import watch_layers
from yggrt.core.formats import FORMATS
from yggrt.core.schema import PREFILL_KINDS, GraphKind, KvLayer

ATTENTION = "ygg_tree"
PREDICTOR_HIDDEN = 64

# Arguments of the attention interface that change nothing for a decoder at inference, or that
# arrive by another way.
_IGNORED_ATTENTION_ARGUMENTS = frozenset(
    {"dropout", "position_ids", "cache_position", "use_cache", "is_causal", "output_attentions"}
)


@dataclass
class Step:
    """The inputs of one pass, and what the pass found, shared by all attention modules of one
    model.
    """

    operators: Operators
    length: torch.Tensor | None = None  # [1] int64
    positions: torch.Tensor | None = None  # [V] int64
    slots: torch.Tensor | None = None  # [V] int64
    mask: torch.Tensor | None = None  # [V, M] bool, M >= V
    last_hidden_state: torch.Tensor | None = None  # [1, V, hidden_size]
    taps: dict[int, torch.Tensor] = field(default_factory=dict)  # [1, V, hidden_size] each
    num_attended: int = 0


def _attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface on top of the tree-attention operator.

    query [1, heads, V, key_dim]; key and value are the whole cache of the layer. Returns [1, V,
    heads, value_dim].

    The operator takes square masks. Rows that may see more tree rows than the call has are given
    company: copies of the first row's mask and queries of zero, whose results are dropped.
    """
    unknown = {
        name
        for name, given in arguments.items()
        if given is not None and name not in _IGNORED_ATTENTION_ARGUMENTS
    }
    if unknown:
        raise SourceError(
            f"{type(module).__name__} passes {sorted(unknown)} to its attention, which the "
            "operator does not have",
            "it cannot be decoded exactly; docs/architecture.md lists the covered families",
        )
    step: Step = module.ygg_step  # type: ignore[assignment]
    window = int(sliding_window) if sliding_window else 0
    step.num_attended += 1
    scale = scaling if scaling is not None else 1.0 / math.sqrt(query.shape[-1])
    out = step.operators.tree_attention(
        query,
        key,
        value,
        step.length,
        step.positions,
        step.mask,
        float(scale),
        window,
        float(softcap) if softcap else 0.0,
    )
    return out, None


def _no_mask(*_args: Any, **_arguments: Any) -> None:
    """The tree mask travels on the step object, so transformers builds none."""
    return


class TreeCacheLayer(CacheLayerMixin):
    """One layer's preallocated cache: new rows go to the step's slots, the whole tensor comes
    back.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, step: Step) -> None:
        super().__init__()
        self.keys = keys
        self.values = values
        self.step = step
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        raise AssertionError("the cache is allocated by its owner")

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_arguments: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.keys is not None
        assert self.values is not None
        assert self.step.slots is not None
        for cache, rows in ((self.keys, key_states), (self.values, value_states)):
            if cache.dtype is torch.uint8:
                self.step.operators.kv_write(cache, rows, self.step.slots)
            else:
                cache.index_copy_(2, self.step.slots, rows.to(cache.dtype))
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        assert self.keys is not None
        return self.keys.shape[2]

    get_max_cache_shape = get_max_length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_max_length(), 0


def _empty_packed(num_outputs: int, num_inputs: int, form: str) -> nn.Parameter:
    shape = packed_shape(num_outputs, num_inputs, form)
    empty = torch.empty(shape, dtype=packed_dtype(form), device="meta")
    return nn.Parameter(empty, requires_grad=False)


class PackedLinear(nn.Module):
    """A product with packed weights of one format; float32 in and out, one accumulation order.

    `integer`: a quantised weight multiplies activations rounded to int8, which is another result.
    """

    def __init__(
        self,
        operators: Operators,
        num_inputs: int,
        num_outputs: int,
        bias: bool,
        form: str = "float32",
        integer: bool = False,
    ) -> None:
        super().__init__()
        self.operators = operators
        self.in_features, self.out_features = num_inputs, num_outputs
        self.format, self.integer = FORMATS[form].code, integer
        self.weight = _empty_packed(num_outputs, num_inputs, form)
        self.bias = (
            nn.Parameter(torch.empty(num_outputs, device="meta"), requires_grad=False)
            if bias
            else None
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        how = ([self.out_features], [self.format], self.integer)
        if self.bias is None:
            return self.operators.linear_unbiased(x, [self.weight], *how)[0]
        return self.operators.linear(x, [self.weight], [self.bias], *how)[0]


class _PackedLookup(nn.Embedding):
    """Rows of a packed matrix [vocab, hidden]: a tied matrix is stored once."""

    operators: Operators
    format: int

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.operators.embedding(ids, self.weight, self.num_embeddings, self.format)


class RowLayerNorm(nn.Module):
    """LayerNorm as mean, squared difference, mean: TorchInductor treats `native_layer_norm` of one
    row differently.
    """

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        out = centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + self.eps)
        if self.weight is not None:
            out = out * self.weight
        return out if self.bias is None else out + self.bias


class DepthPredictor(nn.Module):
    """Hazards [V, max_depth] in (0, 1) from hidden rows [V, hidden_size]; its weights are
    placeholders until trained.
    """

    def __init__(self, operators: Operators, hidden_size: int, max_depth: int) -> None:
        super().__init__()
        self.encode = PackedLinear(operators, hidden_size, PREDICTOR_HIDDEN, bias=True)
        self.decode = PackedLinear(operators, PREDICTOR_HIDDEN, max_depth, bias=True)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.decode(nn.functional.silu(self.encode(hidden))))


class StaticForward(nn.Module):
    """The one graph kind: V rows of a tree at given slots over a visible prefix.

    Inputs: tokens, positions, slots [V] int64, length [1] int64, mask [V, M] bool, for the prefill
    kinds row [1] int64, for a head features [V, hidden_size], then keys and values of every layer,
    which are written in place. Returns
    ids [V] int64, logits [V, vocab], hidden [V, hidden_size], hazards [V, max_depth]; the prefill
    kinds give hidden of all rows and the others of row `row`. hidden is the last hidden state, or
    what `fuse` makes of the step's taps, or the logits of `medusa` [V, heads * ids], and then of
    row `row` too.
    """

    def __init__(
        self,
        model: nn.Module,
        step: Step,
        predictor: nn.Module,
        kind: GraphKind,
        fuse: PackedLinear | None = None,
        medusa: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.verifier, self.predictor, self.fuse, self.medusa = model, predictor, fuse, medusa
        self.step, self.kind = step, kind
        self.cache_argument = cache_argument(model)

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        length: torch.Tensor,
        mask: torch.Tensor,
        *rest: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        step = self.step
        step.length, step.positions, step.slots, step.mask = length, positions, slots, mask
        more = list(rest)
        row = more.pop(0) if self.kind in PREFILL_KINDS else None
        given = {"features": more.pop(0)[None]} if reads_features(self.verifier.config) else {}
        layers = [
            TreeCacheLayer(keys, values, step)
            for keys, values in zip(more[::2], more[1::2], strict=True)
        ]
        out = self.verifier(
            input_ids=tokens[None],
            position_ids=positions[None],
            use_cache=True,
            logits_to_keep=0 if row is None else row,
            **{self.cache_argument: Cache(layers=layers)},
            **given,
        )
        assert step.last_hidden_state is not None
        hidden = step.last_hidden_state[0]
        logits = out.logits[0].float()
        chosen = hidden if row is None else hidden[row]
        hazards = self.predictor(chosen)
        if self.medusa is not None:
            hidden = self.medusa(chosen)
        if self.fuse is not None:
            hidden = self.fuse(torch.cat([step.taps[i] for i in sorted(step.taps)], dim=-1))[0]
        return step.operators.argmax(logits), logits, hidden, hazards


def reads_features(config: Any) -> bool:
    """Whether a model of this configuration reads the verifier's features beside tokens."""
    return isinstance(config, HeadConfig)


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Parameters made inside hold no memory; buffers (rope frequencies) keep their values."""
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and parameter.device.type != "meta":
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=False)
        register(module, name, parameter)

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def refuse_inexact(config: Any) -> None:
    """Raises SourceError for what the static form could only approximate."""
    kind = config.model_type
    tip = "see the list of covered families in docs/architecture.md"
    if getattr(config, "is_encoder_decoder", False):
        raise SourceError(
            f"'{kind}' is an encoder-decoder model; a verifier must be decoder-only", tip
        )
    layer_types = set(getattr(config, "layer_types", None) or ())
    foreign = layer_types - {"full_attention", "sliding_attention"}
    if foreign:
        raise SourceError(
            f"'{kind}' has layers of type {sorted(foreign)}, wanted full_attention or "
            "sliding_attention",
            tip,
        )
    rope = getattr(config, "rope_parameters", None) or {}
    for part in [rope, *(value for value in rope.values() if isinstance(value, dict))]:
        rope_type = part.get("rope_type", part.get("type"))
        if rope_type in ("dynamic", "longrope"):
            raise SourceError(
                f"'{kind}' uses rope type '{rope_type}', whose frequencies depend on the longest "
                "position of a call",
                "its rows would not keep their bits; choose a checkpoint with a static rope",
            )
    if getattr(config, "use_bidirectional_attention", False) is True:
        raise SourceError(f"'{kind}' attends in both directions; a verifier must be causal", tip)


def _swap(
    model: Any,
    matrices: Mapping[str, Matrix],
    forms: Mapping[str, str],
    operators: Operators,
    integer: bool,
) -> None:
    """Replaces, in place, every module that holds a matrix by its packed form, and every
    LayerNorm. `forms` has the format of each matrix.
    """
    lookup = model.get_input_embeddings()
    for name, module in list(model.named_modules()):
        weight = f"{name}.weight"
        if weight in matrices:
            matrix, form = matrices[weight], forms[weight]
            if module is lookup:
                _swap_lookup(lookup, operators, form)
                continue
            packed: nn.Module = PackedLinear(
                operators,
                matrix.num_inputs,
                matrix.num_outputs,
                module.bias is not None,
                form,
                integer,
            )
        elif isinstance(module, nn.LayerNorm):
            packed = RowLayerNorm(module)
        else:
            continue
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, packed)


def _swap_lookup(lookup: Any, operators: Operators, form: str) -> None:
    # A subclass may scale what it looks up, so the class is extended in front of nn.Embedding
    # rather than replaced.
    kind = type(lookup)
    bases = (_PackedLookup,) if kind is nn.Embedding else (kind, _PackedLookup)
    num_rows, num_columns = lookup.weight.shape
    lookup.__class__ = type(f"Packed{kind.__name__}", bases, {})
    lookup.operators, lookup.format = operators, FORMATS[form].code
    lookup.weight = _empty_packed(num_rows, num_columns, form)


@dataclass(frozen=True)
class Adapted:
    """A skeleton whose parameters hold no values, and what the weights and the runtime must know
    of it.

    `matrices` has the packed parameters, `formats` the format of each, `tied` maps an alias to the
    parameter it shares. All names are those of the transformers model. `fuse` makes a head's
    features of layers' inputs, where a head reads those, `medusa` logits of the last hidden state;
    their weights are the head's.
    """

    model: nn.Module
    step: Step
    predictor: nn.Module
    config: Any
    matrices: dict[str, Matrix]
    formats: dict[str, str]
    tied: dict[str, str]
    kv_layers: tuple[KvLayer, ...]
    fuse: PackedLinear | None = None
    medusa: nn.Module | None = None

    @property
    def feature_size(self) -> int:
        """Values of a feature that the model reads beside each token, 0 if it reads none."""
        return int(self.config.hidden_size) if reads_features(self.config) else 0

    def static_forward(self, kind: GraphKind) -> StaticForward:
        """The module that is exported for `kind`."""
        parts = (self.model, self.step, self.predictor)
        return StaticForward(*parts, kind, self.fuse, self.medusa).eval()


def load_config(config_json: dict[str, Any]) -> Any:
    """A transformers configuration from its JSON form, sharing no state with another."""
    fields = {
        k: v for k, v in config_json.items() if k not in ("transformers_version", "model_type")
    }
    return AutoConfig.for_model(config_json["model_type"], **fields)


def _observe_cache(
    model: nn.Module, step: Step, num_layers: int, argument: str
) -> tuple[KvLayer, ...]:
    """Cache shapes of every layer, seen in a one-row call; raises SourceError if a layer attends
    some other way.
    """
    seen: list[KvLayer] = []

    class Observer(TreeCacheLayer):
        def update(
            self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_more: Any
        ) -> tuple[torch.Tensor, torch.Tensor]:
            heads, key_dim, value_dim = (
                key_states.shape[1],
                key_states.shape[3],
                value_states.shape[3],
            )
            seen.append(KvLayer(num_heads=heads, key_dim=key_dim, value_dim=value_dim))
            return key_states, value_states

    empty = torch.empty(1, 1, 1, 1)
    ones = torch.zeros(1, dtype=torch.int64)
    step.length, step.positions, step.slots = ones, ones, ones
    step.mask = torch.ones(1, 1, dtype=torch.bool)
    step.num_attended = 0
    layers = [Observer(empty, empty, step) for _ in range(num_layers)]
    given: dict[str, Any] = {argument: Cache(layers=layers)}
    config: Any = model.config
    if reads_features(config):
        given["features"] = torch.zeros(1, 1, config.hidden_size)
    model(ones[None], position_ids=ones[None], use_cache=True, **given)
    if not len(seen) == step.num_attended == num_layers:
        raise SourceError(
            f"{step.num_attended} of {num_layers} layers use the attention interface and "
            f"{len(seen)} its cache",
            "this architecture has layers of another kind and cannot be decoded exactly",
        )
    return tuple(seen)


def _build(config: Any) -> Any:
    with no_init_weights(), _parameters_on_meta():
        return AutoModelForCausalLM.from_config(
            config, attn_implementation=ATTENTION, dtype=torch.float32
        ).eval()


def _give_addresses(module: nn.Module) -> None:
    """Gives meta parameters memory that is reserved and never touched, keeping shared ones shared.

    Fake tensors would do for export, but Inductor takes two constants of one shape for the same if
    their addresses are equal, and fake tensors all lie at 0.
    """
    made: dict[int, nn.Parameter] = {}
    for owner in module.modules():
        for name, parameter in owner.named_parameters(recurse=False):
            if id(parameter) not in made:
                data = torch.empty(parameter.shape, dtype=parameter.dtype)
                made[id(parameter)] = nn.Parameter(data, requires_grad=False)
            owner._parameters[name] = made[id(parameter)]


def adapt(
    config_json: dict[str, Any],
    operators: Operators,
    max_depth: int,
    weight_dtype: str,
    formats: Mapping[str, str] | None = None,
    activations: str = "float32",
    taps: Taps | None = None,
    medusa: Medusa | None = None,
) -> Adapted:
    """The adapted skeleton of a model; raises SourceError for an architecture that cannot be
    exact.

    `formats` names the matrices that are not in `weight_dtype`, tied ones by their first name.
    `taps`: what a head reads inside the model, where that is not the last hidden state. `medusa`:
    heads that are computed with it.
    """
    config = load_config(config_json)
    refuse_inexact(config)
    AttentionInterface.register(ATTENTION, _attend)
    AttentionMaskInterface.register(ATTENTION, _no_mask)
    model = _build(config)
    model.tie_weights()
    tied = tied_names(model)
    matrices = find_matrices(model)
    given = formats or {}
    forms = {name: given.get(tied.get(name, name), weight_dtype) for name in matrices}
    _swap(model, matrices, forms, operators, activations == "int8")
    for alias, owner in tied.items():
        parent, _, child = alias.rpartition(".")
        setattr(model.get_submodule(parent), child, model.get_parameter(owner))
    step = Step(operators)
    for module in model.modules():
        module.ygg_step = step
    model.get_decoder().register_forward_hook(
        lambda _module, _inputs, out: setattr(step, "last_hidden_state", out.last_hidden_state)
    )
    with torch.device("meta"):
        predictor = DepthPredictor(operators, config.hidden_size, max_depth)
    fuse = None if taps is None else _fuse(model, step, taps)
    for module in (model, predictor, fuse):
        if module is not None:
            _give_addresses(module)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        kv_layers = _observe_cache(model, step, config.num_hidden_layers, cache_argument(model))
    heads = None if medusa is None else adapt_medusa(medusa, operators).model
    return Adapted(model, step, predictor, config, matrices, forms, tied, kv_layers, fuse, heads)


def adapt_medusa(medusa: Medusa, operators: Operators) -> Adapted:
    """The adapted skeleton of Medusa heads, which have neither caches nor graphs of their own."""
    config = load_config(medusa.config)
    with no_init_weights(), _parameters_on_meta():
        model = MedusaForCausalLM(config).eval()
    matrices = find_matrices(model)
    forms = {name: medusa.formats.get(name, medusa.dtype) for name in matrices}
    _swap(model, matrices, forms, operators, medusa.integer)
    _give_addresses(model)
    return Adapted(model, Step(operators), nn.Module(), config, matrices, forms, {}, ())


def _fuse(model: Any, step: Step, taps: Taps) -> PackedLinear:
    """The product that makes features of what `step` is told of the layers from now on."""
    config = model.config
    watch_layers(model.get_decoder(), config.num_hidden_layers, taps.layers, step.taps.__setitem__)
    size = config.hidden_size
    return PackedLinear(
        step.operators, len(taps.layers) * size, size, False, taps.form, taps.integer
    )
