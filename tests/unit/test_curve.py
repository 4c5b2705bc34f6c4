"""Monotone fits and jumps of measured curves."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction as F

import pytest

from yggrt.core.curve import Jump, isotonic, jumps, monotone_grid


def best_partition(values: list[F]) -> list[F]:
    """Least squares over all ways to cut the sequence into blocks of equal values: the definition
    of isotonic regression."""
    found: tuple[F, list[F]] | None = None
    for cuts in itertools.product([False, True], repeat=len(values) - 1):
        blocks, block = [], [values[0]]
        for cut, value in zip(cuts, values[1:], strict=True):
            if cut:
                blocks.append(block)
                block = []
            block.append(value)
        blocks.append(block)
        fit = [sum(b) / len(b) for b in blocks for _ in b]
        if all(a <= b for a, b in itertools.pairwise(fit)):
            error = sum((a - b) ** 2 for a, b in zip(fit, values, strict=True))
            if found is None or error < found[0]:
                found = (error, fit)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("seed", range(30))
def test_isotonic_is_the_least_squares_fit(seed: int) -> None:
    rng = random.Random(seed)
    values = [F(rng.randrange(12)) for _ in range(rng.randrange(1, 8))]
    exact = isotonic(values)
    assert exact == best_partition(values)
    assert isotonic([float(v) for v in values]) == pytest.approx([float(v) for v in exact])


def test_isotonic_keeps_what_is_in_order_and_pools_what_is_not() -> None:
    assert isotonic([F(1), F(2), F(2), F(5)]) == [1, 2, 2, 5]
    assert isotonic([F(1), F(3), F(2), F(4)]) == [1, F(5, 2), F(5, 2), 4]
    assert isotonic([F(4), F(3), F(2), F(1)]) == [F(5, 2)] * 4
    assert isotonic([]) == []


@pytest.mark.parametrize("seed", range(30))
def test_a_grid_is_monotone_in_both_directions_and_keeps_its_mean(seed: int) -> None:
    rng = random.Random(seed)
    rows, columns = rng.randrange(1, 6), rng.randrange(1, 6)
    grid = [[F(rng.randrange(20)) for _ in range(columns)] for _ in range(rows)]
    fit = monotone_grid(grid)
    for row in fit:
        assert all(a <= b for a, b in itertools.pairwise(row))
    for column in zip(*fit, strict=True):
        assert all(a <= b for a, b in itertools.pairwise(column))
    assert sum(map(sum, fit)) == sum(map(sum, grid))
    assert monotone_grid(fit) == fit


ROWS = (1, 4, 8, 16)


@pytest.mark.parametrize(
    "seconds",
    [
        (26.3, 27.9, 31.6, 42.6),  # float32 weights: flat, then a slow bend
        (9.4, 15.8, 19.5, 32.0),  # 4-bit weights, float activations: rows decode once each
        (10.0, 10.0, 10.0, 20.0),  # the bend of a roofline at a measured point
        (1.0, 4.0, 8.0, 16.0),  # in proportion from the start
        (10.0, 9.8, 10.1, 10.0),  # noise
    ],
)
def test_smooth_curves_have_no_jump(seconds: tuple[float, ...]) -> None:
    assert jumps(ROWS, seconds, per_row=True) == ()


def test_a_step_is_named_with_its_place() -> None:
    assert jumps(ROWS, (25.0, 26.0, 60.0, 62.0), per_row=True) == (Jump(4, 8, 60 / 26),)
    assert jumps(ROWS, (25.0, 60.0, 61.0, 62.0), per_row=True) == (Jump(1, 4, 60 / 25),)
    # One row more than a tile: two passes of half the rows would be quicker.
    assert jumps((1, 4, 5), (10.0, 11.0, 22.0), per_row=True) == (Jump(4, 5, 2.0),)
    assert jumps((64, 256, 1024, 2000), (25.0, 26.0, 28.0, 90.0)) == (Jump(1024, 2000, 90 / 28),)
    assert jumps((64, 256, 1024, 2000), (25.0, 26.0, 28.0, 31.0)) == ()


def test_a_fall_is_a_disturbance_of_what_came_before() -> None:
    assert jumps(ROWS, (25.0, 40.0, 30.0, 42.0), per_row=True)[-1] == Jump(4, 8, 0.75)
