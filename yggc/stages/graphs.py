"""Compiled graphs of a build: made once per content hash in parallel processes, opened over the
packed weights.

Not a stage of its own: profile times what is made here, freeze checks it and pack ships it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import msgspec
import torch
from ygg_kernels.ops import load_library

from yggc import errors
from yggc.aot import GRAPH_FOLDER, CompiledGraph, GraphJob, compiler_digest
from yggc.config import GraphRows
from yggc.context import Context
from yggc.errors import StageError
from yggc.models.weights import weight_name
from yggc.stages.adapt import WEIGHTS_FILE, AdaptedModel
from yggc.stages.load import Loaded
from yggrt.core.errors import YggError
from yggrt.core.schema import DRAFTER_KINDS, VERIFIER_KINDS, GraphKind, GraphSpec
from yggrt.graphs import AotDraftGraphs, AotGraphs
from yggrt.memory import has_room_for
from yggrt.weights import copy_file, map_file, view

COMPILED_FILE = "compiled.json"
CONSTANTS_FILE = "constants.pt"


@dataclass(frozen=True, slots=True)
class BuiltGraph:
    """A compiled graph in its folder, with the values that it brings itself."""

    job: GraphJob
    folder: Path
    compiled: CompiledGraph
    own: dict[str, torch.Tensor]

    def spec(self, constants: dict[str, str]) -> GraphSpec:
        """The manifest's record; members lie below `code/graphs/<name>/`."""
        member = f"code/graphs/{self.job.name}/{GRAPH_FOLDER}/graph.wrapper"
        return GraphSpec(
            name=self.job.name,
            kind=self.job.kind,
            min_rows=self.job.min_rows,
            max_rows=self.job.max_rows,
            library=f"{member}.so",
            calls=f"{member}.json",
            metadata=f"{member}_metadata.json",
            inputs=self.compiled.inputs,
            outputs=self.compiled.outputs,
            constants=constants,
        )


def graph_jobs(context: Context, loaded: Loaded, adapted: AdaptedModel) -> list[GraphJob]:
    """The graphs that the configuration asks for: the verifier's, then those of a model that
    drafts.
    """
    jobs = _model_jobs(context, context.config.graph_rows, loaded, adapted)
    # Medusa heads are part of the verifier's.
    if loaded.drafter is not None and adapted.drafter is not None and loaded.medusa is None:
        rows = context.config.draft_graph_rows
        jobs += _model_jobs(context, rows, loaded.drafter, adapted.drafter)
    return jobs


def _model_jobs(
    context: Context, rows: Mapping[str, GraphRows], loaded: Loaded, adapted: AdaptedModel
) -> list[GraphJob]:
    return [
        GraphJob(
            name=name,
            kind=one.kind,
            min_rows=one.fewest,
            max_rows=one.most,
            num_columns=one.num_columns,
            config=loaded.config,
            num_slots=adapted.model.num_slots,
            max_depth=adapted.model.max_depth,
            weight_dtype=adapted.model.weight_dtype,
            formats=loaded.formats,
            activations=loaded.activations,
            kv_dtype=loaded.kv_dtype,
            operators=str(context.library.path.absolute()),
            namespace=context.library.namespace,
            torch_version=version("torch"),
            transformers_version=version("transformers"),
            compiler_digest=compiler_digest(),
            taps=loaded.taps,
            medusa=loaded.medusa,
        )
        for name, one in rows.items()
    ]


def build_graphs(context: Context, loaded: Loaded, adapted: AdaptedModel) -> list[BuiltGraph]:
    """All graphs, those compiled before taken from the work directory; raises what the compile
    raised.
    """
    jobs = graph_jobs(context, loaded, adapted)
    stages = [context.work.stage("graph", job.key) for job in jobs]
    missing = [(job, stage) for job, stage in zip(jobs, stages, strict=True) if not stage.done]
    if missing:
        # The largest first: the last one to finish should be a short one.
        missing.sort(key=lambda pair: -pair[0].max_rows)
        with (
            context.reporter.stage("compile graphs", total=len(missing)) as progress,
            ThreadPoolExecutor(context.config.jobs) as pool,
        ):
            futures = {
                pool.submit(stage.ensure, partial(compile_job, job)): job for job, stage in missing
            }
            try:
                for future in as_completed(futures):
                    future.result()
                    progress.advance(1, futures[future].name)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    return [open_built(job, stage.ensure(_never)) for job, stage in zip(jobs, stages, strict=True)]


def _never(_out: Path) -> None:
    raise AssertionError("the graph was compiled above")


