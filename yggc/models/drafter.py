"""Which model drafts: another one with the verifier's tokens, the verifier's first layers, or a
head over it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from yggc.errors import SourceError
from yggc.models.checkpoint import Checkpoint, empty_model
from yggc.models.eagle import HeadConfig
from yggc.models.formats import choose_formats, model_footprint
from yggc.models.head import EMBEDDING, weight_name
from yggc.models.medusa import MedusaConfig
from yggrt.core.footprint import Footprint, beside
from yggrt.core.formats import FORMATS

if TYPE_CHECKING:
    from yggc.config import BuildConfig

# What a configuration states layer by layer.
_BY_LAYER = ("layer_types", "no_rope_layers")
# Logits of Medusa heads that a pass gives besides the verifier's are worth a word from here on.
MANY_LOGIT_BYTES = 32 << 20


def first_layers(config: PreTrainedConfig, num_layers: int) -> PreTrainedConfig:
    """The configuration of a model's first layers under its final norm and head; 0 for all of it.

    Raises SourceError for more layers than it has.
    """
    if num_layers == 0:
        return config
    found = config.num_hidden_layers
    if num_layers > found:
        raise SourceError(
            f"drafter is self:{num_layers}, the verifier has {found} layers",
            f"take self:{max(1, found // 5)} or another number below {found}",
        )
    return chosen_layers(config, range(num_layers))


def chosen_layers(config: PreTrainedConfig, layers: Sequence[int]) -> PreTrainedConfig:
    """The configuration of these layers, in this order, under a model's final norm and head."""
    chosen = copy.deepcopy(config)
    chosen.num_hidden_layers = len(layers)
    for name in _BY_LAYER:
        stated = getattr(config, name, None)
        if stated:
            setattr(chosen, name, [stated[layer] for layer in layers])
    return chosen


def drafter_options(
    config: BuildConfig, drafter: PreTrainedConfig, model_limit: int
) -> tuple[BuildConfig, list[str]]:
    """The configuration with the drafter's options in place of the verifier's, and what a user
    should be told; `config` is resolved for the verifier, `drafter` is the drafter's own,
    `model_limit` its longest context.

    A drafter that is the verifier's own layers computes with the same formats unless told
    otherwise, since only then its weights are the verifier's. A head is rounded to int8 unless
    told otherwise: what it says is checked, and it is read at every step of a tree.
    """
    notes = []
    length = min(config.max_model_len, model_limit)
    if length < config.max_model_len:
        notes.append(
            f"its context of {length} tokens is shorter than the verifier's "
            f"{config.max_model_len}: beyond it decoding is plain"
        )
    quant, dtype, activations = config.drafter_quant, config.drafter_dtype, "auto"
    if config.self_layers is not None:
        dtype = config.dtype if dtype == "auto" else dtype
        if quant == "auto":
            quant, activations = config.quant, config.activations
    if isinstance(drafter, HeadConfig | MedusaConfig) and quant == "auto":
        sizes = [drafter.hidden_size]
        if isinstance(drafter, HeadConfig):
            sizes.append(drafter.intermediate_size)
        quant = "int8" if all(size % 32 == 0 for size in sizes) else "none"
        notes.append(f"quant: auto is {quant}, for a head")
    options = msgspec.structs.replace(
        config, dtype=dtype, quant=quant, activations=activations, max_model_len=length
    )
    return options, notes


class DrafterPlan(NamedTuple):
    """A drafter's configuration, the formats of its matrices, what it and the verifier take
    together, and what a user should be told.
    """

    shape: PreTrainedConfig
    formats: dict[str, str]
    total: Footprint
    notes: list[str]


def plan_drafter(
    config: BuildConfig,
    options: BuildConfig,
    found: PreTrainedConfig,
    checkpoint: Checkpoint | None,
    verifier: tuple[PreTrainedConfig, Mapping[str, str], Footprint],
) -> DrafterPlan:
    """What is drafted with, how it is stored and what that takes. `config` is resolved for the
    verifier and `options` for the drafter, `found` is its configuration and `checkpoint` None
    where that is all that is here; `verifier`: its configuration, formats and footprint.
    """
    theirs, their_formats, taken = verifier
    shape = first_layers(found, config.self_layers or 0)
    model = empty_model(shape)
    formats, notes = choose_formats(model, options, checkpoint)
    if isinstance(found, HeadConfig):
        # The embedding is the verifier's own tensor.
        name = weight_name(theirs, "get_input_embeddings")
        formats[EMBEDDING] = their_formats.get(name, config.dtype)
    names = dict(model.named_parameters(remove_duplicate=False))
    formats = {name: form for name, form in formats.items() if name in names}
    footprint = model_footprint(model, options, formats, drafts=True)
    shared = 0
    if isinstance(found, HeadConfig):
        form = FORMATS[formats[EMBEDDING]]
        shared = form.num_bytes(found.vocab_size, found.hidden_size)
    elif isinstance(found, MedusaConfig):
        total, more = _inside(taken, footprint, found.num_logits, config.buckets[-1])
        return DrafterPlan(shape, formats, total, [*notes, *more])
    elif config.self_layers is not None:
        same = (options.quant, options.dtype) == (config.quant, config.dtype)
        shared = footprint.weights_bytes if same else 0
    return DrafterPlan(shape, formats, beside(taken, footprint, shared), notes)


def _inside(
    verifier: Footprint, heads: Footprint, num_logits: int, num_rows: int
) -> tuple[Footprint, list[str]]:
    """What a verifier takes with heads in its graphs, which give `num_logits` logits of each of
    `num_rows` rows; and a note if those are many.
    """
    num_bytes = 4 * num_logits * num_rows
    notes = []
    if num_bytes >= MANY_LOGIT_BYTES:
        notes.append(
            f"its heads' logits take {num_bytes / 1e6:.0f} MB in every pass of {num_rows} rows; "
            "heads over fewer ids (`yggc train medusa --draft-vocab`) or smaller --buckets take "
            "less"
        )
    total = Footprint(
        verifier.weights_bytes + heads.weights_bytes,
        verifier.kv_bytes,
        verifier.workspace_bytes + num_bytes,
    )
    return total, notes


def check_same_tokens(
    verifier: PreTrainedTokenizerBase | None, drafter: PreTrainedTokenizerBase | None
) -> None:
    """Raises SourceError unless an id means the same token to both models.

    Added tokens that one of them lacks are no difference, and neither is the padding of its
    vocabulary: what the drafter does not know is never drafted.
    """
    if verifier is None or drafter is None:
        if (verifier is None) != (drafter is None):
            has, lacks = ("drafter", "verifier") if verifier is None else ("verifier", "drafter")
            raise SourceError(
                f"the {has} has a tokenizer, the {lacks} has none, wanted the same one",
                "take a drafter with the verifier's tokenizer; one without its files can be given "
                "them",
            )
        return
    tokens = [
        {token_id: token for token, token_id in tokenizer.get_vocab().items()}
        for tokenizer in (verifier, drafter)
    ]
    added = [set(tokenizer.added_tokens_decoder) for tokenizer in (verifier, drafter)]
    for token_id in sorted(tokens[0].keys() | tokens[1].keys()):
        ours, theirs = (one.get(token_id) for one in tokens)
        is_extra = (theirs is None and token_id in added[0]) or (
            ours is None and token_id in added[1]
        )
        if ours != theirs and not is_extra:
            raise SourceError(
                f"drafter has another tokenizer: id {token_id} is {theirs!r} to it and {ours!r} "
                "to the verifier",
                "take a drafter of the verifier's family, or ngram, which fits any",
            )
