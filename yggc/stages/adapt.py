"""adapt: the model's static form, the operators it calls, and its weights packed for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ygg_kernels.ops import load_library

from yggc.aot import compiler_digest
from yggc.context import Context
from yggc.models.adapt import adapt
from yggc.models.weights import packed_tensors, write_weight_file
from yggc.stages.load import Loaded
from yggrt.core.schema import ModelInfo, Record, WeightSpec

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
    rows = [config.buckets[-1], config.prefill_rows, config.max_depth]
    return [loaded, rows, context.library.namespace, compiler_digest()]


def run(context: Context, out: Path, loaded: Loaded) -> AdaptedModel:
    """Writes the packed weights into `out`, one tensor in memory at a time."""
    config = context.config
    library = context.library
    operators = load_library(library.path, library.namespace)
    adapted = adapt(loaded.config, operators, config.max_depth, loaded.dtype)
    num_tensors = len(list(adapted.model.parameters())) + len(list(adapted.predictor.parameters()))
    with context.reporter.stage("pack weights", total=num_tensors) as progress:
        weights = write_weight_file(
            out / WEIGHTS_FILE,
            packed_tensors(adapted, context.checkpoint.read, loaded.dtype),
            lambda num_bytes: progress.advance(1),
        )
    model = ModelInfo(
        architecture=loaded.config["model_type"],
        vocab_size=adapted.config.vocab_size,
        hidden_size=adapted.config.hidden_size,
        num_parameters=loaded.num_parameters,
        max_model_len=loaded.max_model_len,
        num_slots=loaded.max_model_len + max(config.buckets[-1], config.prefill_rows),
        kv_dtype="float32",
        kv_layers=adapted.kv_layers,
        eos_ids=loaded.eos_ids,
        weight_dtype=loaded.dtype,  # type: ignore[arg-type]
        max_depth=config.max_depth,
    )
    return AdaptedModel(model=model, weights=weights, tied=adapted.tied)
