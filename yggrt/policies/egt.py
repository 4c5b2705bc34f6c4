"""Equal-growth tree: every draft step adds the same number of nodes, wherever they hang.

Guan et al., "Yggdrasil" (arXiv 2512.23858); the frontier rule and the tie-breaks are this
project's reading of it. A pool holds the children of expanded nodes. Each of `depth` steps moves
the `width` best of them, by path probability, into the tree and expands those. With the global
frontier the pool keeps what was passed over; with the level frontier it holds the newest nodes'
children alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from yggrt.core.schema import TreeSpec
from yggrt.core.search import WIDTHS, first_trees
from yggrt.core.spec import Values, choice, size
from yggrt.core.tree import TokenTree
from yggrt.drafters import Drafter
from yggrt.policies import Keys, Policy, Room


def grow(
    root_token: int,
    spec: TreeSpec,
    drafter: Drafter,
    min_score: float = 0.0,
    *,
    keep_leaves: bool = False,
) -> TokenTree:
    """A tree of `spec.depth` times `spec.width` nodes; fewer where the pool runs dry.

    No node has a path probability below `min_score`, and so none is expanded. With `keep_leaves`
    what was passed over for good stands behind them, unexpanded.
    """
    tokens, parents = [root_token], [-1]
    scores: list[float] = [1]
    paths: list[tuple[int, ...]] = [()]
    # Ordered by path probability, then the parent's row, then the token id.
    pool: list[tuple[float, int, int]] = []
    leaves: list[tuple[float, int, int]] = []
    newest = [0]
    for _ in range(spec.depth):
        if spec.frontier == "level":
            leaves += pool
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
    if keep_leaves:
        for negative_score, parent, token in leaves + pool:
            tokens.append(token)
            parents.append(parent)
            scores.append(-negative_score)
    return TokenTree(tuple(tokens), tuple(parents), tuple(scores))


def growth_steps(spec: TreeSpec) -> tuple[int, ...]:
    """The root, then `width` nodes for every level but the last."""
    return (1, *(spec.width,) * (spec.depth - 1))


class EqualGrowth(Policy):
    """`width` nodes more with each of `depth` steps, the best of `children` candidates a node."""

    keys: ClassVar[Keys] = {
        "width": size(),
        "depth": size(),
        "children": size(),
        "verify": size(2),
        "frontier": choice("global", "level"),
    }
    example = "egt:width=4,depth=4,children=8,verify=16,frontier=global"

    def read(self, values: Values) -> TreeSpec:
        depth, width = values["depth"], values["width"]
        return TreeSpec(
            policy="egt",
            width=width,
            depth=depth,
            children=values.get("children", 2 * width),
            verify=values.get("verify", width * depth + 1),
            frontier=values.get("frontier", "global"),
        )

    def write(self, spec: TreeSpec) -> Mapping[str, object]:
        return {key: getattr(spec, key) for key in self.keys}

    def steps(self, spec: TreeSpec) -> tuple[int, ...]:
        return growth_steps(spec)

    def grow(
        self, root_token: int, spec: TreeSpec, drafter: Drafter, min_score: float = 0.0
    ) -> TokenTree:
        return grow(root_token, spec, drafter, min_score)

    def settings(self, room: Room) -> list[TreeSpec]:
        return first_trees((room.max_rows,), sorted({*WIDTHS, *room.widths}))
