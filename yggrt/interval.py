"""How far a mean over prompts can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from statistics import fmean, quantiles

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
