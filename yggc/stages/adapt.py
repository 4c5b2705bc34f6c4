"""adapt: the model's static form, the operators it calls, and its weights packed for them."""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ygg_kernels.ops import Operators, load_library

from yggc.aot import compiler_digest, packing_digest
from yggc.context import Context
from yggc.errors import SourceError
from yggc.models.adapt import Adapted, adapt, adapt_medusa
from yggc.models.checkpoint import Checkpoint
from yggc.models.head import EMBEDDING, FUSE, weight_name
from yggc.models.weights import packed_tensors, write_weight_file
from yggc.stages.load import Loaded
from yggrt.core.schema import DRAFTER_PREFIX, KvLayer, ModelInfo, Record, WeightSpec

if TYPE_CHECKING:
    import torch

WEIGHTS_FILE = "weights.bin"


class AdaptedModel(Record, frozen=True):
    """`weights` says where each tensor lies in `weights.bin`; `tied` maps a parameter to the
    tensor that holds it where that has another name: that of the parameter it shares, of the
    drafter's own copy, or of the drafter's tensor that the verifier's graphs compute with.
    """

    model: ModelInfo
    weights: dict[str, WeightSpec]
    tied: dict[str, str]
    drafter: AdaptedModel | None = None

    @property
    def all_weights(self) -> dict[str, WeightSpec]:
        """Every tensor of `weights.bin`."""
        return self.weights | (self.drafter.weights if self.drafter else {})


def key(context: Context, loaded: Loaded) -> Any:
    config = context.config
    rows = [config.most_rows, config.max_depth]
    if loaded.drafter is not None:
        rows.append(config.most_draft_rows)
    return [loaded, rows, context.library.namespace, compiler_digest(), packing_digest()]


def adapt_loaded(loaded: Loaded, operators: Operators, max_depth: int) -> Adapted:
    """The adapted skeleton of what `load` found."""
    return adapt(
        loaded.config,
        operators,
        max_depth,
        loaded.dtype,
        loaded.formats,
        loaded.activations,
        loaded.taps,
        loaded.medusa,
    )


def check_caches(kv_dtype: str, layers: tuple[KvLayer, ...]) -> None:
    """Raises SourceError for heads that the operators cannot cache in `kv_dtype`."""
    odd = [one for layer in layers for one in (layer.key_dim, layer.value_dim) if one % 4]
    if kv_dtype == "int8" and odd:
        raise SourceError(
            f"kv_dtype is int8, the model's heads have {odd[0]} values, wanted a multiple of 4",
            "take --kv-dtype bfloat16",
        )


def run(context: Context, out: Path, loaded: Loaded) -> AdaptedModel:
    """Writes the packed weights into `out`, one tensor in memory at a time."""
    config = context.config
    library = context.library
    operators = load_library(library.path, library.namespace)
    adapted = adapt_loaded(loaded, operators, config.max_depth)
    check_caches(loaded.kv_dtype, adapted.kv_layers)
    tensors = _tensors(adapted, loaded, context.checkpoint, ())
    num_tensors = _num_parameters(adapted)
    if loaded.drafter is not None:
        if loaded.medusa is not None:
            small = adapt_medusa(loaded.medusa, operators)
        else:
            small = adapt_loaded(loaded.drafter, operators, config.max_depth)
        check_caches(loaded.drafter.kv_dtype, small.kv_layers)
        if config.self_layers is not None:
            tied = drafter_names(small, loaded.drafter, adapted, loaded)
        else:
            tied = own_names(small)
        if small.feature_size:
            theirs = weight_name(adapted.config, "get_input_embeddings")
            tied[EMBEDDING] = adapted.tied.get(theirs, theirs)
        shared = [name for name in _parameters(small) if not tied[name].startswith(DRAFTER_PREFIX)]
        own = _tensors(small, loaded.drafter, context.drafter_checkpoint, shared)
        tensors = chain(tensors, ((f"{DRAFTER_PREFIX}{name}", tensor) for name, tensor in own))
        num_tensors += _num_parameters(small) - len(shared)
    with context.reporter.stage("pack weights", total=num_tensors) as progress:
        weights = write_weight_file(
            out / WEIGHTS_FILE, tensors, lambda num_bytes: progress.advance(1)
        )
    context.checkpoint.release()
    drafter = None
    verifier_tied = adapted.tied
    if adapted.fuse is not None:
        verifier_tied = verifier_tied | {"fuse.weight": f"{DRAFTER_PREFIX}{FUSE}"}
    if adapted.medusa is not None:
        names = [name for name, _ in adapted.medusa.named_parameters()]
        verifier_tied = verifier_tied | {f"medusa.{n}": f"{DRAFTER_PREFIX}{n}" for n in names}
    if loaded.drafter is not None:
        context.drafter_checkpoint.release()
        slots = config.most_draft_rows
        info = _model_info(loaded.drafter, small, slots, config.max_depth)
        used = {name: weights[name] for name in dict.fromkeys(tied.values())}
        drafter = AdaptedModel(model=info, weights=used, tied=tied)
        weights = {
            name: weight
            for name, weight in weights.items()
            if not name.startswith(DRAFTER_PREFIX) or name in verifier_tied.values()
        }
    info = _model_info(loaded, adapted, config.most_rows, config.max_depth)
    return AdaptedModel(model=info, weights=weights, tied=verifier_tied, drafter=drafter)


