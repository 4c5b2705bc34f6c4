"""Exact enumeration, no tolerance: the engine under sample-match emits the target's law whatever
is drafted, so do the classic rules, and every known mistake is noticed with the number it must
give.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction as F
from itertools import product
from typing import Any

import classic
import pytest
from chance import Chance, Law, law_of, normed, total_variation
from scripted import RandomDrafter, ScriptedGraphs

from yggrt.core.accept import Accepted, accept
from yggrt.core.spec import parse_tree_spec
from yggrt.core.tree import TokenTree
from yggrt.engine import Engine
from yggrt.gate import OpenGate

TARGET = [F(4, 10), F(3, 10), F(2, 10), F(1, 10)]
DRAFTER = [F(1, 10), F(2, 10), F(3, 10), F(4, 10)]


def target_of(path: tuple[int, ...]) -> Law:
    """A law over three tokens that depends on all tokens before."""
    weights = [F(1 + (7 * token + 3 * sum(path) + 5 * len(path)) % 4) for token in range(3)]
    return normed([weights[(token + len(path)) % 3] for token in range(3)])


def drafter_of(path: tuple[int, ...]) -> Law:
    return normed([F(1 + (2 * token + sum(path)) % 3) for token in range(3)])


def joint(num_tokens: int) -> dict[tuple[int, ...], F]:
    """The target's law of its first tokens, from the definition."""
    law = {}
    for path in product(range(3), repeat=num_tokens):
        probability = F(1)
        for place, token in enumerate(path):
            probability *= target_of(path[:place])[token]
        if probability:
            law[path] = probability
    return law


def decoded(tree: str, seed: int) -> Callable[[Chance], tuple[int, ...]]:
    """The engine's first three tokens, its sampler drawing from the target by chance."""

    def program(chance: Chance) -> tuple[int, ...]:
        graphs = ScriptedGraphs(vocab_size=3, row_counts=(1, 4, 16), max_model_len=16)
        drafter = RandomDrafter(vocab_size=3, seed=seed)
        engine = Engine(
            graphs, graphs.new_cache(), drafter, parse_tree_spec(tree),
            lambda rows, context: 1.0, 0.0, OpenGate(),
        )  # fmt: skip
        chosen: list[int] = []

        def sampler(out: Any) -> Callable[[int, int], int]:
            def choose(row: int, position: int) -> int:
                assert position == 2 + len(chosen)
                # Tokens beyond the third change nothing and are not enumerated.
                path = tuple(chosen)
                token = chance.pick(target_of(path)) if len(path) < 3 else 0
                chosen.append(token)
                return token

            return choose

        tokens = [engine.start([0, 1], sampler=sampler)]
        while len(tokens) < 3:
            tokens += engine.step().tokens
        return tuple(tokens[:3])

    return program


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "tree",
    [
        "plain",
        "sequence:depth=3",
        "egt:width=2,depth=3,children=3,verify=7",
        "egt:width=3,depth=3,children=3,verify=10,frontier=level",
        "static:parents=0/0/1/1/2",
    ],
)
def test_the_engine_emits_the_targets_law(tree: str, seed: int) -> None:
    assert law_of(decoded(tree, seed)) == joint(3)


def test_two_levels_by_hand() -> None:
    laws = {
        (): [F(5, 10), F(3, 10), F(2, 10)],
        (0,): [F(1, 10), F(6, 10), F(3, 10)],
        (1,): [F(4, 10), F(4, 10), F(2, 10)],
    }
    third = [F(1, 3)] * 3
    tree = TokenTree((9, 0, 1, 1, 2, 0), (-1, 0, 0, 1, 1, 2), (1.0,) * 6)

    def program(chance: Chance) -> tuple[int, ...]:
        path: list[int] = []

        def choose(row: int, position: int) -> int:
            assert position == len(path)
            path.append(chance.pick(laws.get(tuple(path), third)))
            return path[-1]

        accepted: Accepted = accept(tree, choose)
        return accepted.tokens

    law = law_of(program)
    by_length = [sum(p for tokens, p in law.items() if len(tokens) == n) for n in (1, 2, 3)]
    assert by_length == [F(1, 5), F(23, 100), F(57, 100)]
    assert sum(n * p for n, p in zip((1, 2, 3), by_length, strict=True)) == F(237, 100)
    assert law[0, 1, 0] == F(1, 10)
    assert law[0, 2, 1] == F(1, 20)
    assert law[1, 0, 2] == F(1, 25)
    assert law[0, 0] == F(1, 20)
    assert law[1, 1] == F(3, 25)
    assert law[1, 2] == F(3, 50)
    assert law[2,] == F(1, 5)


