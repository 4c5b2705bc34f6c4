"""Times compiled graphs as their callers call them: the compiler's profile, `tune` and `doctor`
share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from time import perf_counter
from typing import NamedTuple

from yggrt.busy import BusyMeter, warning
from yggrt.core.passes import DraftGraphs, Graphs
from yggrt.core.schema import GraphSpec, LatencyJump, LatencyPoint, ProfileNotes
from yggrt.core.tree import TokenTree
from yggrt.latency import GraphKind, LatencyTable

# A point whose interquartile range is a larger share of its median is measured again.
NOISY_SPREAD = 0.2
MAX_REPEATS = 2
LEAST_ROUNDS = 2
MAX_JUMPS_SHOWN = 3
# Shares of the context limit at which passes are timed.
CONTEXT_SHARES = (1 / 64, 1 / 8, 1 / 2, 1.0)


class TimedPass(NamedTuple):
    """A pass of `rows` rows of one kind of graph, called with the context length. Timed in every
    `every`-th round, `in_a_row` times after one call that is not timed, or once alone if that is
    0."""

    kind: GraphKind
    rows: int
    call: Callable[[int], object]
    every: int = 1
    in_a_row: int = 2


class Timing(NamedTuple):
    """Median and interquartile range of one pass, in seconds."""

    kind: GraphKind
    rows: int
    context: int
    median_s: float
    spread_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What `time_passes` found. `warmup_s`: the first call of every pass, together; `num_rounds`
    rounds were timed, more where they disagreed; `is_complete`: the budget sufficed."""

    timings: tuple[Timing, ...]
    warmup_s: float
    num_rounds: int
    busy_share: float
    is_complete: bool

    def points(self, graphs: Sequence[GraphSpec]) -> tuple[LatencyPoint, ...]:
        """The manifest's records: timings under the names of the graphs that ran them."""
        return tuple(
            LatencyPoint(
                graph=next(
                    g.name
                    for g in graphs
                    if g.kind == timing.kind and g.min_rows <= timing.rows <= g.max_rows
                ),
                rows=timing.rows,
                context=timing.context,
                median_s=timing.median_s,
                spread_s=timing.spread_s,
            )
            for timing in self.timings
        )

    def notes(self, graphs: Sequence[GraphSpec]) -> ProfileNotes:
        """How it was measured, with the places where the curves jump."""
        table = LatencyTable.of(self.points(graphs), graphs)
        return ProfileNotes(
            busy_share=self.busy_share,
            warmup_s=self.warmup_s,
            num_rounds=self.num_rounds,
            jumps=tuple(table_jumps(table)),
        )


def table_jumps(table: LatencyTable) -> Iterator[LatencyJump]:
    """Every jump of a table's measured curves."""
    for kind, surface in table.surfaces.items():
        for axis, at, jump in surface.jumps():
            yield LatencyJump(
                kind=kind, axis=axis, at=at, lower=jump.lower, upper=jump.upper, ratio=jump.ratio
            )


def describe_jump(jump: LatencyJump) -> str:
    """One line for a person."""
    other = "context" if jump.axis == "rows" else "rows"
    what = "takes" if jump.ratio > 1 else "takes only"
    return (
        f"{jump.kind}: from {jump.lower} to {jump.upper} {jump.axis} (at {other} {jump.at}) a "
        f"pass {what} {jump.ratio:.2f} times as long, which neither reading nor computing explains"
    )


def profile_warnings(notes: ProfileNotes) -> list[str]:
    """What makes a profile doubtful, one line each."""
    busy = warning(notes.busy_share or 0.0)
    shown = [describe_jump(jump) for jump in notes.jumps[:MAX_JUMPS_SHOWN]]
    if len(notes.jumps) > len(shown):
        shown.append(f"and {len(notes.jumps) - len(shown)} more such places")
    return [*([busy] if busy else []), *shown]


def spread_contexts(max_model_len: int, shares: Sequence[float] = CONTEXT_SHARES) -> list[int]:
    """Context lengths from short to the last that leaves room for a token."""
    return sorted({min(max_model_len - 1, round(share * max_model_len)) for share in shares})


