"""Exact laws of programs that draw: every outcome of every draw is tried, probabilities are
fractions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction
from typing import TypeVar

Law = list[Fraction]
Outcome = TypeVar("Outcome", bound=Hashable)


class Chance:
    """Stands in for randomness: takes the outcomes of `script` and after them the first possible
    ones, and remembers what else could have come.
    """

    def __init__(self, script: Sequence[int] = ()) -> None:
        self._script = list(script)
        self.taken: list[int] = []
        self.open: list[list[int]] = []
        self.probability = Fraction(1)

    def pick(self, weights: Sequence[Fraction]) -> int:
        """An index, each with probability weight / sum of weights."""
        possible = [i for i, weight in enumerate(weights) if weight > 0]
        place = len(self.taken)
        index = self._script[place] if place < len(self._script) else possible[0]
        self.open.append([i for i in possible if i > index] if place >= len(self._script) else [])
        self.taken.append(index)
        self.probability *= weights[index] / sum(weights)
        return index

    def flip(self, probability: Fraction) -> bool:
        return self.pick([1 - probability, probability]) == 1


def law_of(program: Callable[[Chance], Outcome]) -> dict[Outcome, Fraction]:
    """The probability of everything that `program` can return."""
    law: dict[Outcome, Fraction] = {}
    scripts: list[list[int]] = [[]]
    while scripts:
        chance = Chance(scripts.pop())
        outcome = program(chance)
        law[outcome] = law.get(outcome, Fraction(0)) + chance.probability
        scripts += [
            [*chance.taken[:place], other]
            for place, others in enumerate(chance.open)
            for other in others
        ]
    assert sum(law.values()) == 1
    return law


def normed(weights: Sequence[Fraction]) -> Law:
    return [weight / sum(weights) for weight in weights]


def total_variation(a: Sequence[Fraction], b: Sequence[Fraction]) -> Fraction:
    return sum((abs(x - y) for x, y in zip(a, b, strict=True)), Fraction(0)) / 2
