"""Trees whose shape is fixed before decoding: Sequoia's, SpecInfer's and Medusa's. Pure.

A tree is its parents: `parents[i]` is the row below which node i + 1 hangs, row 0 being the root,
as in the tree spec `static:parents=`. A node's rank counts its parent's children before it.
Arithmetic only, so exact numbers (fractions.Fraction) give exact results.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias

Parents: TypeAlias = tuple[int, ...]
# P(child of this rank is accepted), given that its parent was.
RankAcceptance: TypeAlias = Sequence[float]


def ranks(parents: Parents) -> list[int]:
    """The rank of each node among its siblings."""
    seen: Counter[int] = Counter()
    found = []
    for parent in parents:
        found.append(seen[parent])
        seen[parent] += 1
    return found


def tree_tokens(parents: Parents, acceptance: RankAcceptance) -> float:
    """Expected tokens of a pass over the tree: 1 for the bonus and the path products of all
    nodes; ranks beyond `acceptance` are never accepted."""
    values: list[float] = [1]
    for parent, rank in zip(parents, ranks(parents), strict=True):
        edge = acceptance[rank] if rank < len(acceptance) else 0
        values.append(values[parent] * edge)
    return sum(values)


def sequoia_tree(
    acceptance: RankAcceptance, num_rows: int, max_levels: int | None = None
) -> tuple[float, Parents]:
    """Expected tokens of the best tree of `num_rows` rows and at most `max_levels` levels, root
    included in both, and the tree.

    Chen et al., "Sequoia" (arXiv 2402.12374), the dynamic program
    T(n, l, b) = max over 1 <= m < n of T(n - m, l, b - 1) + p_b max over b' of T(m, l - 1, b'):
    n rows, l levels, b children of the root, the last of which has m rows. Children are taken in
    the order of their ranks, so acceptance may rise with the rank. Raises ValueError where no such
    tree exists.
    """
    levels = num_rows if max_levels is None else min(max_levels, num_rows)
    if num_rows < 1 or levels < 1:
        raise ValueError(f"{num_rows} rows on {max_levels} levels, wanted at least 1 of both")
    nothing = (-1.0, 0)

    @cache
    def best(rows: int, level: int) -> tuple[float, int]:
        """Expected tokens and the number of children."""
        options = [(value(rows, level, b)[0], -b) for b in range(min(rows, len(acceptance) + 1))]
        tokens, b = max(options)
        return tokens, -b

    @cache
    def value(rows: int, level: int, num_children: int) -> tuple[float, int]:
        """Expected tokens and the rows of the last child's subtree."""
        if num_children == 0:
            return (1, 0) if rows == 1 else nothing
        if level == 1:
            return nothing
        options = [nothing]
        for last in range(1, rows):
            before = value(rows - last, level, num_children - 1)[0]
            below = best(last, level - 1)[0]
            if before > 0 and below > 0:
                options.append((before + acceptance[num_children - 1] * below, last))
        return max(options, key=lambda option: (option[0], -option[1]))

    tokens, _ = best(num_rows, levels)
    if tokens < 0:
        raise ValueError(
            f"no tree of {num_rows} rows on {max_levels} levels with {len(acceptance)} ranks"
        )
    parents: list[int] = []

    def write(row: int, rows: int, level: int) -> None:
        num_children = best(rows, level)[1]
        sizes = []
        for b in range(num_children, 0, -1):
            last = value(rows, level, b)[1]
            sizes.append(last)
            rows -= last
        for size in reversed(sizes):
            parents.append(row)
            write(len(parents), size, level - 1)

    write(0, num_rows, levels)
    return tokens, tuple(parents)


def best_sequoia_tree(
    acceptance: RankAcceptance,
    max_rows: int,
    max_levels: int,
    seconds: Callable[[int, int], float],
) -> tuple[float, Parents]:
    """Tokens per second of the fastest Sequoia tree, and the tree: `seconds(rows, depth)` is the
    time of a pass. The smaller tree on a tie."""
    found: tuple[float, Parents] | None = None
    for rows in range(1, max_rows + 1):
        for levels in range(1, min(rows, max_levels) + 1):
            try:
                tokens, parents = sequoia_tree(acceptance, rows, levels)
            except ValueError:
                continue
            rate = tokens / seconds(rows, levels - 1)
            if found is None or rate > found[0]:
                found = (rate, parents)
    assert found is not None, "a root alone is always a tree"
    return found


def specinfer_tree(expansion: Sequence[int]) -> Parents:
    """Every leaf of step i gets `expansion[i]` children (Miao et al., "SpecInfer", arXiv
    2305.09781)."""
    parents: list[int] = []
    leaves = [0]
    for width in expansion:
        grown = []
        for leaf in leaves:
            for _ in range(width):
                parents.append(leaf)
                grown.append(len(parents))
        leaves = grown
    return tuple(parents)


def medusa_order(
    head_acceptance: Sequence[RankAcceptance], num_nodes: int
) -> list[tuple[tuple[int, ...], float]]:
    """The best `num_nodes` nodes as rank paths with their values, best first, if rank i of head d
    is right with probability `head_acceptance[d][i]` whatever the other heads say (Cai et al.,
    "Medusa", arXiv 2401.10774). On a tie the shorter, then the smaller path."""
    pool: list[tuple[float, int, tuple[int, ...]]] = []

    def push(path: tuple[int, ...], value: float) -> None:
        if len(path) < len(head_acceptance):
            for rank, edge in enumerate(head_acceptance[len(path)]):
                heapq.heappush(pool, (-value * edge, len(path) + 1, (*path, rank)))

    push((), 1)
    order: list[tuple[tuple[int, ...], float]] = []
    while pool and len(order) < num_nodes:
        negative, _, path = heapq.heappop(pool)
        order.append((path, -negative))
        push(path, -negative)
    return order


def medusa_tree(head_acceptance: Sequence[RankAcceptance], num_nodes: int) -> Parents:
    """The tree of the nodes of `medusa_order`; a head's acceptance must not rise with the rank."""
    rows: dict[tuple[int, ...], int] = {(): 0}
    parents = []
    for path, _ in medusa_order(head_acceptance, num_nodes):
        parents.append(rows[path[:-1]])
        rows[path] = len(parents)
    return tuple(parents)
