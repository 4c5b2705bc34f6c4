"""Sequoia's trees: the shape with most expected tokens under measured acceptance by rank.

Chen et al., "Sequoia" (arXiv 2402.12374), sections 4.1 and 4.3: the dynamic program for a size and
a number of levels, and the choice of both by what a pass of them takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from yggrt.core.schema import TreeSpec
from yggrt.core.spec import Values, size
from yggrt.core.static_trees import Parents, fastest_sequoia_tree
from yggrt.policies import Keys, Measured, Room
from yggrt.policies.static import FixedShape, inner_nodes, with_shape


class Sequoia(FixedShape):
    """`rows` and `levels`, the root's included in both; what is left out is chosen by measured
    times, rows among those of the graphs."""

    keys: ClassVar[Keys] = {"rows": size(2), "levels": size(2)}
    example = "sequoia:rows=16"

    def read(self, values: Values) -> TreeSpec:
        rows, levels = values.get("rows", 2), values.get("levels")
        if levels is not None and "rows" in values and levels > rows:
            raise ValueError(f"{rows} rows have no {levels} levels")
        return TreeSpec(
            policy="sequoia",
            depth=0 if levels is None else levels - 1,
            verify=rows,
            options=tuple((key, str(value)) for key, value in values.items()),
        )

    def write(self, spec: TreeSpec) -> Mapping[str, object]:
        return dict(spec.options)

    def shape(self, spec: TreeSpec, measured: Measured) -> TreeSpec:
        asked = {key: int(value) for key, value in spec.options}
        acceptance = measured.ranks.pooled
        if not acceptance:
            raise ValueError("the bundle says nothing of acceptance by rank")
        counts = [count for count in measured.row_counts if count > 1]
        rows = [asked["rows"]] if "rows" in asked else counts
        if not rows or rows[0] > measured.row_counts[-1]:
            # The engine says how many rows there are.
            return spec
        deepest = len(measured.ranks.shares) + 1
        levels = [asked["levels"]] if "levels" in asked else range(2, deepest + 1)

        def seconds(parents: Parents) -> float:
            steps = inner_nodes(parents)
            too_many = sum(steps) > measured.max_expanded
            return float("inf") if too_many else measured.seconds(len(parents) + 1, steps)

        _, parents = fastest_sequoia_tree(acceptance, rows, levels, seconds)
        return with_shape(spec, parents)

    def settings(self, room: Room) -> list[TreeSpec]:
        chosen = TreeSpec(policy="sequoia", verify=2)
        sized = [
            TreeSpec(policy="sequoia", verify=rows, options=(("rows", str(rows)),))
            for rows in room.row_counts
            if rows > 1
        ]
        return [chosen, *sized] if sized else []