def open_built(job: GraphJob, folder: Path) -> BuiltGraph:
    compiled = msgspec.json.decode((folder / COMPILED_FILE).read_bytes(), type=CompiledGraph)
    return BuiltGraph(job, folder, compiled, torch.load(folder / CONSTANTS_FILE))


def compile_job(job: GraphJob, out: Path) -> None:
    """One compile in a process of its own; Inductor keeps state that two graphs must not share."""
    job_file = out / "job.json"
    job_file.write_bytes(msgspec.json.encode(job))
    command = [sys.executable, "-m", "yggc.worker", str(os.getpid()), str(job_file), str(out)]
    # Hashes of strings order some of the compiler's sets.
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    error_file = out / "error.json"
    if error_file.exists():
        fields = msgspec.json.decode(error_file.read_bytes())
        kind: type[YggError] = getattr(errors, fields["kind"], StageError)
        raise kind(fields["message"], fields["tip"])
    if done.returncode != 0:
        raise StageError(
            f"graph '{job.name}': its compile process ended with status {done.returncode}: "
            f"{(done.stderr.strip().splitlines() or ['no output'])[-1]}",
            "if the machine ran out of memory, build with --jobs 1",
        )


@dataclass(frozen=True, slots=True)
class BoundGraphs:
    """Graphs over the packed weights, which lie where the runtime puts them."""

    graphs: AotGraphs
    draft: AotDraftGraphs | None
    specs: tuple[GraphSpec, ...]
    storage: torch.UntypedStorage

    def names(self, kind: GraphKind) -> list[str]:
        """Names of the graphs of a kind."""
        return [spec.name for spec in self.specs if spec.kind == kind]


def bind_graphs(context: Context, loaded: Loaded, adapted: AdaptedModel) -> BoundGraphs:
    """The graphs of a build, ready to run: opened once a build, since every opening would hold the
    weights again.
    """
    folder = context.folders["adapt"]
    if folder not in context.bound:
        context.bound[folder] = _bind(context, loaded, adapted, folder / WEIGHTS_FILE)
    return context.bound[folder]


def _bind(context: Context, loaded: Loaded, adapted: AdaptedModel, path: Path) -> BoundGraphs:
    built = build_graphs(context, loaded, adapted)
    num_bytes = path.stat().st_size
    if has_room_for(num_bytes):
        with path.open("rb") as file:
            storage = copy_file(file.fileno(), num_bytes)
    else:
        storage = map_file(path, num_bytes)
    own: dict[str, torch.Tensor] = {}
    parts = []
    for graph in built:
        table = dict(_constant_table(graph, adapted, own))
        weights = adapted.all_weights
        tensors = {
            constant: own[name] if name in own else view(storage, weights[name])
            for constant, name in table.items()
        }
        parts.append((graph.spec(table), graph.folder, tensors))
    # Not torch's loader alone: a later check traces the operators and needs their shapes.
    operators = load_library(context.library.path, context.library.namespace)
    verifier = [part for part in parts if part[0].kind in VERIFIER_KINDS]
    graphs, draft = AotGraphs(adapted.model, verifier, operators), None
    small = [part for part in parts if part[0].kind in DRAFTER_KINDS]
    if adapted.drafter is not None and small:
        draft = AotDraftGraphs(adapted.drafter.model, small, operators)
    return BoundGraphs(graphs, draft, tuple(spec for spec, _, _ in parts), storage)


def own_constants(built: Sequence[BuiltGraph], adapted: AdaptedModel) -> dict[str, torch.Tensor]:
    """What the graphs bring beside the packed weights, by its name in the weight table."""
    own: dict[str, torch.Tensor] = {}
    for graph in built:
        for _ in _constant_table(graph, adapted, own):
            pass
    return own


def _constant_table(
    graph: BuiltGraph, adapted: AdaptedModel, own: dict[str, torch.Tensor]
) -> Iterator[tuple[str, str]]:
    """(graph's name, name in the weight table); adds the graph's own values to `own`, equal ones
    once.
    """
    if graph.job.kind in DRAFTER_KINDS:
        assert adapted.drafter is not None
        adapted = adapted.drafter
    for constant in graph.compiled.constants:
        name = weight_name(adapted.tied, constant)
        if constant in graph.own:
            value = graph.own[constant].contiguous()
            if name in own and not torch.equal(own[name], value):
                name = f"{graph.job.name}.{name}"
            own[name] = value
        elif name not in adapted.weights:
            raise StageError(
                f"graph '{graph.job.name}' wants the constant '{constant}', no weight provides it",
                "the model builds a tensor in a way that is not supported",
            )
        yield constant, name
