"""Static tree: a fixed list of parents, filled with the drafter's guesses in rank order."""

from __future__ import annotations

from yggrt.core.schema import TreeSpec
from yggrt.core.tree import TokenTree
from yggrt.drafters import Drafter


def grow(root_token: int, spec: TreeSpec, drafter: Drafter) -> TokenTree:
    """The shape `spec.parents`, without the nodes that the drafter has no guess for and their
    descendants."""
    tokens, parents = [root_token], [-1]
    scores: list[float] = [1]
    paths: list[tuple[int, ...]] = [()]
    row_of = {0: 0}  # node of the spec -> row of the tree, for nodes that got a token
    guesses: dict[int, list[tuple[int, float]]] = {}
    for node, parent_node in enumerate(spec.parents, start=1):
        parent = row_of.get(parent_node)
        if parent is None:
            continue
        if parent_node not in guesses:
            num_children = spec.parents.count(parent_node)
            guesses[parent_node] = drafter.candidates(paths[parent], num_children)[::-1]
        if not guesses[parent_node]:
            continue
        token, probability = guesses[parent_node].pop()
        row_of[node] = len(tokens)
        tokens.append(token)
        parents.append(parent)
        scores.append(scores[parent] * probability)
        paths.append((*paths[parent], token))
    return TokenTree(tuple(tokens), tuple(parents), tuple(scores))
