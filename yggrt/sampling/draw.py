"""The token that noise picks: argmax of score + G, with G computed where it can matter alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch

from yggrt.core.errors import RequestError
from yggrt.core.gumbel import gumbel, gumbel_nearly
from yggrt.sampling import noise as noise_of
from yggrt.sampling.filters import Kept
from yggrt.sampling.noise import KeyedNoise

# Ids of the scores [vocab] float32 that are at least a bound, or whose noise by a stream's key is
# in the loudest 2^-bits: (scores, bound, key, bits) -> ids [n] int64, ascending.
KeyedSelect: TypeAlias = Callable[[torch.Tensor, float, int, int], torch.Tensor]

LOUD_BITS = 10
# Most G of a token that is not loud, with room for the rounding of sums.
QUIET_MAX = noise_of.loudness(LOUD_BITS) + 1e-3
# So many values torch reduces on one thread: waking another takes longer than the reduction.
ALONE = 32_000
# With fewer tokens left, their noise is computed without a look at the others.
FEW = 4096


def draw(
    kept: Kept,
    noise: KeyedNoise,
    position: int,
    *,
    likely: int | None = None,
    keyed_select: KeyedSelect | None = None,
) -> int:
    """The token of highest score + G, the lowest id on ties.

    Scores are log-probabilities up to a constant; float32 scores and float64 noise are added in
    float64. likely: a token that probably scores high; keyed_select: an operator library's; both
    change the time taken and nothing else.

    G is computed for tokens that can win alone. The winner's sum is at least the sum of any one
    token: of the highest scorer, whose noise is GUMBEL_MIN at least, since noise of finite
    resolution is bounded, and of `likely`. Call the larger of these two bounds b. A token that is
    not loud (its hash alone says so; one in 2^LOUD_BITS is) has G < QUIET_MAX, so with a score
    below b - QUIET_MAX its sum is below b and it cannot win. What is left are the loud tokens and
    those that score b - QUIET_MAX or more. That bound is rounded downwards to float32, and
    QUIET_MAX has 1e-3 to spare for the rounding of sums, enough for scores up to 10^12. So the
    result is that of the full computation, always.

    Raises RequestError if no token is in, or scores are no numbers.
    """
    highest = peak(kept.scores)
    if kept.ids is not None and len(kept.ids) <= FEW:
        return _best(kept.scores, kept.ids, noise.uniform(position, kept.ids))
    scores = kept.dense()
    least = highest + noise_of.GUMBEL_MIN
    if likely is not None:
        least = max(least, float(scores[likely]) + noise.of_one(position, likely))
    bound = least - QUIET_MAX
    bound -= abs(bound) * 2**-23
    if keyed_select is not None:
        ids = keyed_select(scores, bound, noise.key(position), LOUD_BITS)
        return _best(scores[ids], ids, noise.uniform(position, ids))
    words, candidates = noise.loud(position, len(scores), LOUD_BITS)
    ids = candidates.logical_or_(scores >= bound).nonzero().squeeze(1)
    return _best(scores[ids], ids, noise_of.uniform_of(words[ids]))


def most_likely(scores: torch.Tensor) -> int:
    """The token of the highest score, the lowest id on ties; errors as in `draw`."""
    return int((scores == peak(scores)).nonzero()[0])


def peak(scores: torch.Tensor) -> float:
    """The highest score; raises RequestError if no token is in, or scores are no numbers."""
    parts = torch.split(scores, ALONE)
    highest = float(torch.stack([part.amax() for part in parts]).amax())
    if math.isnan(highest) or highest == math.inf:
        raise RequestError(
            f"a logit is {highest}, wanted a finite number",
            "check bias, penalties and processors; without any, `yggrt verify` checks the bundle",
        )
    if highest == -math.inf:
        raise RequestError(
            "no token is left: what the request excludes is the whole vocabulary",
            "relax the constraint, logit_bias, min_tokens or the processors",
        )
    return highest


def _best(scores: torch.Tensor, ids: torch.Tensor, x: torch.Tensor) -> int:
    """argmax of score + G over ascending `ids`, all [n]. Quick logarithms mostly leave one token
    that can be it; where they leave several, the portable ones decide.
    """
    base = scores.to(torch.float64)
    sums = gumbel_nearly(x).add_(base)
    highest, index = sums.max(0)
    top = float(highest)
    close = sums >= top - 1e-9 * (1 + abs(top))
    if int(close.sum()) > 1:
        rest = close.nonzero().squeeze(1)
        sums = gumbel(x[rest]).add_(base[rest])
        index = rest[sums.argmax()]  # the first, that is the lowest id, on ties
    return int(ids[index])
