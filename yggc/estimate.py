"""What a build would take, for `--dry-run`: graphs, minutes, memory, disk. Compiles nothing,
fetches no weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from yggc.config import BuildConfig, resolve_for_model
from yggc.models.checkpoint import empty_model, open_checkpoint
from yggc.models.source import hub_config, resolve_source, source_kind
from yggc.models.wheel import WheelFile, is_fetched
from yggc.preflight import COMPILE_BYTES, OUTPUT_EXTRA_BYTES, WORK_EXTRA_BYTES, packed_bytes
from yggc.workdir import WorkDir

# Measured on two cores with AVX2: 60 s for a graph of 30 layers; one with a dynamic row count
# takes a third more.
LAYER_S = 2.0
DYNAMIC_FACTOR = 1.3


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the estimate needs of a model."""

    num_parameters: int
    num_layers: int
    model_limit: int
    stored_dtype: str
    is_gguf: bool


@dataclass(frozen=True, slots=True)
class Estimate:
    """Sizes in bytes. `num_parameters` is 0, and sizes leave the weights out, when the model is
    not here yet.
    """

    graphs: tuple[str, ...]
    compile_s: float
    memory_bytes: int
    output_bytes: int
    work_bytes: int
    num_parameters: int
    notes: tuple[str, ...] = ()


def model_facts(config: BuildConfig) -> ModelFacts | None:
    """Facts from local headers, or from the hub's config.json; None for a wheel, which would have
    to be fetched.
    """
    kind = source_kind(config.verifier)
    work = WorkDir(Path(config.work_dir))
    if kind == "wheel" and not is_fetched(WheelFile.parse(config.verifier), work):
        return None
    if kind == "hub":
        hub = hub_config(config.verifier)
        model = empty_model(hub)
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        stored = str(hub.dtype or "float32").removeprefix("torch.")
        return ModelFacts(num_parameters, hub.num_hidden_layers, _limit(hub), stored, False)
    source = resolve_source(config.verifier, work, config.verifier_sha256)
    checkpoint = open_checkpoint(source)
    return ModelFacts(
        checkpoint.num_parameters, checkpoint.config.num_hidden_layers, _limit(checkpoint.config),
        checkpoint.dtype, source.is_gguf,
    )  # fmt: skip


def _limit(config: object) -> int:
    limit: int = getattr(config, "max_position_embeddings", 1 << 30)
    return limit


def estimate(config: BuildConfig) -> tuple[BuildConfig, Estimate]:
    """The configuration as far as it can be resolved, and what building it would take."""
    facts = model_facts(config)
    if config.graphs == "dynamic":
        graphs: tuple[str, ...] = ("verify_001", f"verify_{config.buckets[-1]:03d}")
    else:
        graphs = tuple(f"verify_{rows:03d}" for rows in config.buckets)
    graphs += (f"prefill_{config.prefill_rows:03d}",)
    if facts is None:
        note = "the model is not here yet: minutes and sizes are known after the first fetch"
        return config, Estimate(graphs, 0.0, 0, OUTPUT_EXTRA_BYTES, WORK_EXTRA_BYTES, 0, (note,))
    config, notes = resolve_for_model(
        config,
        model_limit=facts.model_limit,
        stored_dtype=facts.stored_dtype,
        is_gguf=facts.is_gguf,
    )
    weights = len(graphs) + (DYNAMIC_FACTOR - 1 if config.graphs == "dynamic" else 0)
    packed = packed_bytes(config, facts.num_parameters)
    return config, Estimate(
        graphs=graphs,
        compile_s=facts.num_layers * LAYER_S * weights / min(config.jobs, len(graphs)),
        memory_bytes=packed + config.jobs * COMPILE_BYTES,
        output_bytes=packed + OUTPUT_EXTRA_BYTES,
        work_bytes=packed + WORK_EXTRA_BYTES,
        num_parameters=facts.num_parameters,
        notes=tuple(notes),
    )
