"""How far a mean over prompts can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from random import Random
from statistics import fmean, quantiles
from typing import Any

NUM_RESAMPLES = 10_000


def bootstrap_interval(values: Sequence[float], seed: int = 0) -> tuple[float, float] | None:
    """95 % interval of the mean of `values` by the percentile bootstrap; None for fewer than two.

    Efron & Tibshirani, "An Introduction to the Bootstrap" (1993), 13.3. The same values give the
    same interval.
    """
    if len(values) < 2:
        return None
    random = Random(seed)
    means = [fmean(random.choices(values, k=len(values))) for _ in range(NUM_RESAMPLES)]
    cuts = quantiles(means, n=40, method="inclusive")
    return cuts[0], cuts[-1]


def mean_with_interval(name: str, values: Sequence[float]) -> dict[str, Any]:
    """The mean under `name` and its interval under `NAME_interval`, in JSON types."""
    interval = bootstrap_interval(values)
    return {name: fmean(values), f"{name}_interval": list(interval) if interval else None}


def mean_ratio(name: str, above: Sequence[float], below: Sequence[float]) -> dict[str, Any]:
    """As `mean_with_interval`, of the ratios of what was measured in pairs."""
    return mean_with_interval(name, [a / b for a, b in zip(above, below, strict=True)])


def geometric_ratio(name: str, ratios: Sequence[float]) -> dict[str, Any]:
    """As `mean_with_interval`, of the geometric mean. That of inverse ratios is its inverse, so
    noise alone favours neither side; in a mean of ratios it raises what is above."""
    interval = bootstrap_interval([log(one) for one in ratios])
    return {
        name: exp(fmean(map(log, ratios))),
        f"{name}_interval": [exp(one) for one in interval] if interval else None,
    }


def shown_ratio(row: dict[str, Any], name: str) -> str:
    """As in "1.92x [1.70, 2.13]"; without the interval if there is none."""
    interval = row[f"{name}_interval"]
    brackets = f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else ""
    return f"{row[name]:.2f}x{brackets}"
