"""Fixed trees against numbers worked out by hand and against search over all trees."""

from __future__ import annotations

import heapq
import itertools
from fractions import Fraction as F

import pytest

from yggrt.core.static_trees import (
    depths,
    fastest_sequoia_tree,
    medusa_order,
    path_parents,
    ranks,
    sequoia_tree,
    specinfer_tree,
    tree_tokens,
)

P = (F(6, 10), F(2, 10), F(1, 10))
TOKENS = [
    F(1), F(8, 5), F(49, 25), F(272, 125), F(297, 125), F(1566, 625), F(1641, 625), F(1716, 625),
    F(3557, 1250), F(18271, 6250),
]  # fmt: skip


@pytest.mark.parametrize(("num_rows", "tokens"), list(enumerate(TOKENS, start=1)))
def test_sequoia_trees_of_every_size(num_rows: int, tokens: F) -> None:
    found, parents = sequoia_tree(P, num_rows)
    assert found == tokens == tree_tokens(parents, P)
    assert len(parents) == num_rows - 1


def test_sequoia_first_branches_at_five_rows() -> None:
    assert sequoia_tree(P, 4)[1] == (0, 1, 2)
    assert tree_tokens((0, 1, 0), P) == F(54, 25) < F(272, 125)
    assert tree_tokens((0, 1, 2, 3), P) == F(1441, 625) < F(297, 125)
    assert ranks(sequoia_tree(P, 5)[1]).count(1) == 1


@pytest.mark.parametrize(
    ("num_rows", "tokens"),
    [(4, F(54, 25)), (5, F(57, 25)), (6, F(12, 5)), (7, F(5, 2)), (8, F(64, 25))],
)
def test_sequoia_on_three_levels(num_rows: int, tokens: F) -> None:
    found, parents = sequoia_tree(P, num_rows, 3)
    assert found == tokens == tree_tokens(parents, P)
    assert max(depths(parents)) <= 2


def greedy_tokens(acceptance: tuple[F, ...], num_nodes: int, max_depth: int) -> F:
    """The best nodes by path product: a heap over (node, next rank)."""
    pool = [(-acceptance[0], 1, 0, F(1))]
    total = F(1)
    for _ in range(num_nodes):
        if not pool:
            return F(-1)
        negative, depth, rank, above = heapq.heappop(pool)
        total -= negative
        if rank + 1 < len(acceptance):
            heapq.heappush(pool, (-above * acceptance[rank + 1], depth, rank + 1, above))
        if depth < max_depth:
            heapq.heappush(pool, (negative * acceptance[0], depth + 1, 0, -negative))
    return total


@pytest.mark.parametrize("levels", [None, 3])
@pytest.mark.parametrize("num_rows", range(1, 10))
def test_with_falling_acceptance_the_program_equals_best_first(
    num_rows: int, levels: int | None
) -> None:
    max_depth = (levels or 99) - 1
    assert sequoia_tree(P, num_rows, levels)[0] == greedy_tokens(P, num_rows - 1, max_depth)


@pytest.mark.parametrize("num_rows", range(2, 7))
def test_no_tree_of_the_size_is_better_also_where_acceptance_rises(num_rows: int) -> None:
    rising = (F(1, 10), F(6, 10), F(2, 10))
    trees = [
        parents
        for parents in itertools.product(*(range(i + 1) for i in range(num_rows - 1)))
        if max(ranks(parents)) < 3
    ]
    assert sequoia_tree(rising, num_rows)[0] == max(tree_tokens(t, rising) for t in trees)


def test_sizes_that_no_tree_has_are_refused() -> None:
    with pytest.raises(ValueError, match="no tree of 5 rows on 2 levels"):
        sequoia_tree(P, 5, 2)
    with pytest.raises(ValueError, match="wanted at least 1"):
        sequoia_tree(P, 0)


def test_the_fastest_sequoia_tree_weighs_rows_and_depth() -> None:
    sizes = range(1, 9)
    assert fastest_sequoia_tree(P, sizes, [8], lambda parents: F(1)) == (
        TOKENS[7],
        sequoia_tree(P, 8)[1],
    )
    rate, parents = fastest_sequoia_tree(
        P, sizes, sizes, lambda parents: F(10) + 3 * max(depths(parents))
    )
    assert rate == max(
        tokens / (10 + 3 * max(depths(parents)))
        for rows in sizes
        for levels in range(1, rows + 1)
        if rows <= sum(3**i for i in range(levels))
        for tokens, parents in [sequoia_tree(P, rows, levels)]
    )
    assert parents
    alone = fastest_sequoia_tree(P, sizes, sizes, lambda parents: F(len(parents) + 1) ** 2)
    assert alone == (1, ())
    with pytest.raises(ValueError, match="no tree of that size"):
        fastest_sequoia_tree(P, [5], [2], lambda parents: F(1))


def test_specinfer_expansions() -> None:
    wide = specinfer_tree((1, 1, 3, 1, 1, 1, 1, 1))
    assert (len(wide), tree_tokens(wide, P)) == (20, F(1067269, 390625))
    bushy = specinfer_tree((2, 2, 1))
    assert (len(bushy), tree_tokens(bushy, P)) == (10, F(353, 125))
    assert round(float(tree_tokens(specinfer_tree((1,) * 8), P)), 4) == 2.4748


def test_medusa_takes_nodes_by_value() -> None:
    heads = ((F(5, 10), F(2, 10), F(1, 10)), (F(4, 10), F(15, 100)))
    order = medusa_order(heads, 6)
    assert [path for path, _ in order] == [(0,), (1,), (0, 0), (2,), (1, 0), (0, 1)]
    totals = list(itertools.accumulate((value for _, value in order), initial=F(1)))
    assert totals[1:] == [F(x) for x in ("1.5", "1.7", "1.9", "2.0", "2.08", "2.155")]
    assert 1 + sum(value for _, value in medusa_order(heads, 99)) == F(56, 25)
    assert path_parents([path for path, _ in order]) == (0, 0, 1, 0, 2, 1)
