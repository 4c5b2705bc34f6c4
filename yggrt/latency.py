"""Seconds of a verify pass by its row count, from the table measured when the bundle was built."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from statistics import fmean

from yggrt.core.errors import BundleError
from yggrt.core.schema import LatencyPoint, Manifest


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
            "the bundle's latency table has no point of a verify or draft graph",
            "build the bundle again",
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


def draft_latency(manifest: Manifest) -> Callable[[int], float]:
    """A function from the nodes of a growth step to seconds, those of the graph that holds them; 0
    where no model drafts. Raises BundleError for graphs that were not measured.
    """
    graphs = [graph for graph in manifest.graphs if graph.kind == "draft"]
    if not graphs:
        return lambda num_nodes: 0.0
    return steps_latency(manifest.latency, {graph.name: graph.max_rows for graph in graphs})


def steps_latency(
    points: Iterable[LatencyPoint], widths: Mapping[str, int]
) -> Callable[[int], float]:
    """As `draft_latency`; `widths` has the rows of every draft graph by its name."""
    by_width = verify_latency(points, widths)
    ordered = sorted(widths.values())

    def seconds(num_nodes: int) -> float:
        # More nodes than the widest graph holds run in several calls.
        calls, rest = divmod(num_nodes, ordered[-1])
        width = next((width for width in ordered if width >= rest), ordered[-1])
        return calls * by_width(ordered[-1]) + (by_width(width) if rest else 0.0)

    return seconds
