"""The latency table as a function of row count and context."""

from __future__ import annotations

import pytest

from yggrt.core.errors import BundleError
from yggrt.core.schema import LatencyPoint
from yggrt.latency import GraphKind, LatencyTable
from yggrt.measure import TimedPass, describe_jump, spread_contexts, table_jumps, time_passes

KINDS: dict[str, GraphKind] = {
    "one": "verify",
    "many": "verify",
    "prefill": "prefill",
    "draft_1": "draft",
    "draft_4": "draft",
}


def point(graph: str, rows: int, context: int, seconds: float) -> LatencyPoint:
    return LatencyPoint(graph=graph, rows=rows, context=context, median_s=seconds, spread_s=0.0)


GRID = [
    *(point("one", 1, 64, 2.0), point("one", 1, 512, 4.0)),
    *(point("many", 5, 64, 6.0), point("many", 5, 512, 12.0)),
    point("prefill", 64, 0, 99.0),
]


def test_lines_between_row_counts_and_between_contexts() -> None:
    table = LatencyTable(GRID, KINDS)
    assert [table(rows, 64) for rows in (1, 2, 3, 5, 9)] == [2.0, 3.0, 4.0, 6.0, 6.0]
    assert [table(1, context) for context in (0, 64, 288, 512, 9999)] == [2.0, 2.0, 3.0, 4.0, 4.0]
    assert table(3, 288) == pytest.approx((2 + 4 + 6 + 12) / 4)


def test_measured_points_are_made_monotone() -> None:
    table = LatencyTable(
        [point("one", 1, 64, 3.0), point("one", 1, 512, 1.0), point("many", 5, 64, 2.0),
         point("many", 5, 512, 4.0)],
        KINDS,
    )  # fmt: skip
    seconds = [[table(rows, context) for context in (64, 512)] for rows in (1, 5)]
    assert seconds == [[1.75, 1.75], [2.5, 4.0]]


def test_a_point_that_was_not_measured_is_read_off_its_row() -> None:
    table = LatencyTable([*GRID, point("many", 9, 288, 20.0)], KINDS)
    assert table(9, 64) == table(9, 512) == 20.0
    assert table(5, 288) == pytest.approx(9.0)


def test_a_growth_step_runs_in_the_narrowest_graph_or_in_several_calls() -> None:
    table = LatencyTable(
        [*GRID, point("draft_1", 1, 64, 0.5), point("draft_4", 4, 64, 0.7)], KINDS
    )
    steps = [table.draft_step(num, 64) for num in (0, 1, 2, 4, 5, 11)]
    assert steps == pytest.approx([0.0, 0.5, 0.7, 0.7, 1.2, 2.1])
    assert LatencyTable(GRID, KINDS).draft_step(3, 64) == 0.0


def test_an_empty_table_is_refused() -> None:
    with pytest.raises(BundleError, match="no point of a verify graph"):
        LatencyTable([point("prefill", 64, 0, 1.0)], KINDS)


def test_jumps_say_where_they_are() -> None:
    table = LatencyTable(
        [point("many", rows, 64, s) for rows, s in ((1, 2.5), (4, 2.6), (8, 6.0), (16, 6.2))],
        KINDS,
    )
    [jump] = table_jumps(table)
    assert (jump.kind, jump.axis, jump.at, jump.lower, jump.upper) == ("verify", "rows", 64, 4, 8)
    line = describe_jump(jump)
    assert line.startswith("verify: from 4 to 8 rows (at context 64) a pass takes 2.31 times")


def test_contexts_reach_from_short_to_the_last_token() -> None:
    assert spread_contexts(2048) == [32, 256, 1024, 2047]
    assert spread_contexts(2) == [0, 1]


class Clocked:
    """A pass that counts its calls."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, context: int) -> None:
        self.calls.append(context)


def test_passes_take_turns_and_slow_kinds_fewer() -> None:
    often, seldom = Clocked(), Clocked()
    found = time_passes(
        [TimedPass("verify", 1, often), TimedPass("prefill", 64, seldom, 3, 0)], [3, 9], 6
    )
    assert found.is_complete
    assert [(t.kind, t.rows, t.context) for t in found.timings] == [
        ("verify", 1, 3), ("verify", 1, 9), ("prefill", 64, 3), ("prefill", 64, 9),
    ]  # fmt: skip
    # One warm-up, then three calls in each of six rounds; one in every third of them. Points that
    # disagree with themselves are called more often.
    assert len(often.calls) >= 2 * (1 + 3 * 6)
    assert len(seldom.calls) >= 2 * (1 + 2)
    assert often.calls[:8] == [3, 9, 3, 3, 3, 9, 9, 9]
    assert seldom.calls[:4] == [3, 9, 3, 9]
    assert all(t.median_s > 0 and t.spread_s >= 0 for t in found.timings)


def test_a_budget_ends_the_measuring_once_every_point_has_a_call() -> None:
    often = Clocked()
    found = time_passes([TimedPass("verify", 1, often)], [3, 7], 50, budget_s=0.0)
    assert not found.is_complete
    # A warm-up, and one round.
    assert often.calls == [3, 7, 3, 3, 3, 7, 7, 7]
    assert len(found.timings) == 2