def verifier_passes(graphs: Graphs, row_counts: Sequence[int]) -> list[TimedPass]:
    """A verify pass at each row count, and every prefill graph in each third round, as they take
    longest and decide least."""
    cache = graphs.new_cache()

    def verify(tree: TokenTree, context: int) -> object:
        return graphs.verify(cache, tree, context)

    def prefill(rows: int, context: int) -> object:
        return graphs.prefill(cache, (0,) * rows, context)

    chains = {
        rows: TokenTree((0,) * rows, tuple(range(-1, rows - 1)), (1.0,) * rows)
        for rows in row_counts
    }
    return [
        *(TimedPass("verify", rows, partial(verify, tree)) for rows, tree in chains.items()),
        *(
            TimedPass("prefill", rows, partial(prefill, rows), every=3, in_a_row=0)
            for rows in graphs.prefill_buckets
        ),
    ]


def drafter_passes(graphs: DraftGraphs) -> list[TimedPass]:
    """The nodes of a growth step with the choice of their children, at each width, and prefill
    passes as for the verifier."""
    import torch

    from yggrt.drafters.children import best_children

    cache = graphs.new_cache()
    num_children = 2 * graphs.widths[-1]

    def grow(width: int, context: int) -> object:
        # The last nodes of the largest tree, each below the root alone.
        first = graphs.max_expanded - width if width > 1 else 0
        paths = [(0, first + i) if first + i else (0,) for i in range(width)]
        # A drafter's context may be shorter than the verifier's.
        at = min(context, graphs.max_model_len - 1)
        out = graphs.draft(cache, [0] * width, paths, at, features(width))
        ones = torch.ones(width)
        return best_children(out.logits, ones, num_children, top_shares=graphs.top_shares)

    def prefill(rows: int, context: int) -> object:
        at = min(context, graphs.max_model_len - 1)
        return graphs.prefill(cache, (0,) * rows, at, features(rows))

    def features(rows: int) -> Sequence[torch.Tensor]:
        return [torch.zeros(graphs.feature_size)] * rows if graphs.feature_size else []

    return [
        *(TimedPass("draft", width, partial(grow, width)) for width in graphs.widths),
        *(
            TimedPass("draft_prefill", rows, partial(prefill, rows), every=3, in_a_row=0)
            for rows in graphs.prefill_buckets
        ),
    ]


def time_passes(
    passes: Sequence[TimedPass],
    contexts: Sequence[int],
    num_rounds: int,
    *,
    budget_s: float = float("inf"),
    on_pass: Callable[[], None] = lambda: None,
) -> Measured:
    """Times every pass at every context length.

    The calls take turns, so that a slow spell of the machine falls on all of them; the first round
    is warm-up. Points that disagree with themselves (NOISY_SPREAD) get up to MAX_REPEATS times as
    many calls again. After `budget_s` no round begins, but for the first two; after twice as
    long what each was called once has to do.
    """
    start, busy = perf_counter(), BusyMeter()
    calls = {(one.kind, one.rows, context): one for one in passes for context in contexts}
    taken: dict[tuple[GraphKind, int, int], list[float]] = {key: [] for key in calls}

    def run(key: tuple[GraphKind, int, int]) -> float:
        begin = perf_counter()
        calls[key].call(key[2])
        seconds = perf_counter() - begin
        on_pass()
        return seconds

    def time_in_a_row(key: tuple[GraphKind, int, int]) -> None:
        # Decoding reads the same weights again at once; a pass after a wider one finds fewer of
        # them in the last cache than it does there.
        if calls[key].in_a_row:
            run(key)
        for _ in range(max(1, calls[key].in_a_row)):
            taken[key].append(run(key))

    def in_time(turn: int) -> bool:
        return turn < LEAST_ROUNDS or perf_counter() - start < budget_s

    warmup_s = sum(run(key) for key in calls)
    rounds = 0
    while rounds < num_rounds and in_time(rounds):
        for key, one in calls.items():
            late = taken[key] and perf_counter() - start > 2 * budget_s
            if rounds % one.every == 0 and not late:
                time_in_a_row(key)
        rounds += 1
    for turn in range(MAX_REPEATS * rounds):
        noisy = [key for key, seconds in taken.items() if _spread(seconds) > NOISY_SPREAD]
        if not noisy or not in_time(LEAST_ROUNDS + turn):
            break
        for key in noisy:
            if turn % calls[key].every == 0:
                time_in_a_row(key)
    timings = tuple(
        Timing(*key, median(seconds), _spread(seconds) * median(seconds))
        for key, seconds in taken.items()
    )
    return Measured(timings, warmup_s, rounds, busy.share(), rounds == num_rounds)


def _spread(seconds: Sequence[float]) -> float:
    """Interquartile range as a share of the median; 0 of a single value."""
    if len(seconds) < 2:
        return 0.0
    low, middle, high = quantiles(seconds, n=4, method="inclusive")
    return (high - low) / middle
