"""Temperature, top-k, top-p and min-p: which tokens stay in, as transformers' warpers decide."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

# Transformers sums probabilities in float32 along the whole vocabulary. Where a limit is this
# close to a value, the rounding of those sums decides, and is repeated; elsewhere no order of
# summation matters.
_ROUNDING = 2e-5


class Kept(NamedTuple):
    """Scores of the tokens that are in: those of `ids` [n] int64, ascending, or, without ids, of
    all. scores: [n] float32, -inf for tokens that are out all the same.
    """

    scores: torch.Tensor
    vocab_size: int
    ids: torch.Tensor | None = None

    @classmethod
    def all(cls, scores: torch.Tensor) -> Kept:
        return cls(scores, len(scores))

    def select(self, index: torch.Tensor) -> Kept:
        """Those at `index`, ascending."""
        ids = index if self.ids is None else self.ids[index]
        return Kept(self.scores[index], self.vocab_size, ids)

    def dense(self) -> torch.Tensor:
        """[vocab] float32, -inf for tokens that are out."""
        if self.ids is None:
            return self.scores
        scores = torch.full((self.vocab_size,), -math.inf)
        scores[self.ids] = self.scores
        return scores


def heat(scores: torch.Tensor, temperature: float) -> torch.Tensor:
    """Scores over the temperature."""
    return scores if temperature == 1 else scores / temperature


def top_k(kept: Kept, num: int) -> Kept:
    """The `num` highest scores, and all that equal the lowest of them."""
    scores = kept.scores
    if num >= len(scores):
        return kept
    values, index = scores.topk(num + 1)
    lowest, next_lower = values[-2:].tolist()
    if next_lower < lowest:
        return kept.select(index[:-1].sort().values)
    return kept.select((scores >= lowest).nonzero().squeeze(1))


def min_p(kept: Kept, share: float) -> Kept:
    """Tokens of at least `share` of the highest probability."""
    probs = kept.scores.softmax(0)
    limit = share * probs.amax()
    if kept.ids is not None and bool(((probs - limit).abs() < _ROUNDING * limit).any()):
        everything = kept.dense().softmax(0)
        probs, limit = everything[kept.ids], share * everything.amax()
    return kept.select((probs >= limit).nonzero().squeeze(1))


def top_p(kept: Kept, mass: float) -> Kept:
    """The fewest of the most likely tokens that together have more than `mass`; of equal scores at
    the limit the higher ids, which is what a stable ascending sort keeps.

    Only tokens that may stay are sorted: those below (1 - mass) / 2n of n have together less than
    half of what is cut off, so all of them are. Where the limit falls too close to a sum for that
    shortcut, the whole vocabulary is sorted.
    """
    if mass == 1:
        return kept
    probs, limit = kept.scores.softmax(0), 1 - mass
    likely = (probs >= limit / (2 * len(probs))).nonzero().squeeze(1)
    values, order = kept.scores[likely].sort(stable=True)
    index = likely[order]
    sorted_probs = probs[index].to(torch.float64)
    sums = sorted_probs.cumsum(0).add_(1 - sorted_probs.sum())
    num_out = int((sums <= limit).sum())
    near = sums[max(0, num_out - 1) : num_out + 1]
    if bool((near - limit).abs().amin() < _ROUNDING):
        kept = Kept.all(kept.dense())
        values, index = kept.scores.sort(stable=True)
        # A prefix: sums never fall.
        num_out = int((values.softmax(0).cumsum(0) <= limit).sum())
    # The most likely token always stays.
    return kept.select(index[min(num_out, len(values) - 1) :].sort().values)
