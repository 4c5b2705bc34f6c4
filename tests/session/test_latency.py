"""The latency table as a function of the row count."""

from __future__ import annotations

import pytest

from yggrt.core.errors import BundleError
from yggrt.core.schema import LatencyPoint
from yggrt.latency import verify_latency


def point(graph: str, rows: int, context: int, seconds: float) -> LatencyPoint:
    return LatencyPoint(graph=graph, rows=rows, context=context, median_s=seconds, spread_s=0.0)


def test_means_over_contexts_and_lines_between_row_counts() -> None:
    latency = verify_latency(
        [
            *(point("one", 1, 64, 2.0), point("one", 1, 512, 4.0)),
            *(point("many", 5, 64, 5.0), point("many", 5, 512, 9.0)),
            point("prefill", 64, 0, 99.0),
        ],
        ["one", "many"],
    )
    assert [latency(rows) for rows in (1, 2, 3, 5, 9)] == [3.0, 4.0, 5.0, 7.0, 7.0]


def test_an_empty_table_is_refused() -> None:
    with pytest.raises(BundleError, match="no point of a verify or draft graph"):
        verify_latency([point("prefill", 64, 0, 1.0)], ["one"])
