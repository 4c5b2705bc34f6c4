"""Sequence: a chain of the drafter's best guesses."""

from __future__ import annotations

from yggrt.core.schema import TreeSpec
from yggrt.core.tree import TokenTree
from yggrt.drafters import Drafter


def grow(root_token: int, spec: TreeSpec, drafter: Drafter, min_score: float = 0.0) -> TokenTree:
    """A chain of `spec.depth` nodes, shorter where the drafter has no more guesses or the next
    node's path probability is below `min_score`."""
    tokens = [root_token]
    scores: list[float] = [1]
    while len(tokens) <= spec.depth:
        [best] = drafter.candidates([tokens[1:]], 1)
        if not best:
            break
        token, probability = best[0]
        score = scores[-1] * probability
        if score < min_score:
            break
        tokens.append(token)
        scores.append(score)
    return TokenTree(tuple(tokens), tuple(range(-1, len(tokens) - 1)), tuple(scores))
