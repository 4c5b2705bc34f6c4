"""Tree policies over drafters with known laws."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from fractions import Fraction as F

import pytest
from scripted import RandomDrafter

from yggrt.core.spec import parse_tree_spec
from yggrt.policies import policy_for

ROOT = 0
NAMES = {"s": 0, "a": 1, "b": 2, "c": 3}


class BigramDrafter:
    """Children depend on the node's own token alone."""

    def __init__(self, law: dict[str, tuple[F, ...]]) -> None:
        self.law = {NAMES[name]: shares for name, shares in law.items()}

    def start(self, ids: Sequence[int]) -> None: ...
    def commit(self, tokens: Sequence[int]) -> None: ...
    def rewind(self, num_tokens: int) -> None: ...
    def couple(self, noise: object) -> None: ...

    def candidates(self, paths: Sequence[Sequence[int]], num: int) -> list[list[tuple[int, F]]]:
        return [self.children(path, num) for path in paths]

    def children(self, path_tokens: Sequence[int], num: int) -> list[tuple[int, F]]:
        last = path_tokens[-1] if path_tokens else ROOT
        children = sorted(enumerate(self.law[last], start=1), key=lambda item: (-item[1], item[0]))
        return children[:num]


def percent(*shares: int) -> tuple[F, ...]:
    return tuple(F(share, 100) for share in shares)


WIDE = BigramDrafter(
    {
        "s": percent(40, 35, 25),
        "a": percent(34, 33, 33),
        "b": percent(50, 30, 20),
        "c": percent(90, 5, 5),
    }
)
PEAKED = BigramDrafter(
    {
        "s": percent(60, 30, 10),
        "a": percent(10, 20, 70),
        "b": percent(80, 10, 10),
        "c": percent(40, 40, 20),
    }
)


def grow(text: str, drafter):
    spec = parse_tree_spec(text)
    return policy_for(spec)(ROOT, spec, drafter, 0.0)


def steps(text: str, drafter, width: int) -> list[set[tuple[str, F]]]:
    """Nodes of each growth step as (path, score)."""
    tree = grow(text, drafter)
    letters = {number: name for name, number in NAMES.items()}
    named = [
        ("".join(letters[tree.tokens[i]] for i in tree.path(row)[1:]), tree.scores[row])
        for row in range(1, tree.num_nodes)
    ]
    return [set(named[i : i + width]) for i in range(0, len(named), width)]


def best_first(drafter: BigramDrafter, num_nodes: int) -> F:
    """Largest sum of scores of any tree with that many nodes."""
    pool = [(-share, (token,)) for token, share in drafter.children((), 3)]
    heapq.heapify(pool)
    total = F(0)
    for _ in range(num_nodes):
        negative, path = heapq.heappop(pool)
        total -= negative
        for token, share in drafter.children(path, 3):
            heapq.heappush(pool, (negative * share, (*path, token)))
    return total


def test_the_global_frontier_returns_to_what_it_passed_over():
    assert steps("egt:width=2,depth=3,children=3", WIDE, 2) == [
        {("a", F(2, 5)), ("b", F(7, 20))},
        {("c", F(1, 4)), ("ba", F(7, 40))},
        {("ca", F(9, 40)), ("aa", F(17, 125))},
    ]
    assert sum(grow("egt:width=2,depth=3,children=3", WIDE).scores) - 1 == F(192, 125)
    assert best_first(WIDE, 6) == F(192, 125)


def test_the_level_frontier_only_goes_down():
    assert steps("egt:width=2,depth=3,children=3,frontier=level", WIDE, 2) == [
        {("a", F(2, 5)), ("b", F(7, 20))},
        {("ba", F(7, 40)), ("aa", F(17, 125))},
        {("baa", F(119, 2000)), ("bab", F(231, 4000))},
    ]
    tree = grow("egt:width=2,depth=3,children=3,frontier=level", WIDE)
    assert sum(tree.scores) - 1 == F(4713, 4000)


