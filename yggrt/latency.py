"""Seconds of a verify pass by its row count, from the table measured when the bundle was built."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from statistics import fmean

from yggrt.core.errors import BundleError
from yggrt.core.schema import LatencyPoint


def verify_latency(
    points: Iterable[LatencyPoint], verify_graphs: Collection[str]
) -> Callable[[int], float]:
    """A function from row count to seconds: the mean over measured contexts, linear between
    measured row counts.

    Outside the measured row counts the nearest one stands. Raises BundleError without a single
    point.
    """
    medians: dict[int, list[float]] = defaultdict(list)
    for point in points:
        if point.graph in verify_graphs:
            medians[point.rows].append(point.median_s)
    if not medians:
        raise BundleError(
            "the bundle's latency table has no point of a verify graph", "build the bundle again"
        )
    rows = sorted(medians)
    seconds = [fmean(medians[num]) for num in rows]

    def latency(num_rows: int) -> float:
        right = bisect_left(rows, num_rows)
        if right == len(rows):
            return seconds[-1]
        if right == 0 or rows[right] == num_rows:
            return seconds[right]
        left = right - 1
        share = (num_rows - rows[left]) / (rows[right] - rows[left])
        return seconds[left] + share * (seconds[right] - seconds[left])

    return latency
