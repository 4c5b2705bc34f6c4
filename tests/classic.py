"""Acceptance rules of the literature over exact chance, for comparison with keyed sample-match.

Lossless: children drawn with replacement (Miao et al., "SpecInfer", arXiv 2305.09781, multi-step
speculative sampling) and without (Jeon et al., "Recursive speculative decoding", arXiv 2402.14160;
Chen et al., "Sequoia", arXiv 2402.12374). The `lossy_` ones are mistakes that tests must notice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from chance import Chance, Law, normed

# A drafted child: its token and the law that it is tested with.
Child = tuple[int, Law]
Draw = Callable[[Chance, Law], list[Child]]


def residual(target: Law, drafter: Law) -> Law:
    """What is left to realise after a rejection: the normalised positive part of the
    difference.
    """
    return normed([max(Fraction(0), p - q) for p, q in zip(target, drafter, strict=True)])


def tested_in_order(chance: Chance, target: Law, children: Sequence[Child]) -> tuple[int, bool]:
    """A token by recursive rejection, and whether it is a child."""
    for token, drafter in children:
        keep = min(Fraction(1), target[token] / drafter[token])
        if chance.flip(keep):
            return token, True
        target = residual(target, drafter)
    return chance.pick(target), False


def without(drafter: Law, token: int) -> Law:
    return normed([Fraction(0) if i == token else q for i, q in enumerate(drafter)])


def one_child(chance: Chance, drafter: Law) -> list[Child]:
    return [(chance.pick(drafter), drafter)]


def with_replacement(chance: Chance, drafter: Law) -> list[Child]:
    return [(chance.pick(drafter), drafter) for _ in range(2)]


def without_replacement(chance: Chance, drafter: Law) -> list[Child]:
    first = chance.pick(drafter)
    rest = without(drafter, first)
    return [(first, drafter), (chance.pick(rest), rest)]


def lossy_not_renormalised(chance: Chance, drafter: Law) -> list[Child]:
    return [(token, drafter) for token, _ in without_replacement(chance, drafter)]


def lossy_merged(chance: Chance, drafter: Law) -> list[Child]:
    children = with_replacement(chance, drafter)
    return children[:1] if children[0][0] == children[1][0] else children


def lossy_resorted(chance: Chance, drafter: Law) -> list[Child]:
    tokens = [token for token, _ in without_replacement(chance, drafter)]
    first, second = sorted(tokens, key=lambda token: -drafter[token])
    return [(first, drafter), (second, without(drafter, first))]


def best_two(drafter: Law) -> list[int]:
    return sorted(range(len(drafter)), key=lambda token: -drafter[token])[:2]


def lossy_best(chance: Chance, drafter: Law) -> list[Child]:
    return [(token, drafter) for token in best_two(drafter)]


def lossy_best_renormalised(chance: Chance, drafter: Law) -> list[Child]:
    first, second = best_two(drafter)
    return [(first, drafter), (second, without(drafter, first))]


def lossy_other_law(chance: Chance, drafter: Law) -> list[Child]:
    uniform = [Fraction(1, len(drafter))] * len(drafter)
    return [(chance.pick(drafter), uniform)]


def point_masses(tokens: Sequence[int]) -> Draw:
    """Fixed children, each tested with the law that gives it for certain."""

    def children(chance: Chance, drafter: Law) -> list[Child]:
        return [(t, [Fraction(i == t) for i in range(len(drafter))]) for t in tokens]

    return children


def one_node(draw: Draw, target: Law, drafter: Law) -> Callable[[Chance], tuple[int, bool]]:
    return lambda chance: tested_in_order(chance, target, draw(chance, drafter))


def sample_match(draw: Draw, target: Law, drafter: Law) -> Callable[[Chance], tuple[int, bool]]:
    """The verifier's own token, and whether a child carries it."""

    def program(chance: Chance) -> tuple[int, bool]:
        tokens = {token for token, _ in draw(chance, drafter)}
        token = chance.pick(target)
        return token, token in tokens

    return program


def lossy_resampled(target: Law, drafter: Law) -> Callable[[Chance], tuple[int, bool]]:
    """A rejection is followed by a draw from the target in place of the residual."""

    def program(chance: Chance) -> tuple[int, bool]:
        token = chance.pick(drafter)
        if chance.flip(min(Fraction(1), target[token] / drafter[token])):
            return token, True
        return chance.pick(target), False

    return program


def dropped(target: Law, drafter: Law, *, tested: bool) -> Callable[[Chance], tuple[int, bool]]:
    """A drawn child of low probability loses its row. Where it is not tested either, the draw's
    value decides about the test, which is lossy.
    """

    def program(chance: Chance) -> tuple[int, bool]:
        token = chance.pick(drafter)
        if drafter[token] < Fraction(1, 2) and not tested:
            return chance.pick(target), False
        return tested_in_order(chance, target, [(token, drafter)])

    return program


def walk(
    draw: Draw,
    target_of: Callable[[tuple[int, ...]], Law],
    drafter_of: Callable[[tuple[int, ...]], Law],
    depth: int,
    num_tokens: int,
) -> Callable[[Chance], tuple[int, ...]]:
    """The first tokens under passes over trees of `depth`, each node's children drawn and tested
    by the same rule; a rejection ends the pass, as does its bonus token.
    """

    def program(chance: Chance) -> tuple[int, ...]:
        path: tuple[int, ...] = ()
        while len(path) < num_tokens:
            for _ in range(depth):
                children = draw(chance, drafter_of(path))
                token, accepted = tested_in_order(chance, target_of(path), children)
                path = (*path, token)
                if not accepted:
                    break
            else:
                path = (*path, chance.pick(target_of(path)))
        return path[:num_tokens]

    return program
