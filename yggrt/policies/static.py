"""Static tree: a fixed list of parents, filled with the drafter's guesses in rank order."""

from __future__ import annotations

from collections import Counter

from yggrt.core.schema import TreeSpec
from yggrt.core.tree import TokenTree
from yggrt.drafters import Candidate, Drafter


def grow(root_token: int, spec: TreeSpec, drafter: Drafter, min_score: float = 0.0) -> TokenTree:
    """The shape `spec.parents`, without the nodes that the drafter has no guess for or whose path
    probability is below `min_score`, and their descendants."""
    num_children = Counter(spec.parents)
    paths: dict[int, tuple[int, ...]] = {0: ()}  # of the spec's nodes that got a token
    chosen: dict[int, Candidate] = {0: (root_token, 1)}
    level = [0]
    while level:
        asked = [node for node in level if node in num_children]
        level = []
        most = max((num_children[node] for node in asked), default=0)
        found = drafter.candidates([paths[node] for node in asked], most) if asked else []
        for parent, guesses in zip(asked, found, strict=True):
            nodes = [node for node, p in enumerate(spec.parents, start=1) if p == parent]
            for node, (token, probability) in zip(nodes, guesses, strict=False):
                score = chosen[parent][1] * probability
                if score < min_score:
                    break
                paths[node] = (*paths[parent], token)
                chosen[node] = (token, score)
                level.append(node)
    nodes = sorted(chosen)
    row_of = {node: row for row, node in enumerate(nodes)}
    return TokenTree(
        tuple(chosen[node][0] for node in nodes),
        (-1, *(row_of[spec.parents[node - 1]] for node in nodes[1:])),
        tuple(chosen[node][1] for node in nodes),
    )
