"""Acceptance: the walk, and its law when the verifier samples."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction as F
from itertools import product

from yggrt.core.accept import accept, greedy
from yggrt.core.passes import PassOutput
from yggrt.core.tree import TokenTree

# Root children 0 and 1; under 0: 1 and 2; under 1: 0.
TREE = TokenTree((9, 0, 1, 1, 2, 0), (-1, 0, 0, 1, 1, 2), (1,) * 6)
LAW = {
    0: (F(5, 10), F(3, 10), F(2, 10)),
    1: (F(1, 10), F(6, 10), F(3, 10)),
    2: (F(4, 10), F(4, 10), F(2, 10)),
}
UNIFORM = (F(1, 3),) * 3


def enumerate_law() -> dict[tuple[int, ...], F]:
    """Probability of every emitted token sequence: each row's token is drawn before the walk,
    once.
    """
    law: dict[tuple[int, ...], F] = defaultdict(F)
    rows = [LAW.get(row, UNIFORM) for row in range(TREE.num_nodes)]
    for choice in product(range(3), repeat=TREE.num_nodes):
        probability = F(1)
        for row, token in enumerate(choice):
            probability *= rows[row][token]
        law[accept(TREE, lambda row, position, c=choice: c[row]).tokens] += probability
    return law


def test_sampled_acceptance_has_the_verifiers_own_law():
    law = enumerate_law()
    num_tokens: dict[int, F] = defaultdict(F)
    for tokens, probability in law.items():
        num_tokens[len(tokens)] += probability
    assert num_tokens == {1: F(1, 5), 2: F(23, 100), 3: F(57, 100)}
    assert sum(num * probability for num, probability in num_tokens.items()) == F(237, 100)
    for token in range(3):
        assert law[0, 1, token] == F(1, 10)
        assert law[0, 2, token] == F(1, 20)
        assert law[1, 0, token] == F(1, 25)
    assert (law[0, 0], law[1, 1], law[1, 2], law[2,]) == (F(1, 20), F(3, 25), F(3, 50), F(1, 5))


def test_expected_tokens_are_one_plus_the_reach_probabilities():
    law = enumerate_law()
    reach = F(1, 2) + F(3, 10) + F(3, 10) + F(3, 20) + F(3, 25)
    assert sum(len(tokens) * probability for tokens, probability in law.items()) == 1 + reach


def test_greedy_walks_to_the_deepest_agreeing_row():
    best = [0, 1, 0, 2, 1, 1]
    out = PassOutput(best, None, None, None)
    accepted = accept(TREE, greedy(out))
    assert accepted.path == (1, 3)
    assert accepted.tokens == (0, 1, 2)
    assert accepted.num_tests == 2


def test_a_root_alone_emits_one_token_and_tests_nothing():
    accepted = accept(TokenTree.single(3), lambda row, position: 5)
    assert (accepted.path, accepted.tokens, accepted.num_tests) == ((), (5,), 0)


def test_the_choice_hears_the_place_of_its_token():
    asked = []

    def choose(row: int, position: int) -> int:
        asked.append((row, position))
        return {0: 1, 2: 0, 5: 2}[row]

    assert accept(TREE, choose, first_position=40).path == (2, 5)
    assert asked == [(0, 40), (2, 41), (5, 42)]


def test_of_equal_siblings_the_first_is_taken():
    tree = TokenTree((9, 4, 4), (-1, 0, 0), (1, 0.5, 0.4))
    assert accept(tree, lambda row, position: 4).path == (1,)
