"""What a build would take, for `--dry-run`: graphs, minutes, memory, disk. Compiles nothing,
fetches no weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yggc.config import BuildConfig, resolve_for_model
from yggc.heads import is_head_folder
from yggc.models.checkpoint import (
    Checkpoint,
    context_limit,
    empty_model,
    open_checkpoint,
    open_drafter,
    read_config,
)
from yggc.models.drafter import drafter_options, plan_drafter
from yggc.models.formats import choose_formats, model_footprint
from yggc.models.head import read_head_config
from yggc.models.medusa import MedusaConfig
from yggc.models.shipped import find_shipped
from yggc.models.source import hub_config, resolve_source, source_kind
from yggc.models.wheel import WheelFile, is_fetched
from yggc.preflight import COMPILE_BYTES, OUTPUT_EXTRA_BYTES, WORK_EXTRA_BYTES
from yggc.targets import find_gpu_target
from yggc.workdir import WorkDir
from yggrt.core.footprint import Footprint

# Measured on two cores with AVX2: 60 s for a graph of 30 layers; one with a dynamic row count
# takes a third more.
LAYER_S = 2.0
DYNAMIC_FACTOR = 1.3
# What a CUDA context, the graphs' code and their capture take beside the tensors: an
# allowance, not measured.
CUDA_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Estimate:
    """Sizes in bytes; weights, keys and values, and workspace are what running takes, memory what
    building takes of the host. `num_parameters` is 0, and sizes leave the model out, when it is
    not here yet. On a GPU `device_bytes` is what running takes of its `device_memory_bytes`.
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
    device_bytes: int = 0
    device_memory_bytes: int = 0
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the target's memory holds it, as far as that is known."""
        return self.device_bytes <= self.device_memory_bytes


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model's configuration, and its checkpoint where that is local; of a model that is not
    here, `stored` are the formats of the matrices and the vocabulary in its GGUF file, None for
    any other.
    """

    config: Any
    checkpoint: Checkpoint | None
    stored: tuple[str, str] | None = None

    def resolve(self, options: BuildConfig) -> tuple[BuildConfig, list[str]]:
        stated = str(self.config.dtype or "float32").removeprefix("torch.")
        checkpoint = self.checkpoint
        return resolve_for_model(
            options,
            model_limit=context_limit(self.config),
            stored_dtype=stated if checkpoint is None else checkpoint.dtype,
            is_gguf=self.stored is not None
            or (checkpoint is not None and checkpoint.source.is_gguf),
            is_quantised=self.stored is not None
            or (checkpoint is not None and bool(checkpoint.stored_formats)),
        )


def find_model(
    text: str, config: BuildConfig, option: str, verifier: FoundModel | None = None
) -> FoundModel | None:
    """The model that `text` names, its hash in the option of that name, maybe a head over
    `verifier`. Nothing is fetched: None for a model that is neither here nor among those whose
    configurations come with the compiler.
    """
    kind = source_kind(text)
    work = WorkDir(Path(config.work_dir))
    if kind == "wheel" and not is_fetched(WheelFile.parse(text), work):
        shipped = find_shipped(text, getattr(config, option))
        if shipped is None:
            return None
        config_folder, stated = shipped
        return FoundModel(read_config(config_folder), None, (stated.matrices, stated.vocabulary))
    is_here = kind != "hub"
    folder: Path | None = Path(text).expanduser() if is_here else hub_config(text)
    if folder is None:
        return None
    whole = verifier.checkpoint if verifier is not None and is_here else None
    if verifier is not None and whole is None and is_head_folder(folder):
        return FoundModel(read_head_config(folder, verifier.config), None)
    if not is_here:
        return FoundModel(read_config(folder), None)
    source = resolve_source(text, work, getattr(config, option), option)
    opened = open_checkpoint(source) if whole is None else open_drafter(source, whole)
    return FoundModel(opened.config, opened)


def estimate(config: BuildConfig) -> tuple[BuildConfig, Estimate]:
    """The configuration as far as it can be resolved, and what building it would take."""
    found = find_model(config.verifier, config, "verifier_sha256")
    drafter = found
    if config.has_draft_model and config.self_layers is None:
        drafter = found and find_model(config.draft_model, config, "drafter_sha256", found)
    draft_graphs = config.draft_graph_rows
    if drafter is not None and isinstance(drafter.config, MedusaConfig):
        draft_graphs = {}
    graphs = (*config.graph_rows, *draft_graphs)
    if found is None or drafter is None:
        which = "the model is" if found is None else "the drafter is"
        note = f"{which} not here yet: minutes and sizes are known after the first fetch"
        sizes = (OUTPUT_EXTRA_BYTES, WORK_EXTRA_BYTES)
        return config, Estimate(graphs, 0.0, 0, *sizes, 0, notes=(note,))
    model = empty_model(found.config)
    config, notes = found.resolve(config)
    formats, more = choose_formats(model, config, found.checkpoint, found.stored)
    footprint = model_footprint(model, config, formats)
    layers: int = model.config.num_hidden_layers
    num_compiles = len(config.graph_rows) + (
        DYNAMIC_FACTOR - 1 if config.graphs == "dynamic" else 0
    )
    compile_s = layers * LAYER_S * num_compiles
    if config.has_draft_model:
        small, footprint, drafter_notes = _add_drafter(config, drafter, footprint, found, formats)
        compile_s += small * LAYER_S * len(draft_graphs)
        more = [*more, *drafter_notes]
    packed = footprint.weights_bytes
    gpu = find_gpu_target(config.target)
    device_bytes = 0 if gpu is None else footprint.total_bytes + CUDA_BYTES
    if gpu is not None:
        more = [*more, "minutes are those of graphs for CPUs; a build for a GPU was not measured"]
    return config, Estimate(
        graphs=graphs,
        compile_s=compile_s / min(config.jobs, len(graphs)),
        memory_bytes=(footprint.total_bytes if gpu is None else packed)
        + config.jobs * COMPILE_BYTES,
        output_bytes=packed + OUTPUT_EXTRA_BYTES,
        work_bytes=packed + WORK_EXTRA_BYTES,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        weights_bytes=packed,
        kv_bytes=footprint.kv_bytes,
        workspace_bytes=footprint.workspace_bytes,
        device_bytes=device_bytes,
        device_memory_bytes=0 if gpu is None else gpu.memory_bytes,
        notes=(*notes, *more),
    )


def _add_drafter(
    config: BuildConfig,
    found: FoundModel,
    taken: Footprint,
    verifier: FoundModel,
    verifier_formats: Mapping[str, str],
) -> tuple[int, Footprint, list[str]]:
    """The drafter's layers, what both models take together, and notes; `taken` and
    `verifier_formats` are the verifier's."""
    options, notes = drafter_options(config, found.config, context_limit(found.config))
    options, more = found.resolve(options)
    theirs = (verifier.config, verifier_formats, taken)
    plan = plan_drafter(config, options, found.config, found.checkpoint, theirs)
    layers: int = plan.shape.num_hidden_layers
    notes += [*more, *plan.notes]
    return layers, plan.total, [f"drafter: {n}" for n in notes]
