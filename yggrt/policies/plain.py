"""No draft: the root alone."""

from __future__ import annotations

from collections.abc import Mapping

from yggrt.core.schema import TreeSpec
from yggrt.core.spec import Values
from yggrt.core.tree import TokenTree
from yggrt.drafters import Drafter
from yggrt.policies import Policy, Room


class Plain(Policy):
    """One row a pass; the drafter is not asked."""

    example = "plain"

    def read(self, values: Values) -> TreeSpec:
        return TreeSpec(policy="plain")

    def write(self, spec: TreeSpec) -> Mapping[str, object]:
        return {}

    def steps(self, spec: TreeSpec) -> tuple[int, ...]:
        return ()

    def grow(
        self, root_token: int, spec: TreeSpec, drafter: Drafter, min_score: float = 0.0
    ) -> TokenTree:
        return TokenTree.single(root_token)

    def settings(self, room: Room) -> list[TreeSpec]:
        return [TreeSpec(policy="plain")]
