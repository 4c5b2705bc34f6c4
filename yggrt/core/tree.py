"""Token trees: what a drafter proposes and a verifier checks in one pass. Plain values, no device,
no models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from yggrt.core.static_trees import depths


@dataclass(frozen=True, slots=True)
class TokenTree:
    """A root (row 0, the last emitted token) and drafted nodes, parents before children.

    `parents[i]` is a row index below i, -1 for the root. `scores[i]` is the path probability of
    row i: the estimate that the verifier will accept every token from the root's child down to it;
    1 for the root, and never above the parent's. Raises ValueError for anything else.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    scores: tuple[float, ...]

    def __post_init__(self) -> None:
        num = len(self.tokens)
        if num == 0 or len(self.parents) != num or len(self.scores) != num:
            raise ValueError(
                f"a tree needs a root, and as many parents and scores as tokens: got "
                f"{num} tokens, {len(self.parents)} parents, {len(self.scores)} scores"
            )
        if self.parents[0] != -1 or self.scores[0] != 1:
            raise ValueError(
                f"the root has parent -1 and score 1, not {self.parents[0]} and {self.scores[0]}"
            )
        for row in range(1, num):
            parent = self.parents[row]
            if not 0 <= parent < row:
                raise ValueError(f"row {row} has parent {parent}, wanted a row in 0..{row - 1}")
            if not 0 <= self.scores[row] <= self.scores[parent]:
                raise ValueError(
                    f"row {row} has score {self.scores[row]}, wanted 0..{self.scores[parent]}"
                )

    @classmethod
    def single(cls, token: int) -> TokenTree:
        """The root alone: plain decoding."""
        return cls((token,), (-1,), (1.0,))

    @property
    def num_nodes(self) -> int:
        """Rows, the root included."""
        return len(self.tokens)

    @property
    def depths(self) -> tuple[int, ...]:
        """Edges from the root to each row; a row's position is the root's plus its depth."""
        return tuple(depths(self.parents[1:]))

    def token_paths(self) -> list[tuple[int, ...]]:
        """The tokens that lead to each row from the root, the root's left out."""
        paths: list[tuple[int, ...]] = [()]
        for token, parent in zip(self.tokens[1:], self.parents[1:], strict=True):
            paths.append((*paths[parent], token))
        return paths

    def ancestor_mask(self) -> list[list[bool]]:
        """[rows, rows]: whether row i may see row j, that is, j is i or an ancestor of i."""
        mask: list[list[bool]] = []
        for row, parent in enumerate(self.parents):
            seen = [False] * self.num_nodes if parent < 0 else mask[parent].copy()
            seen[row] = True
            mask.append(seen)
        return mask

    def path(self, row: int) -> tuple[int, ...]:
        """Rows from the root down to `row`, both included."""
        rows = []
        while row >= 0:
            rows.append(row)
            row = self.parents[row]
        return tuple(reversed(rows))

    def children(self, row: int) -> tuple[int, ...]:
        """Rows whose parent is `row`, in row order."""
        return tuple(i for i, parent in enumerate(self.parents) if parent == row)

    def keep(self, rows: list[int]) -> TokenTree:
        """The tree of the given rows, in ascending order; they hold row 0 and every ancestor of
        each of them."""
        new_row = {row: i for i, row in enumerate(rows)}
        new_row[-1] = -1
        return TokenTree(
            tuple(self.tokens[row] for row in rows),
            tuple(new_row[self.parents[row]] for row in rows),
            tuple(self.scores[row] for row in rows),
        )


def prune(tree: TokenTree, num_rows: int) -> TokenTree:
    """The `num_rows` best rows by path probability, the root first; the whole tree if it has no
    more than that.

    A child's probability is at most its parent's, so with ties broken towards smaller depth, then
    smaller row, the best rows hold all their ancestors, and no ancestor-closed set of that size
    has a larger sum.
    """
    if num_rows < 1:
        raise ValueError(f"a pruned tree keeps its root: wanted at least 1 row, got {num_rows}")
    if tree.num_nodes <= num_rows:
        return tree
    if num_rows == 1:
        return TokenTree.single(tree.tokens[0])
    order = zip([-score for score in tree.scores], tree.depths, range(tree.num_nodes), strict=True)
    return tree.keep(sorted([row for _, _, row in sorted(order)[:num_rows]]))


def clip_depth(tree: TokenTree, max_depth: int) -> TokenTree:
    """The rows at depth `max_depth` or less."""
    depths = tree.depths
    if max(depths) <= max_depth:
        return tree
    return tree.keep([row for row in range(tree.num_nodes) if depths[row] <= max_depth])


def join(one: TokenTree, other: TokenTree) -> TokenTree:
    """Both trees over one root, siblings of a token merged.

    An edge that both have is taken where either is right, 1 - (1 - a)(1 - b), as if they erred
    independently; siblings whose shares then exceed 1 are scaled down to it.
    """
    edges = [_edges(one), _edges(other)]
    tokens, parents = [one.tokens[0]], [-1]
    scores: list[float] = [1]
    # Rows of the two trees that a row of the new one stands for, -1 for none.
    sources = [(0, 0)]
    for row, pair in enumerate(sources):
        children: dict[int, list[tuple[int, float]]] = {}
        for side, source in enumerate(pair):
            for token, child, share in edges[side].get(source, ()):
                children.setdefault(token, [(-1, 0), (-1, 0)])[side] = (child, share)
        shares = [1 - (1 - a) * (1 - b) for (_, a), (_, b) in children.values()]
        total = max(1, sum(shares))
        for (token, found), share in zip(children.items(), shares, strict=True):
            tokens.append(token)
            parents.append(row)
            scores.append(scores[row] * share / total)
            sources.append((found[0][0], found[1][0]))
    return TokenTree(tuple(tokens), tuple(parents), tuple(scores))


def _edges(tree: TokenTree) -> dict[int, list[tuple[int, int, float]]]:
    """Row -> token, row and share of each child."""
    found: dict[int, list[tuple[int, int, float]]] = {}
    for row in range(1, tree.num_nodes):
        parent = tree.parents[row]
        above = tree.scores[parent]
        share = tree.scores[row] / above if above else 0
        found.setdefault(parent, []).append((tree.tokens[row], row, share))
    return found


def followed(tree: TokenTree, tokens: Sequence[int]) -> int:
    """How many of `tokens` the tree has one below the other from its root."""
    row = 0
    for depth, token in enumerate(tokens):
        child = next((c for c in tree.children(row) if tree.tokens[c] == token), None)
        if child is None:
            return depth
        row = child
    return len(tokens)
