"""No draft: the root alone."""

from __future__ import annotations

from yggrt.core.schema import TreeSpec
from yggrt.core.tree import TokenTree
from yggrt.drafters import Drafter


def grow(root_token: int, spec: TreeSpec, drafter: Drafter, min_score: float = 0.0) -> TokenTree:
    """A tree of one row; the drafter is not asked."""
    return TokenTree.single(root_token)
