"""Re-measures a bundle's graphs on this machine, chooses its schedule again and writes the bundle
anew: the compiler's last stages without a compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from yggrt.bundle import Bundle, write_bundle
from yggrt.cache import Cache
from yggrt.core.objective import Form
from yggrt.core.schema import FORMAT_VERSION, LookaheadDrafter, Manifest, ModelDrafter, TunedFor
from yggrt.core.search import trees_for, window_trees
from yggrt.core.spec import parse_tree_spec
from yggrt.drafters.ngram import DEFAULT_PARAMETERS, NgramDrafter
from yggrt.latency import LatencyTable
from yggrt.loading import choose_threads, load_draft_graphs, load_graphs
from yggrt.measure import drafter_passes, spread_contexts, time_passes, verifier_passes
from yggrt.recordings import bundle_folds
from yggrt.scheduling import Limits, find_schedule, measured_costs, model_costs, record_answers
from yggrt.target import check_target, host_target

# Together under a minute, with loading and writing.
PROFILE_S = 14.0
RECORD_S = 8.0
HOST_S = 2.0
LIMITS = Limits(replay_tokens=1024, replay_s=12.0, measure_s=12.0)
NUM_ROUNDS = 5


def tune_bundle(
    bundle: Bundle,
    cache: Cache,
    output: Path,
    *,
    num_threads: int | None = None,
    mapped: bool = False,
    tree: str | None = None,
    objective: Form | None = None,
    on_note: Callable[[str], None] = lambda text: None,
    progress: Callable[[str], None] = lambda text: None,
) -> Manifest:
    """Writes `output` and returns its manifest: weights, code and texts are the bundle's, times
    and schedule this machine's.

    num_threads: default as for running. tree: a tree spec to keep instead of searching. objective:
    default the bundle's. Raises TargetError for a machine that the bundle does not run on, and
    whatever writing a bundle raises.
    """
    manifest = bundle.manifest
    trees = None if tree is None else [parse_tree_spec(tree)]
    host = host_target()
    check_target(manifest.target, host)
    threads = choose_threads(num_threads, manifest.target.tuned_for)
    graphs = load_graphs(bundle, cache, num_threads=threads, mapped=mapped, on_note=on_note)
    rows = verify_rows(manifest, graphs.row_counts)
    progress("time graphs")
    draft = load_draft_graphs(bundle, cache)
    passes = verifier_passes(graphs, rows)
    if draft is not None:
        passes += drafter_passes(draft)
    measured = time_passes(
        passes,
        spread_contexts(graphs.max_model_len),
        NUM_ROUNDS,
        budget_s=PROFILE_S,
    )
    points = measured.points(manifest.graphs)
    table = LatencyTable.of(points, manifest.graphs)
    folds = bundle_folds(bundle, graphs, RECORD_S, progress, draft)
    eos_ids = manifest.model.eos_ids
    prompts = [one.prompt for _, recordings in folds for one in islice(recordings, 4)]
    ngrams = folds[0][0]
    if not isinstance(ngrams, NgramDrafter):
        ngrams = NgramDrafter(DEFAULT_PARAMETERS)
    if isinstance(manifest.schedule.drafter, LookaheadDrafter) and trees is None:
        trees = window_trees(rows)
    _, run = record_answers(graphs, ngrams, prompts, 16, eos_ids, budget_s=HOST_S)
    costs = measured_costs(table, run)
    if isinstance(manifest.schedule.drafter, ModelDrafter):
        costs = model_costs(costs, run, table.draft_step)
        if trees is None:
            widths = () if draft is None else draft.widths
            trees = trees_for(manifest.schedule.drafter, widths, rows, manifest.model.max_depth)
    schedule = find_schedule(
        graphs,
        folds,
        costs,
        manifest.schedule.drafter,
        buckets=rows,
        trees=trees,
        form=objective or manifest.schedule.objective,
        eos_ids=eos_ids,
        limits=LIMITS,
        progress=progress,
        ngram=manifest.schedule.ngram,
    )
    progress("write")
    depth = manifest.schedule.depth
    tuned = msgspec.structs.replace(
        manifest,
        format_version=FORMAT_VERSION,
        target=msgspec.structs.replace(
            manifest.target, tuned_for=measured_host(host.tuned_for, threads)
        ),
        latency=points,
        profile=measured.notes(manifest.graphs),
        # Answers that were decoded just now are not what the drafter was calibrated on. What a
        # depth predictor gains was measured with other times and against another tree.
        schedule=msgspec.structs.replace(
            schedule,
            recordings=manifest.schedule.recordings,
            depth=depth and msgspec.structs.replace(depth, is_on=False),
        ),
    )
    written = write_bundle(output, tuned, bundle.weight_sources(), bundle.member_sources())
    progress("")
    return written


def verify_rows(manifest: Manifest, row_counts: tuple[int, ...]) -> list[int]:
    """Row counts to time: those of static graphs, of a dynamic one those that its table has."""
    verify = {graph.name: graph for graph in manifest.graphs if graph.kind == "verify"}
    measured = {point.rows for point in manifest.latency if point.graph in verify}
    ends = {graph.max_rows for graph in verify.values()}
    return sorted((measured | ends | {1}) & set(row_counts))


def measured_host(host: TunedFor, num_threads: int) -> TunedFor:
    """This machine with its bandwidth and arithmetic."""
    from yggrt.measure_host import measure_flops, measure_read_bandwidth

    return msgspec.structs.replace(
        host,
        num_threads=num_threads,
        read_bandwidth=measure_read_bandwidth(num_threads),
        flops=measure_flops(num_threads),
    )


def describe_tuning(before: Manifest, after: Manifest) -> dict[str, Any]:
    """What changed, in JSON types."""
    old, new = before.schedule, after.schedule
    return {
        "tree": {"before": old.tree, "after": new.tree},
        "objective": new.objective,
        "rest_ms": {"before": 1e3 * old.rest_s, "after": 1e3 * new.rest_s},
        "plain_pass_ms": {"before": _plain_ms(before), "after": _plain_ms(after)},
        "busy_share": after.profile.busy_share,
        "jumps": msgspec.to_builtins(after.profile.jumps),
        "candidates": msgspec.to_builtins(new.candidates),
    }


def tuning_lines(found: dict[str, Any]) -> Iterator[str]:
    """`describe_tuning` for a person."""
    passes, trees = found["plain_pass_ms"], found["tree"]
    yield f"plain pass: {passes['before']:.2f} ms before, {passes['after']:.2f} ms here"
    for one in found["candidates"]:
        measured = one["measured_tpot_ms"]
        here = "" if measured is None else f", measured {measured:.2f}"
        times = f"predicted {one['tpot_ms']:.2f}{here}"
        yield f"  {one['tree']}: {times} ms/token, {one['mean_acceptance_length']:.2f} tokens/pass"
    yield f"tree: {trees['after']} (before: {trees['before']})"


def _plain_ms(manifest: Manifest) -> float:
    """A pass of one row at the shortest measured context."""
    return 1e3 * LatencyTable.of(manifest.latency, manifest.graphs)(1, 0)
