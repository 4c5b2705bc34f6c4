"""Lookahead: the drafter's window and the n-grams of its pool, whole and in every pass."""

from __future__ import annotations

from yggrt.core.errors import RequestError
from yggrt.core.schema import TreeSpec
from yggrt.core.tree import TokenTree
from yggrt.drafters import Drafter
from yggrt.drafters.lookahead import LookaheadDrafter


def grow(root_token: int, spec: TreeSpec, drafter: Drafter, min_score: float = 0.0) -> TokenTree:
    """At most 1 + depth * (width + children) rows: a window of `width` columns and `depth` levels,
    `children` guesses. Raises RequestError for a drafter without a window.
    """
    if not isinstance(drafter, LookaheadDrafter):
        raise RequestError(
            "the tree policy lookahead wants the drafter of that name, this bundle has another",
            "build one with --drafter lookahead",
        )
    return drafter.tree(spec.width, spec.depth, spec.children)
