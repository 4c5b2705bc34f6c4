"""Medusa's sparse trees: the nodes with the largest products of accuracies.

Cai et al., "Medusa" (arXiv 2401.10774), section 2.3.3: rank i of depth d is taken to be right with
its measured share whatever was drafted above it, and nodes are added best first. Any drafter's
candidates fill the tree.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import ClassVar

from yggrt.core.schema import TreeSpec
from yggrt.core.spec import Values, size
from yggrt.core.static_trees import medusa_order, path_parents
from yggrt.policies import Keys, Measured, Room
from yggrt.policies.static import FixedShape, with_shape


class Medusa(FixedShape):
    """`nodes` drafted nodes, fewer where fewer have a chance."""

    keys: ClassVar[Keys] = {"nodes": size()}
    example = "medusa:nodes=15"

    def read(self, values: Values) -> TreeSpec:
        return _sized(values["nodes"])

    def write(self, spec: TreeSpec) -> Mapping[str, object]:
        return dict(spec.options)

    def shape(self, spec: TreeSpec, measured: Measured) -> TreeSpec:
        # A rank that was right more often than a better one was so by chance; a node would stand
        # before its elder sibling.
        falling = [tuple(accumulate(row, min)) for row in measured.ranks.shares]
        order = [path for path, value in medusa_order(falling, spec.verify - 1) if value > 0]
        if not order:
            raise ValueError("the bundle says nothing of acceptance by rank")
        return with_shape(spec, path_parents(order))

    def settings(self, room: Room) -> list[TreeSpec]:
        return [_sized(rows - 1) for rows in room.row_counts if rows > 1]


def _sized(nodes: int) -> TreeSpec:
    return TreeSpec(policy="medusa", verify=nodes + 1, options=(("nodes", str(nodes)),))