def named(tree):
    """Nodes by their path of letters."""
    letters = {number: name for name, number in NAMES.items()}
    return {
        "".join(letters[tree.tokens[i]] for i in tree.path(row)[1:]): tree.scores[row]
        for row in range(1, tree.num_nodes)
    }


def test_level_keeps_the_best_of_all_candidates_and_not_only_what_it_expands():
    # Two children each of the two best nodes of a level: 2 + 4 + 4 candidates.
    every = {
        "a": F(400, 1000), "b": F(350, 1000),
        "ba": F(175, 1000), "aa": F(136, 1000), "ab": F(132, 1000), "bb": F(105, 1000),
        "baa": F(5950, 100000), "bab": F(5775, 100000),
        "aaa": F(4624, 100000), "aab": F(4488, 100000),
    }  # fmt: skip
    assert named(grow("level:width=2,depth=3,verify=1024", WIDE)) == every
    best = dict(sorted(every.items(), key=lambda item: -item[1])[:6])
    assert set(best) == {"a", "b", "ba", "aa", "ab", "bb"}
    reranked = grow("level:width=2,depth=3,verify=7", WIDE)
    assert named(reranked) == best
    expanded = grow("egt:width=2,depth=3,children=2,frontier=level", WIDE)
    assert sum(expanded.scores) < sum(reranked.scores)


def test_level_has_as_many_candidates_as_published():
    # k + depth * k^2 with k = 8 and five steps behind the first: 328.
    tree = grow("level:width=8,depth=6,verify=1024", RandomDrafter(vocab_size=50))
    assert tree.num_nodes - 1 == 8 + 5 * 64 == 328


@pytest.mark.parametrize(
    ("confidence", "path"), [("0.65", (1,)), ("0.5", (1, 3, 1)), ("0.35", (1, 3, 1, 3, 1))]
)
def test_an_adaptive_chain_ends_behind_the_first_token_that_is_unsure(confidence, path):
    # s: a .6; a: c .7; c: a .4; and so on.
    tree = grow(f"sequence:depth=5,confidence={confidence}", PEAKED)
    assert tree.tokens[1:] == path


def test_an_expansion_gives_every_leaf_its_children():
    tree = grow("specinfer:expansion=2/1/2", WIDE)
    assert [len(tree.children(row)) for row in range(tree.num_nodes)] == [
        2, 1, 1, 2, 2, 0, 0, 0, 0,
    ]  # fmt: skip
    assert set(named(tree)) == {"a", "b", "aa", "ba", "aaa", "aab", "baa", "bab"}


@pytest.mark.parametrize(
    ("width", "depth", "total"), [(1, 6, F(237, 125)), (2, 3, F(237, 125)), (3, 2, F(89, 50))]
)
def test_growing_several_nodes_at_once_may_cost_value(width, depth, total):
    tree = grow(f"egt:width={width},depth={depth},children=3", PEAKED)
    assert sum(tree.scores) - 1 == total <= best_first(PEAKED, 6)


@pytest.mark.parametrize("num_nodes", range(1, 12))
def test_width_one_is_best_first(num_nodes):
    tree = grow(f"egt:width=1,depth={num_nodes},children=3", WIDE)
    assert sum(tree.scores) - 1 == best_first(WIDE, num_nodes)


@pytest.mark.parametrize("frontier", ["global", "level"])
def test_a_deeper_tree_starts_with_the_shallower_one(frontier):
    deep = grow(f"egt:width=2,depth=5,children=3,frontier={frontier}", PEAKED)
    for depth in range(1, 5):
        tree = grow(f"egt:width=2,depth={depth},children=3,frontier={frontier}", PEAKED)
        assert deep.tokens[: tree.num_nodes] == tree.tokens
        assert deep.parents[: tree.num_nodes] == tree.parents
        assert max(tree.depths) <= depth


