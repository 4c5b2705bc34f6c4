"""Seconds of a pass by graph kind, row count and context length, from a table of measured points.

The one place that interpolates: engine, search, `tune` and `doctor` all ask here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from yggrt.core.curve import Jump, jumps, monotone_grid
from yggrt.core.errors import BundleError
from yggrt.core.schema import GraphSpec, LatencyPoint

GraphKind: TypeAlias = Literal["verify", "prefill", "draft", "draft_prefill"]

Axis: TypeAlias = Literal["rows", "context"]


@dataclass(frozen=True, slots=True)
class Surface:
    """Seconds at measured row counts and contexts, both ascending: `seconds[row][context]`, as
    measured and made monotone."""

    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    measured: tuple[tuple[float, ...], ...]
    fitted: tuple[tuple[float, ...], ...]

    def __call__(self, rows: int, context: int) -> float:
        """Linear between measured row counts and contexts; beyond them the nearest stands."""
        return _between(
            self.rows,
            rows,
            lambda i: _between(self.contexts, context, self.fitted[i].__getitem__),
        )

    def jumps(self) -> tuple[tuple[Axis, int, Jump], ...]:
        """(axis, fixed coordinate on the other axis, jump): along the rows at each context, along
        contexts at each row count."""
        found: list[tuple[Axis, int, Jump]] = []
        for i, context in enumerate(self.contexts):
            column = [row[i] for row in self.measured]
            found += [("rows", context, j) for j in jumps(self.rows, column, per_row=True)]
        for rows, row in zip(self.rows, self.measured, strict=True):
            found += [("context", rows, jump) for jump in jumps(self.contexts, row)]
        return tuple(found)


class LatencyTable:
    """The surfaces of a bundle's graphs by kind.

    Called with a row count and a context length it gives the seconds of a verify pass.
    """

    def __init__(self, points: Iterable[LatencyPoint], kinds: Mapping[str, GraphKind]) -> None:
        """`kinds`: the kind of each graph by name; points of other graphs are left out. Raises
        BundleError without a single point of a verify graph."""
        by_kind: dict[GraphKind, dict[int, dict[int, float]]] = {}
        for point in points:
            if point.graph in kinds:
                rows = by_kind.setdefault(kinds[point.graph], {})
                rows.setdefault(point.rows, {})[point.context] = point.median_s
        if "verify" not in by_kind:
            raise BundleError(
                "the bundle's latency table has no point of a verify graph",
                "build the bundle again",
            )
        self.surfaces = {kind: _surface(rows) for kind, rows in by_kind.items()}
        self._verify = self.surfaces["verify"]

    @classmethod
    def of(cls, points: Iterable[LatencyPoint], graphs: Iterable[GraphSpec]) -> LatencyTable:
        return cls(points, {graph.name: graph.kind for graph in graphs})

    def __call__(self, rows: int, context: int) -> float:
        return self._verify(rows, context)

    def draft_step(self, num_nodes: int, context: int) -> float:
        """Seconds of the growth step that runs `num_nodes` nodes, in the narrowest draft graph
        that holds them; more nodes than the widest holds run in several calls. 0 without draft
        graphs."""
        surface = self.surfaces.get("draft")
        if surface is None:
            return 0.0
        calls, rest = divmod(num_nodes, surface.rows[-1])
        seconds = calls * surface(surface.rows[-1], context)
        if rest:
            seconds += surface(min(rows for rows in surface.rows if rows >= rest), context)
        return seconds


def _surface(table: dict[int, dict[int, float]]) -> Surface:
    rows = sorted(table)
    contexts = sorted({context for row in table.values() for context in row})
    # A table may lack a point: the row's own neighbours stand for it.
    measured = []
    for num in rows:
        known = sorted(table[num])
        values = [table[num][context] for context in known]
        measured.append(
            tuple(_between(known, context, values.__getitem__) for context in contexts)
        )
    return Surface(
        tuple(rows),
        tuple(contexts),
        tuple(measured),
        tuple(tuple(row) for row in monotone_grid(measured)),
    )


def _between(abscissas: Sequence[int], at: int, value: Callable[[int], float]) -> float:
    """`value` of an index, linear between `abscissas`, constant beyond them."""
    right = bisect_right(abscissas, at)
    if right == 0:
        return value(0)
    left = right - 1
    if right == len(abscissas) or abscissas[left] == at:
        return value(left)
    share = (at - abscissas[left]) / (abscissas[right] - abscissas[left])
    low = value(left)
    return low + share * (value(right) - low)
