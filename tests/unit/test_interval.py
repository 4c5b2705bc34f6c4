"""The bootstrap interval against the exact bootstrap distribution, drawn up by enumeration."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from statistics import fmean

import pytest

from yggrt.interval import bootstrap_interval


@pytest.mark.parametrize("values", [(1.0, 2.0), (0.5, 1.0, 4.0), (3.0, 1.0, 4.0, 1.5, 9.0)])
def test_the_interval_is_that_of_all_resamples(values: tuple[float, ...]) -> None:
    interval = bootstrap_interval(values)
    assert interval is not None
    low, high = interval
    means = [fmean(drawn) for drawn in product(values, repeat=len(values))]

    def share(keep: list[bool]) -> Fraction:
        return Fraction(sum(keep), len(means))

    # Two standard errors of 10,000 draws around 2.5 %; a mean may have a large mass of its own.
    slack = Fraction(32, 10_000)
    wanted = Fraction(25, 1000)
    assert share([mean < low - 1e-9 for mean in means]) <= wanted + slack
    assert share([mean <= low + 1e-9 for mean in means]) >= wanted - slack
    assert share([mean > high + 1e-9 for mean in means]) <= wanted + slack
    assert share([mean >= high - 1e-9 for mean in means]) >= wanted - slack


def test_the_same_values_give_the_same_interval() -> None:
    values = [1.0, 1.5, 1.2, 3.0, 0.9]
    assert bootstrap_interval(values) == bootstrap_interval(values)


def test_one_value_has_no_interval() -> None:
    assert bootstrap_interval([1.3]) is None
    assert bootstrap_interval([1.3, 1.3]) == (1.3, 1.3)
