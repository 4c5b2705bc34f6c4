"""Temperature, top-k, top-p and min-p: which tokens stay in, as transformers' warpers decide it.

Each takes scores [vocab] float32 and gives scores of the same shape, -inf for tokens that are out,
and leaves its argument as it is.
"""

from __future__ import annotations

import math

import torch

# Transformers sums probabilities in float32 along the sorted vocabulary. Where the limit is this
# close to a sum, its rounding decides, and is repeated; elsewhere no order of summation matters.
_ROUNDING = 2e-5


def heat(scores: torch.Tensor, temperature: float) -> torch.Tensor:
    """Scores over the temperature."""
    return scores if temperature == 1 else scores / temperature


def top_k(scores: torch.Tensor, num: int) -> torch.Tensor:
    """The `num` highest scores, and all that equal the lowest of them."""
    if num >= len(scores):
        return scores
    return _keep(scores, scores >= scores.topk(num, sorted=False).values.amin())


def min_p(scores: torch.Tensor, share: float) -> torch.Tensor:
    """Tokens of at least `share` of the highest probability."""
    probs = scores.softmax(0)
    return _keep(scores, probs >= share * probs.amax())


def top_p(scores: torch.Tensor, mass: float) -> torch.Tensor:
    """The fewest of the most likely tokens that together have more than `mass`; of equal scores at
    the limit the higher ids, which is what a stable ascending sort keeps.

    Only tokens that may stay are sorted: those below (1 - mass) / (2 vocab) have together less
    than half of what is cut off, so all of them are. Where the limit falls too close between two
    sums for that shortcut, the whole vocabulary is sorted.
    """
    if mass == 1:
        return scores
    probs = scores.softmax(0)
    ids = (probs >= (1 - mass) / (2 * len(scores))).nonzero().squeeze(1)
    values, order = scores[ids].sort(stable=True)
    kept = probs[ids[order]].to(torch.float64)
    sums = kept.cumsum(0).add_(1 - kept.sum())
    limit = 1 - mass
    num_out = int((sums <= limit).sum())
    near = sums[max(0, num_out - 1) : num_out + 1]
    if bool((near - limit).abs().amin() < _ROUNDING):
        values, ids = scores.sort(stable=True)
        order = torch.arange(len(scores))
        # A prefix: sums never fall.
        num_out = int((values.softmax(0).cumsum(0) <= limit).sum())
    # The most likely token always stays.
    num_out = min(num_out, len(values) - 1)
    mask = torch.zeros(len(scores), dtype=torch.bool)
    mask[ids[order[num_out:]]] = True
    return _keep(scores, mask)


def _keep(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.where(mask, scores, -math.inf)