def token_law(program: Callable[[Chance], tuple[int, bool]], vocab: int) -> tuple[Law, F]:
    """The law of the token, and the probability that a draft is accepted."""
    law = law_of(program)
    tokens = [sum((p for (t, _), p in law.items() if t == i), F(0)) for i in range(vocab)]
    return tokens, sum((p for (_, accepted), p in law.items() if accepted), F(0))


LOSSLESS = {
    "one child": (classic.one_node(classic.one_child, TARGET, DRAFTER), F(3, 5)),
    "with replacement": (classic.one_node(classic.with_replacement, TARGET, DRAFTER), F(18, 25)),
    "without replacement": (
        classic.one_node(classic.without_replacement, TARGET, DRAFTER),
        F(107, 140),
    ),
    "match of drawn children": (
        classic.sample_match(classic.with_replacement, TARGET, DRAFTER),
        F(7, 20),
    ),
    "match of the drafter's best": (
        classic.sample_match(classic.point_masses([3, 2]), TARGET, DRAFTER),
        F(3, 10),
    ),
    "point masses of the drafter's best": (
        classic.one_node(classic.point_masses([3, 2]), TARGET, DRAFTER),
        F(3, 10),
    ),
    "match of the target's best": (
        classic.sample_match(classic.point_masses([0, 1]), TARGET, DRAFTER),
        F(7, 10),
    ),
}


@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_rules(name: str) -> None:
    program, acceptance = LOSSLESS[name]
    assert token_law(program, 4) == (TARGET, acceptance)


LOSSY = {
    "not renormalised": (
        classic.lossy_not_renormalised,
        [F(699, 1960), F(673, 1960), F(1, 5), F(1, 10)],
        F(111, 140),
        F(17, 392),
    ),
    "duplicates merged": (
        classic.lossy_merged,
        [F(209, 560), F(183, 560), F(1, 5), F(1, 10)],
        F(18, 25),
        F(3, 112),
    ),
    "sorted again": (
        classic.lossy_resorted,
        [F(1765, 4032), F(649, 2880), F(199, 1260), F(451, 2520)],
        F(1503, 2240),
        F(2353, 20160),
    ),
    "the best two as if drawn": (
        classic.lossy_best,
        [F(39, 56), F(3, 56), F(0), F(1, 4)],
        F(1, 4),
        F(25, 56),
    ),
    "the best two, renormalised": (
        classic.lossy_best_renormalised,
        [F(3, 4), F(0), F(0), F(1, 4)],
        F(1, 4),
        F(1, 2),
    ),
    "tested with another law": (
        classic.lossy_other_law,
        [F(13, 40), F(11, 40), F(6, 25), F(4, 25)],
        F(7, 10),
        F(1, 10),
    ),
}


@pytest.mark.parametrize("name", LOSSY)
def test_mistakes_are_noticed(name: str) -> None:
    draw, law, acceptance, distance = LOSSY[name]
    found, accepted = token_law(classic.one_node(draw, TARGET, DRAFTER), 4)
    assert (found, accepted) == (law, acceptance)
    assert total_variation(found, TARGET) == distance > 0


def test_drawing_again_from_the_target_is_noticed() -> None:
    target, drafter = [F(5, 10), F(3, 10), F(2, 10)], [F(2, 10), F(5, 10), F(3, 10)]
    law, _ = token_law(classic.lossy_resampled(target, drafter), 3)
    assert law == [F(7, 20), F(39, 100), F(13, 50)]
    assert total_variation(law, target) == F(3, 20)


def test_dropping_a_drawn_child_by_its_value_is_noticed() -> None:
    target, drafter = [F(1, 2), F(1, 2)], [F(3, 4), F(1, 4)]
    law, _ = token_law(classic.dropped(target, drafter, tested=False), 2)
    assert total_variation(law, target) == F(1, 8)
    law, _ = token_law(classic.dropped(target, drafter, tested=True), 2)
    assert law == target


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("draw", [classic.one_child, classic.with_replacement])
def test_lossless_rules_over_trees(draw: classic.Draw, depth: int) -> None:
    num_tokens = 3 if depth == 1 else 2
    assert law_of(classic.walk(draw, target_of, drafter_of, depth, num_tokens)) == joint(
        num_tokens
    )


@pytest.mark.parametrize("depth", [1, 2])
def test_drawing_without_replacement_over_trees(depth: int) -> None:
    draw = classic.without_replacement
    assert law_of(classic.walk(draw, target_of, drafter_of, depth, 2)) == joint(2)


def test_a_mistake_over_trees_is_noticed() -> None:
    program = classic.walk(classic.lossy_resorted, target_of, drafter_of, 2, 2)
    assert law_of(program) != joint(2)
