"""Lookahead: the drafter's window and the n-grams of its pool, whole and in every pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from yggrt.core.errors import RequestError
from yggrt.core.schema import TreeSpec
from yggrt.core.search import window_trees
from yggrt.core.spec import Values, size
from yggrt.core.tree import TokenTree
from yggrt.drafters import Drafter
from yggrt.drafters.lookahead import LookaheadDrafter
from yggrt.policies import Keys, Policy, Room


class Lookahead(Policy):
    """At most 1 + depth * (width + children) rows: a window of `width` columns and `depth` levels,
    `children` guesses. Grows nothing for a drafter without a window, with RequestError."""

    keys: ClassVar[Keys] = {"window": size(), "ngram": size(2), "guesses": size()}
    example = "lookahead:window=8,ngram=4,guesses=8"

    def read(self, values: Values) -> TreeSpec:
        width, levels, guesses = values["window"], values["ngram"] - 1, values["guesses"]
        rows = 1 + levels * (width + guesses)
        return TreeSpec(
            policy="lookahead", width=width, depth=levels, children=guesses, verify=rows
        )

    def write(self, spec: TreeSpec) -> Mapping[str, object]:
        return {"window": spec.width, "ngram": spec.depth + 1, "guesses": spec.children}

    def steps(self, spec: TreeSpec) -> tuple[int, ...]:
        return ()

    def grow(
        self, root_token: int, spec: TreeSpec, drafter: Drafter, min_score: float = 0.0
    ) -> TokenTree:
        if not isinstance(drafter, LookaheadDrafter):
            raise RequestError(
                "the tree policy lookahead wants the drafter of that name, the bundle has another",
                "run it with --drafter lookahead, or build with that",
            )
        return drafter.tree(spec.width, spec.depth, spec.children)

    def settings(self, room: Room) -> list[TreeSpec]:
        return window_trees(room.row_counts)[1:]