def own_names(adapted: Adapted) -> dict[str, str]:
    """Parameter -> tensor name for a model that drafts and shares nothing."""
    names = {name: f"{DRAFTER_PREFIX}{name}" for name in _parameters(adapted)}
    return names | {alias: names[owner] for alias, owner in adapted.tied.items()}


def drafter_names(
    small: Adapted, loaded: Loaded, verifier: Adapted, verifier_loaded: Loaded
) -> dict[str, str]:
    """As `own_names`, for the verifier's own layers: what has the verifier's form is the
    verifier's tensor.
    """
    names = own_names(small)
    same_dtype = loaded.dtype == verifier_loaded.dtype
    theirs = set(_parameters(verifier))
    for name in names:
        owner = small.tied.get(name, name)
        form = small.formats.get(owner)
        equal = same_dtype if form is None else form == verifier.formats.get(owner)
        # The predictor is not of the checkpoint: zeros until trained, in one form.
        if owner in theirs and (equal or owner.startswith("predictor.")):
            names[name] = owner
    return names


def _parameters(adapted: Adapted) -> list[str]:
    """Names of the parameters that are packed, tied ones once."""
    predictor = [f"predictor.{name}" for name, _ in adapted.predictor.named_parameters()]
    return [*(name for name, _ in adapted.model.named_parameters()), *predictor]


def _num_parameters(adapted: Adapted) -> int:
    return len(_parameters(adapted))


def _tensors(
    adapted: Adapted, loaded: Loaded, checkpoint: Checkpoint, skip: Container[str]
) -> Iterator[tuple[str, torch.Tensor]]:
    blocks = checkpoint.read_blocks if loaded.quant == "keep" else None
    return packed_tensors(adapted, checkpoint.read, loaded.dtype, blocks, skip)


def _model_info(loaded: Loaded, adapted: Adapted, more_slots: int, max_depth: int) -> ModelInfo:
    return ModelInfo(
        architecture=loaded.config["model_type"],
        vocab_size=getattr(adapted.config, "draft_vocab_size", adapted.config.vocab_size),
        hidden_size=adapted.config.hidden_size,
        num_parameters=loaded.num_parameters,
        max_model_len=loaded.max_model_len,
        num_slots=loaded.max_model_len + more_slots,
        kv_dtype=loaded.kv_dtype,
        kv_layers=adapted.kv_layers,
        eos_ids=loaded.eos_ids,
        weight_dtype=loaded.dtype,  # type: ignore[arg-type]
        max_depth=max_depth,
        quant=loaded.quant,
        activations=loaded.activations,
    )
