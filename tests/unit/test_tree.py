"""Token trees: masks, pruning and clipping against brute force."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import combinations

import pytest

from yggrt.core.tree import TokenTree, clip_depth, followed, join, prune


def random_tree(rng: random.Random, num_nodes: int, *, ties: bool = False) -> TokenTree:
    """Any shape, exact scores, edges in [0, 1]."""
    parents, scores = [-1], [Fraction(1)]
    for row in range(1, num_nodes):
        parents.append(rng.randrange(row))
        edge = Fraction(rng.choice([5, 10]) if ties else rng.randrange(11), 10)
        scores.append(scores[parents[row]] * edge)
    return TokenTree(tuple(range(num_nodes)), tuple(parents), tuple(scores))


def is_closed(tree: TokenTree, rows: set[int]) -> bool:
    return 0 in rows and all(tree.parents[row] in rows for row in rows if row)


def test_mask_and_positions_of_a_hand_drawn_tree():
    tree = TokenTree((9, 1, 2, 3, 4), (-1, 0, 0, 1, 2), (1, 0.5, 0.4, 0.3, 0.2))
    mask = ["".join(str(int(seen)) for seen in row) for row in tree.ancestor_mask()]
    assert mask == ["10000", "11000", "10100", "11010", "10101"]
    assert tree.depths == (0, 1, 1, 2, 2)
    assert tree.path(4) == (0, 2, 4)
    assert tree.children(0) == (1, 2)


@pytest.mark.parametrize("seed", range(20))
def test_a_row_sees_exactly_its_path(seed):
    tree = random_tree(random.Random(seed), 12)
    for row, seen in enumerate(tree.ancestor_mask()):
        assert [i for i, yes in enumerate(seen) if yes] == list(tree.path(row))
        assert tree.depths[row] == len(tree.path(row)) - 1


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("ties", [False, True])
def test_prune_keeps_the_best_closed_set(seed, ties):
    tree = random_tree(random.Random(seed), 8, ties=ties)
    for num_rows in range(1, 9):
        pruned = prune(tree, num_rows)
        best = max(
            sum(tree.scores[row] for row in rows)
            for rows in combinations(range(8), num_rows)
            if is_closed(tree, set(rows))
        )
        assert pruned.num_nodes == num_rows
        assert sum(pruned.scores) == best
        # Tokens are the old row numbers, so they tell which rows were kept.
        assert is_closed(tree, set(pruned.tokens))
        assert [tree.scores[row] for row in pruned.tokens] == list(pruned.scores)
        for row in range(1, num_rows):
            assert pruned.tokens[pruned.parents[row]] == tree.parents[pruned.tokens[row]]


def test_prune_breaks_ties_towards_smaller_depth_then_row():
    tree = TokenTree((0, 1, 2, 3, 4), (-1, 0, 1, 0, 3), (1, 0.5, 0.5, 0.5, 0.5))
    assert prune(tree, 2).tokens == (0, 1)
    assert prune(tree, 3).tokens == (0, 1, 3)
    assert prune(tree, 4).tokens == (0, 1, 2, 3)


def test_prune_leaves_a_small_tree_and_keeps_a_root():
    tree = TokenTree.single(7)
    assert prune(tree, 16) is tree
    with pytest.raises(ValueError, match="at least 1 row"):
        prune(tree, 0)


@pytest.mark.parametrize("seed", range(10))
def test_clip_depth_keeps_all_rows_above_the_cut(seed):
    tree = random_tree(random.Random(seed), 12)
    for max_depth in range(max(tree.depths) + 2):
        clipped = clip_depth(tree, max_depth)
        kept = [row for row in range(12) if tree.depths[row] <= max_depth]
        assert list(clipped.tokens) == kept
        assert clipped.depths == tuple(tree.depths[row] for row in kept)


@pytest.mark.parametrize(
    ("tokens", "parents", "scores", "message"),
    [
        ((), (), (), "needs a root"),
        ((1, 2), (-1,), (1, 1), "2 tokens, 1 parents, 2 scores"),
        ((1,), (0,), (1,), "the root has parent -1"),
        ((1,), (-1,), (0.5,), "the root has parent -1 and score 1"),
        ((1, 2), (-1, 1), (1, 1), "row 1 has parent 1, wanted a row in 0..0"),
        ((1, 2), (-1, -1), (1, 1), "row 1 has parent -1"),
        ((1, 2, 3), (-1, 0, 1), (1, 0.5, 0.6), "row 2 has score 0.6, wanted 0..0.5"),
        ((1, 2), (-1, 0), (1, float("nan")), "row 1 has score nan"),
    ],
)
def test_what_is_no_tree_is_refused(tokens, parents, scores, message):
    with pytest.raises(ValueError, match=message):
        TokenTree(tokens, parents, scores)


def test_joined_trees_hold_the_nodes_of_both():
    """Worked by hand: token 5 is in both, and the shares of 5 and 6 exceed 1 together."""
    one = TokenTree((0, 5, 7), (-1, 0, 1), (1, Fraction(1, 2), Fraction(1, 4)))
    other = TokenTree(
        (0, 5, 6, 8), (-1, 0, 0, 1), (1, Fraction(1, 2), Fraction(1, 2), Fraction(1, 8))
    )
    joined = join(one, other)
    assert joined.tokens == (0, 5, 6, 7, 8)
    assert joined.parents == (-1, 0, 0, 1, 1)
    # 1 - 1/2 * 1/2 = 3/4 for 5, 1/2 for 6, scaled by 4/5; below 5, 1/2 and 1/4 of it.
    assert joined.scores == (1, Fraction(3, 5), Fraction(2, 5), Fraction(3, 10), Fraction(3, 20))


def test_joining_nothing_changes_nothing():
    tree = TokenTree((0, 5, 6, 7), (-1, 0, 0, 2), (1, 0.5, 0.25, 0.25))
    assert join(tree, TokenTree.single(0)) == tree
    assert join(TokenTree.single(0), tree) == tree


def test_how_far_a_tree_has_tokens_below_each_other():
    tree = TokenTree((0, 5, 6, 7), (-1, 0, 0, 2), (1, 0.5, 0.25, 0.25))
    assert [followed(tree, path) for path in ((), (5,), (5, 7), (6, 7), (6, 7, 7), (9,))] == [
        0, 1, 1, 2, 2, 0,
    ]  # fmt: skip
