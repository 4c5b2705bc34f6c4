"""Times compiled graphs as the engine calls them: the compiler's profile and the runtime's
measurements share it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median, quantiles
from time import perf_counter
from typing import NamedTuple

from yggrt.core.passes import DraftGraphs, Graphs
from yggrt.core.schema import GraphKind
from yggrt.core.tree import TokenTree

Key = tuple[GraphKind, int, int]


class Timing(NamedTuple):
    """Median and interquartile range of one pass over `rows` rows, in seconds."""

    kind: GraphKind
    rows: int
    context: int
    median_s: float
    spread_s: float


def time_graphs(
    graphs: Graphs,
    row_counts: Sequence[int],
    contexts: Sequence[int],
    num_rounds: int,
    on_pass: Callable[[], None] = lambda: None,
) -> list[Timing]:
    """Times a verify pass at each row count and full prefill passes, over prefixes of the given
    lengths.

    The calls take turns, so that a slow spell of the machine falls on all of them; the first round
    is warm-up. `on_pass` is called after every pass.
    """
    cache = graphs.new_cache()
    calls: dict[Key, Callable[[], object]] = {}
    for context in contexts:
        for rows in row_counts:
            tree = TokenTree((0,) * rows, tuple(range(-1, rows - 1)), (1.0,) * rows)
            calls["verify", rows, context] = partial(graphs.verify, cache, tree, context)
        for rows in graphs.prefill_buckets:
            prefill = partial(graphs.prefill, cache, (0,) * rows, context)
            calls["prefill", rows, context] = prefill
    return _time_in_turns(calls, num_rounds, on_pass)


def time_draft_graphs(
    graphs: DraftGraphs,
    contexts: Sequence[int],
    num_rounds: int,
    on_pass: Callable[[], None] = lambda: None,
) -> list[Timing]:
    """As `time_graphs`, for a drafter: the nodes of a growth step with the choice of their
    children, and prefill passes.
    """
    import torch

    from yggrt.drafters.lm import best_children

    cache = graphs.new_cache()
    calls: dict[Key, Callable[[], object]] = {}

    def grow(width: int, context: int) -> None:
        # The last nodes of the largest tree, each under the root alone.
        first = graphs.max_expanded - width if width > 1 else 0
        paths = [(0, first + i) if first + i else (0,) for i in range(width)]
        logits = graphs.draft(cache, [0] * width, paths, context)
        best_children(logits, torch.ones(width), 2 * graphs.widths[-1])

    for context in contexts:
        for width in graphs.widths:
            calls["draft", width, context] = partial(grow, width, context)
        for rows in graphs.prefill_buckets:
            prefill = partial(graphs.prefill, cache, (0,) * rows, context)
            calls["draft_prefill", rows, context] = prefill
    return _time_in_turns(calls, num_rounds, on_pass)


def _time_in_turns(
    calls: Mapping[Key, Callable[[], object]], num_rounds: int, on_pass: Callable[[], None]
) -> list[Timing]:
    seconds: dict[Key, list[float]] = {key: [] for key in calls}
    for turn in range(num_rounds + 1):
        for key, call in calls.items():
            start = perf_counter()
            call()
            if turn:
                seconds[key].append(perf_counter() - start)
            on_pass()
    timings = []
    for (kind, rows, context), taken in seconds.items():
        low, _, high = quantiles(taken, n=4) if len(taken) > 1 else (taken[0],) * 3
        timings.append(Timing(kind, rows, context, median(taken), high - low))
    return timings
