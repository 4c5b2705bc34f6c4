"""Measured curves made monotone, and the places where they jump. Pure.

Arithmetic and comparisons only, so exact numbers (fractions.Fraction) give exact results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

# int and float do as well; Fraction is what tests compute with.
Number = TypeVar("Number", bound=float)

# A segment jumps when the value rises by more than STEP and more than STEEPNESS times as fast as
# the curve does elsewhere, or when time per row rises by more than PER_ROW; a value dips when it
# lies by more than DIP below one before it.
STEP = 0.25
STEEPNESS = 3
PER_ROW = 0.15
DIP = 0.15


@dataclass(frozen=True, slots=True)
class Jump:
    """Between abscissas `lower` and `upper` the value is `ratio` times as large, which the rest of
    the curve does not explain; below 1 it falls where it cannot."""

    lower: int
    upper: int
    ratio: float


def isotonic(values: Sequence[Number]) -> list[Number]:
    """The non-decreasing sequence with the least sum of squared differences to `values`: pool
    adjacent violators (Barlow et al., 1972), all weights equal."""
    blocks: list[tuple[Number, int]] = []
    for value in values:
        total, num = value, 1
        while blocks and blocks[-1][0] * num > total * blocks[-1][1]:
            before, count = blocks.pop()
            total, num = total + before, num + count  # type: ignore[assignment]
        blocks.append((total, num))
    return [total / num for total, num in blocks for _ in range(num)]  # type: ignore[misc]


def monotone_grid(grid: Sequence[Sequence[Number]]) -> list[list[Number]]:
    """A grid that falls neither along rows nor along columns: `isotonic` down every column, then
    along every row.

    The second step keeps what the first made: of two sequences, one nowhere above the other, the
    isotonic fits are ordered in the same way. It is not the least-squares fit in both directions,
    for which no finite method is as short.
    """
    columns = [isotonic(column) for column in zip(*grid, strict=True)]
    return [isotonic(row) for row in zip(*columns, strict=True)]


def jumps(
    abscissas: Sequence[int], values: Sequence[float], *, per_row: bool = False
) -> tuple[Jump, ...]:
    """Where measured `values` at ascending `abscissas` jump up or dip.

    The time of a pass is bounded by reading, which does not depend on the abscissa, and by
    computing, which grows in proportion to it: a smooth bend. A step (swapping, throttling, a
    cache that overflows, a tile that is one row too small) is steeper than the curve on both of
    its sides. With `per_row` the abscissas are row counts: the last segment may be the bend, but
    two passes of half the rows are never quicker than one, so a rise of time per row is a step
    too. A value below an earlier one is a disturbance of the earlier one.
    """
    fitted = isotonic(values)
    slopes = [
        (fitted[i + 1] - fitted[i]) / (abscissas[i + 1] - abscissas[i])
        for i in range(len(fitted) - 1)
    ]
    found = []
    for i, slope in enumerate(slopes):
        lower, upper, low, high = abscissas[i], abscissas[i + 1], values[i], values[i + 1]
        after = slopes[i + 1 : i + 2]
        beside = [*slopes[max(i - 1, 0) : i], *after]
        rises = high > low * (1 + STEP) and bool(after or (not per_row and beside))
        steep = rises and slope > STEEPNESS * max(beside)
        grows = per_row and high * lower > low * upper * (1 + PER_ROW)
        if steep or grows or high < low * (1 - DIP):
            found.append(Jump(lower, upper, high / low))
    return tuple(found)
