"""Level trees with rerank: EAGLE-2's way.

Li et al., "EAGLE-2" (arXiv 2406.16858), section 4. Each level's `width` best nodes by path
probability are expanded to `width` children each; all of these are candidates, and the best
`verify` rows of the whole tree are verified.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from yggrt.core.schema import TreeSpec
from yggrt.core.search import DEPTHS, WIDTHS
from yggrt.core.spec import Values, size
from yggrt.core.tree import TokenTree, prune
from yggrt.drafters import Drafter
from yggrt.policies import Keys, Policy, Room, egt


class Level(Policy):
    """At most 1 + width + (depth - 1) * width^2 candidates, of which `verify` are kept."""

    keys: ClassVar[Keys] = {"width": size(), "depth": size(), "verify": size(2)}
    example = "level:width=4,depth=4,verify=16"

    def read(self, values: Values) -> TreeSpec:
        depth, width = values["depth"], values["width"]
        return _spec(width, depth, values.get("verify", width * depth + 1))

    def write(self, spec: TreeSpec) -> Mapping[str, object]:
        return {key: getattr(spec, key) for key in self.keys}

    def steps(self, spec: TreeSpec) -> tuple[int, ...]:
        return egt.growth_steps(spec)

    def grow(
        self, root_token: int, spec: TreeSpec, drafter: Drafter, min_score: float = 0.0
    ) -> TokenTree:
        tree = egt.grow(root_token, spec, drafter, min_score, keep_leaves=True)
        return prune(tree, spec.verify)

    def settings(self, room: Room) -> list[TreeSpec]:
        return [
            _spec(width, depth, rows)
            for width in sorted({*WIDTHS, *room.widths} - {1})
            for depth in DEPTHS
            for rows in room.row_counts
            if 1 < rows <= 1 + width + (depth - 1) * width**2
        ]


def _spec(width: int, depth: int, verify: int) -> TreeSpec:
    return TreeSpec(
        policy="level",
        width=width,
        depth=depth,
        children=width,
        verify=verify,
        frontier="level",
    )
