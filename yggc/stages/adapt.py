"""adapt: the model's static form, the operators it calls, and its weights packed for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ygg_kernels.ops import Operators, load_library

from yggc.aot import compiler_digest, source_digest
from yggc.context import Context
from yggc.errors import SourceError
from yggc.models.adapt import Adapted, adapt
from yggc.models.weights import packed_tensors, write_weight_file
from yggc.stages.load import Loaded
from yggrt.core.schema import KvLayer, ModelInfo, Record, WeightSpec

WEIGHTS_FILE = "weights.bin"


class AdaptedModel(Record, frozen=True):
    """`weights` says where each tensor lies in `weights.bin`; `tied` maps an alias to the tensor
    it shares.
    """

    model: ModelInfo
    weights: dict[str, WeightSpec]
    tied: dict[str, str]

    @property
    def weights_bytes(self) -> int:
        return sum(spec.num_bytes for spec in self.weights.values())


def key(context: Context, loaded: Loaded) -> Any:
    config = context.config
    rows = [config.buckets[-1], config.prefill_buckets[-1], config.max_depth]
    packing = source_digest("models/blocks.py", "models/weights.py")
    return [loaded, rows, context.library.namespace, compiler_digest(), packing]


def adapt_loaded(loaded: Loaded, operators: Operators, max_depth: int) -> Adapted:
    """The adapted skeleton of what `load` found."""
    return adapt(
        loaded.config, operators, max_depth, loaded.dtype, loaded.formats, loaded.activations
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
    num_tensors = len(list(adapted.model.parameters())) + len(list(adapted.predictor.parameters()))
    with context.reporter.stage("pack weights", total=num_tensors) as progress:
        weights = write_weight_file(
            out / WEIGHTS_FILE,
            packed_tensors(
                adapted,
                context.checkpoint.read,
                loaded.dtype,
                context.checkpoint.read_blocks if loaded.quant == "keep" else None,
            ),
            lambda num_bytes: progress.advance(1),
        )
    model = ModelInfo(
        architecture=loaded.config["model_type"],
        vocab_size=adapted.config.vocab_size,
        hidden_size=adapted.config.hidden_size,
        num_parameters=loaded.num_parameters,
        max_model_len=loaded.max_model_len,
        num_slots=loaded.max_model_len + config.most_rows,
        kv_dtype=loaded.kv_dtype,
        kv_layers=adapted.kv_layers,
        eos_ids=loaded.eos_ids,
        weight_dtype=loaded.dtype,  # type: ignore[arg-type]
        max_depth=config.max_depth,
        quant=loaded.quant,
        activations=loaded.activations,
    )
    return AdaptedModel(model=model, weights=weights, tied=adapted.tied)
