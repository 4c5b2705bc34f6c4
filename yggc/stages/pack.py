"""pack: everything into one file, all or nothing."""

from __future__ import annotations

from functools import partial
from importlib.resources import files
from pathlib import Path

import torch

from yggc.context import Context
from yggc.inputs import build_inputs
from yggc.stages.adapt import WEIGHTS_FILE, AdaptedModel
from yggc.stages.freeze import Frozen
from yggc.stages.graphs import build_graphs, own_constants
from yggc.stages.load import TOKENIZER_MEMBER, Loaded
from yggc.stages.profile import Profile
from yggc.stages.search import Searched
from yggrt import __version__
from yggrt.bundle import WeightSource, write_bundle
from yggrt.core.schema import FORMAT_VERSION, Manifest
from yggrt.weights import file_chunks, tensor_chunks

OPERATORS_MEMBER = "code/operators.so"
BENCH_MEMBER = "bench.jsonl"


def run(
    context: Context,
    loaded: Loaded,
    adapted: AdaptedModel,
    profile: Profile,
    searched: Searched,
    frozen: Frozen,
) -> Manifest:
    """Writes the bundle to `config.output` and returns its manifest."""
    config = context.config
    members: dict[str, Path | bytes] = {
        OPERATORS_MEMBER: context.library.path,
        BENCH_MEMBER: (files("ygg_artifacts.prompts") / BENCH_MEMBER).read_bytes(),
    }
    built = build_graphs(context, loaded, adapted)
    for graph, spec in zip(built, frozen.graphs, strict=True):
        root = f"code/graphs/{spec.name}/"
        for member in (spec.library, spec.calls, spec.metadata):
            members[member] = graph.folder / member.removeprefix(root)
    if loaded.text.tokenizer:
        members[TOKENIZER_MEMBER] = context.folders["load"] / TOKENIZER_MEMBER
    own = own_constants(built, adapted)
    options = ("dtype", "quant", "activations", "kv_dtype", "max_model_len")
    resolved = {option: getattr(loaded, option) for option in options}
    if loaded.drafter is not None:
        resolved |= {"drafter_dtype": loaded.drafter.dtype, "drafter_quant": loaded.drafter.quant}
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        built_by=f"yggc {__version__}",
        name=config.name,
        exactness="bitwise",
        target=profile.target,
        model=adapted.model,
        drafter=adapted.drafter.model if adapted.drafter else None,
        sources=(loaded.source, *((loaded.drafter.source,) if loaded.drafter else ())),
        operators=OPERATORS_MEMBER,
        operator_namespace=context.library.namespace,
        graphs=frozen.graphs,
        weights={},
        latency=profile.latency,
        schedule=searched.schedule,
        text=loaded.text,
        golden=frozen.golden,
        bench_prompts=BENCH_MEMBER,
        members={},
        config={**config.packable(), **resolved},
        profile=profile.notes,
        inputs=build_inputs(config),
    )
    return write_bundle(Path(config.output), manifest, _weights(context, adapted, own), members)


def _weights(
    context: Context, adapted: AdaptedModel, own: dict[str, torch.Tensor]
) -> list[WeightSource]:
    """Packed weights, read from the file they were written to, then the graphs' own values."""
    path = context.folders["adapt"] / WEIGHTS_FILE
    packed = [
        WeightSource(
            name, spec.dtype, spec.shape, partial(file_chunks, path, spec.offset, spec.num_bytes)
        )
        for name, spec in adapted.all_weights.items()
        if name not in own
    ]
    return packed + [
        WeightSource(
            name,
            str(tensor.dtype).removeprefix("torch."),  # type: ignore[arg-type]
            tuple(tensor.shape),
            partial(tensor_chunks, tensor),
        )
        for name, tensor in own.items()
    ]
