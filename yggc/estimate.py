"""What a build would take, for `--dry-run`: graphs, minutes, memory, disk. Compiles nothing,
fetches no weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yggc.config import BuildConfig, resolve_for_model
from yggc.models.checkpoint import Checkpoint, context_limit, empty_model, open_checkpoint
from yggc.models.formats import choose_formats, model_footprint
from yggc.models.source import hub_config, resolve_source, source_kind
from yggc.models.wheel import WheelFile, is_fetched
from yggc.preflight import COMPILE_BYTES, OUTPUT_EXTRA_BYTES, WORK_EXTRA_BYTES
from yggc.workdir import WorkDir

# Measured on two cores with AVX2: 60 s for a graph of 30 layers; one with a dynamic row count
# takes a third more.
LAYER_S = 2.0
DYNAMIC_FACTOR = 1.3


@dataclass(frozen=True, slots=True)
class Estimate:
    """Sizes in bytes; weights, keys and values, and workspace are what running takes, memory what
    building takes. `num_parameters` is 0, and sizes leave the model out, when it is not here yet.
    """

    graphs: tuple[str, ...]
    compile_s: float
    memory_bytes: int
    output_bytes: int
    work_bytes: int
    num_parameters: int
    weights_bytes: int = 0
    kv_bytes: int = 0
    workspace_bytes: int = 0
    notes: tuple[str, ...] = ()


def find_model(config: BuildConfig) -> tuple[Any, Checkpoint | None] | None:
    """The empty model, and the checkpoint where that is local (on the hub only config.json is
    read); None for a wheel, which would have to be fetched.
    """
    kind = source_kind(config.verifier)
    work = WorkDir(Path(config.work_dir))
    if kind == "wheel" and not is_fetched(WheelFile.parse(config.verifier), work):
        return None
    if kind == "hub":
        return empty_model(hub_config(config.verifier)), None
    checkpoint = open_checkpoint(resolve_source(config.verifier, work, config.verifier_sha256))
    return empty_model(checkpoint.config), checkpoint


def estimate(config: BuildConfig) -> tuple[BuildConfig, Estimate]:
    """The configuration as far as it can be resolved, and what building it would take."""
    found = find_model(config)
    graphs = tuple(config.graph_rows)
    if found is None:
        note = "the model is not here yet: minutes and sizes are known after the first fetch"
        sizes = (OUTPUT_EXTRA_BYTES, WORK_EXTRA_BYTES)
        return config, Estimate(graphs, 0.0, 0, *sizes, 0, notes=(note,))
    model, checkpoint = found
    stated = str(model.config.dtype or "float32").removeprefix("torch.")
    config, notes = resolve_for_model(
        config,
        model_limit=context_limit(model.config),
        stored_dtype=stated if checkpoint is None else checkpoint.dtype,
        is_gguf=checkpoint is not None and checkpoint.source.is_gguf,
        is_quantised=checkpoint is not None and bool(checkpoint.stored_formats),
    )
    formats, more = choose_formats(model, config, checkpoint)
    footprint = model_footprint(model, config, formats)
    layers: int = model.config.num_hidden_layers
    num_compiles = len(graphs) + (DYNAMIC_FACTOR - 1 if config.graphs == "dynamic" else 0)
    packed = footprint.weights_bytes
    return config, Estimate(
        graphs=graphs,
        compile_s=layers * LAYER_S * num_compiles / min(config.jobs, len(graphs)),
        memory_bytes=footprint.total_bytes + config.jobs * COMPILE_BYTES,
        output_bytes=packed + OUTPUT_EXTRA_BYTES,
        work_bytes=packed + WORK_EXTRA_BYTES,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        weights_bytes=packed,
        kv_bytes=footprint.kv_bytes,
        workspace_bytes=footprint.workspace_bytes,
        notes=(*notes, *more),
    )