def test_more_children_than_width_change_nothing_on_the_level_frontier():
    texts = [f"egt:width=2,depth=4,children={k},frontier=level" for k in (2, 3)]
    assert grow(texts[0], WIDE) == grow(texts[1], WIDE)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("frontier", ["global", "level"])
def test_every_step_adds_width_nodes(seed, frontier):
    rng = random.Random(seed)
    width, depth = rng.randrange(1, 6), rng.randrange(1, 6)
    text = f"egt:width={width},depth={depth},children=6,frontier={frontier}"
    tree = grow(text, RandomDrafter(seed=seed))
    assert tree.num_nodes == 1 + width * depth
    for row in range(1, tree.num_nodes):
        siblings = [tree.tokens[i] for i in tree.children(row)]
        assert len(siblings) == len(set(siblings))
        # A node can only hang below one that an earlier step added.
        step = (row - 1) // width
        assert tree.parents[row] <= step * width


class NothingAfterOne(BigramDrafter):
    def children(self, path_tokens: Sequence[int], num: int) -> list[tuple[int, F]]:
        return [] if path_tokens else [(1, F(1, 2))]


@pytest.mark.parametrize(
    "text", ["egt:width=4,depth=4", "sequence:depth=8", "static:parents=0/0/1/2/3"]
)
def test_a_drafter_without_guesses_makes_a_small_tree(text):
    tree = grow(text, NothingAfterOne({}))
    assert (tree.tokens, tree.parents, tree.scores) == ((0, 1), (-1, 0), (1, F(1, 2)))


def test_sequence_is_the_chain_of_best_guesses():
    tree = grow("sequence:depth=3", WIDE)
    assert tree.tokens == (0, 1, 1, 1)
    assert tree.parents == (-1, 0, 1, 2)
    assert tree.scores == (1, F(2, 5), F(2, 5) * F(34, 100), F(2, 5) * F(34, 100) ** 2)


def test_static_fills_siblings_in_rank_order():
    tree = grow("static:parents=0/0/2/2/1/3", PEAKED)
    assert tree.parents == (-1, 0, 0, 2, 2, 1, 3)
    # s: a, b; b: a, b (a tie goes to the smaller id); a: c; a: c.
    assert tree.tokens == (0, 1, 2, 1, 2, 3, 3)


def test_static_two_by_two_by_two_is_full():
    text = "static:parents=0/0/1/1/2/2/3/3/4/4/5/5/6/6"
    tree = grow(text, WIDE)
    assert tree.num_nodes == 15
    assert tree.depths == (0, *(1,) * 2, *(2,) * 4, *(3,) * 8)


@pytest.mark.parametrize(
    "text",
    [
        "egt:width=2,depth=4,children=3",
        "egt:width=3,depth=3,children=3,frontier=level",
        "sequence:depth=6",
        "static:parents=0/0/0/1/1/2/2/4/4/8",
        "level:width=2,depth=3,verify=9",
        "specinfer:expansion=2/2/1",
        "sequence:depth=6,confidence=0.35",
    ],
)
@pytest.mark.parametrize("least", [F(0), F(1, 5), F(7, 20), F(1)])
def test_a_floor_drops_the_nodes_below_it_and_asks_for_no_more(text, least):
    asked = []

    class Listener(BigramDrafter):
        def candidates(self, paths, num):
            asked.extend(map(tuple, paths))
            return super().candidates(paths, num)

    spec = parse_tree_spec(text)
    drafter = Listener({name: WIDE.law[token] for name, token in NAMES.items()})
    tree = policy_for(spec)(ROOT, spec, drafter, least)
    whole = grow(text, WIDE)
    kept = named(tree)
    assert all(score >= least for score in kept.values())
    assert {path: score for path, score in named(whole).items() if score >= least} == kept
    letters = {number: name for name, number in NAMES.items()}
    assert {"".join(letters[token] for token in path) for path in asked} <= {"", *kept}


def test_plain_asks_nobody():
    assert grow("plain", None).num_nodes == 1
