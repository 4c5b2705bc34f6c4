"""profile: compile the candidate graphs and time each once; what is timed is what is shipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from yggc.aot import GLUE_ISA
from yggc.context import Context
from yggc.stages.adapt import AdaptedModel
from yggc.stages.graphs import bind_graphs, graph_jobs
from yggc.stages.load import Loaded
from yggrt.core.schema import LatencyPoint, Record, Target
from yggrt.measure import time_draft_graphs, time_graphs
from yggrt.measure_host import measure_flops, measure_read_bandwidth
from yggrt.target import host_target

NUM_ROUNDS = 9
CONTEXT = 256


class Profile(Record, frozen=True):
    """The machine, with what was measured of it, and the time of a pass by row count."""

    target: Target
    latency: tuple[LatencyPoint, ...]


def key(context: Context, loaded: Loaded, adapted: AdaptedModel) -> Any:
    threads = context.config.threads
    jobs = [job.key for job in graph_jobs(context, loaded, adapted)]
    return [jobs, threads, host_target(threads)]


def run(context: Context, out: Path, loaded: Loaded, adapted: AdaptedModel) -> Profile:
    threads = context.config.threads
    bound = bind_graphs(context, loaded, adapted)
    torch.set_num_threads(threads)
    rows = [r for r in context.config.buckets if r in bound.graphs.row_counts]
    at = min(CONTEXT, adapted.model.max_model_len // 2)
    with context.reporter.stage(
        "time graphs", total=(len(rows) + 1) * (NUM_ROUNDS + 1)
    ) as progress:
        timings = time_graphs(bound.graphs, rows, [at], NUM_ROUNDS, progress.advance)
    if bound.draft is not None and adapted.drafter is not None:
        at = min(at, adapted.drafter.model.max_model_len // 2)
        timings += time_draft_graphs(bound.draft, [at], NUM_ROUNDS)
    latency = tuple(
        LatencyPoint(
            graph=_graph_name(bound.specs, timing.kind, timing.rows),
            rows=timing.rows,
            context=timing.context,
            median_s=timing.median_s,
            spread_s=timing.spread_s,
        )
        for timing in timings
    )
    return Profile(target=_measured_target(context, threads), latency=latency)


def _graph_name(specs: Any, kind: str, rows: int) -> str:
    return next(
        spec.name for spec in specs if spec.kind == kind and spec.min_rows <= rows <= spec.max_rows
    )


def _measured_target(context: Context, threads: int) -> Target:
    """This host, its ISA narrowed to what the code uses, its bandwidth and arithmetic measured."""
    import msgspec

    host = host_target(threads)
    used = set(context.library.isa_flags) | (
        set(GLUE_ISA) if host.must_match.machine == "x86_64" else set()
    )
    return Target(
        name=context.config.target,
        must_match=msgspec.structs.replace(host.must_match, isa=tuple(sorted(used))),
        tuned_for=msgspec.structs.replace(
            host.tuned_for,
            read_bandwidth=measure_read_bandwidth(threads),
            flops=measure_flops(threads),
        ),
    )
