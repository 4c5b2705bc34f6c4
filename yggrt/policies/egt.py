"""Equal-growth tree: every draft step adds the same number of nodes, wherever they hang.

Guan et al., "Yggdrasil" (arXiv 2512.23858); the frontier rule and the tie-breaks are this
project's reading of it. A pool holds the children of expanded nodes. Each of `depth` steps moves
the `width` best of them, by path probability, into the tree and expands those. With the global
frontier the pool keeps what was passed over; with the level frontier it holds the newest nodes'
children alone.
"""

from __future__ import annotations

from yggrt.core.schema import TreeSpec
from yggrt.core.tree import TokenTree
from yggrt.drafters import Drafter


def grow(root_token: int, spec: TreeSpec, drafter: Drafter, min_score: float = 0.0) -> TokenTree:
    """A tree of `spec.depth` times `spec.width` nodes; fewer where the pool runs dry.

    No node has a path probability below `min_score`, and so none is expanded.
    """
    tokens, parents = [root_token], [-1]
    scores: list[float] = [1]
    paths: list[tuple[int, ...]] = [()]
    # Ordered by path probability, then the parent's row, then the token id.
    pool: list[tuple[float, int, int]] = []
    newest = [0]
    for _ in range(spec.depth):
        if spec.frontier == "level":
            pool.clear()
        children = drafter.candidates([paths[row] for row in newest], spec.children)
        for row, found in zip(newest, children, strict=True):
            parent_score = scores[row]
            for token, probability in found:
                score = parent_score * probability
                if score < min_score:
                    break
                pool.append((-score, row, token))
        if not pool:
            break
        pool.sort()
        newest = []
        for negative_score, parent, token in pool[: spec.width]:
            newest.append(len(tokens))
            tokens.append(token)
            parents.append(parent)
            scores.append(-negative_score)
            paths.append((*paths[parent], token))
        del pool[: spec.width]
    return TokenTree(tuple(tokens), tuple(parents), tuple(scores))
