"""Times of a pass in two bundles, where both measured them."""

from __future__ import annotations

from statistics import median
from typing import Any

from yggc.diff.side import Side
from yggrt.core.schema import Manifest

Point = tuple[str, int, int]


def curves(old: Side, new: Side, *, comparable: bool) -> dict[str, Any]:
    """`points`: kind of graph, rows, context, milliseconds in both and, where times of the two are
    `comparable`, the new over the old; `ratios`: their medians over contexts, by kind and rows;
    `only_old`, `only_new`: points that one of them alone has."""
    before, after = _times(old.manifest), _times(new.manifest)
    points = [
        {
            "kind": kind,
            "rows": rows,
            "context": context,
            "ms": [1e3 * before[kind, rows, context], 1e3 * after[kind, rows, context]],
            "ratio": after[kind, rows, context] / before[kind, rows, context]
            if comparable
            else None,
        }
        for kind, rows, context in before
        if (kind, rows, context) in after
    ]
    return {
        "points": points,
        "ratios": _ratios(points) if comparable else [],
        "only_old": [list(one) for one in before if one not in after],
        "only_new": [list(one) for one in after if one not in before],
    }


def _times(manifest: Manifest) -> dict[Point, float]:
    kinds = {graph.name: graph.kind for graph in manifest.graphs}
    found = {
        (kinds[point.graph], point.rows, point.context): point.median_s
        for point in manifest.latency
        if point.graph in kinds
    }
    return dict(sorted(found.items()))


def _ratios(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_rows: dict[tuple[str, int], list[float]] = {}
    for one in points:
        by_rows.setdefault((one["kind"], one["rows"]), []).append(one["ratio"])
    return [
        {"kind": kind, "rows": rows, "ratio": median(found)}
        for (kind, rows), found in by_rows.items()
    ]
