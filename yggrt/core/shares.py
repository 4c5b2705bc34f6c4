"""How likely the verifier is to choose a drafter's most likely tokens, by the drafter's logits."""

from __future__ import annotations

import torch
from torch import Tensor

# Noise is asked for so many of a row's most likely tokens. A token beyond them would need far more
# noise than they have to be chosen, and leaving it out costs a match at most.
NOISE_POOL = 512


def shares_of(values: Tensor, logits: Tensor, temperatures: Tensor) -> Tensor:
    """Shares [n, k] of `values` [n, k], some of logits [n, vocab], in a softmax at each row's
    temperature [n]; all float32. Rounding may leave one above 1."""
    scale = temperatures[:, None]
    return torch.exp(values / scale - torch.logsumexp(logits / scale, 1, keepdim=True))


def coupled_shares(
    pool: Tensor,
    logits: Tensor,
    gumbel: Tensor,
    temperature: float | Tensor,
    temperatures: Tensor,
    num: int,
) -> tuple[Tensor, Tensor]:
    """Places [n, k] int64 in the pool of what a drafter would choose first with the verifier's
    noise, and their shares [n, k] float64; k is `num` or the size of the pool.

    `pool` [n, p]: the largest of logits [n, vocab]; `gumbel` [n, p] float64: their tokens' noise;
    `temperature`: the verifier's, a number or [1] float64; `temperatures` [n]: calibrated ones.

    The verifier takes the largest of its logits / T + G. The drafter's logits / T + G has the same
    G, so they part only where the logits do. A calibrated temperature says by how much: take the
    verifier's logits for the drafter's plus Gumbel noise of that scale, and the chance of a token
    is its share in a softmax at that temperature, of the drafter's logits at T = 0 and of logits
    + T G here. Tokens outside the pool count in the sum as if they had no noise.
    """
    scale = temperatures[:, None].double()
    perturbed = (pool + temperature * gumbel) / scale
    values, places = perturbed.topk(min(num, perturbed.shape[1]))
    best = values[:, :1]
    everything = torch.logsumexp(logits / scale, 1, keepdim=True)
    in_pool = torch.logsumexp(pool / scale, 1, keepdim=True)
    rest = torch.exp(everything - best) * -torch.expm1((in_pool - everything).clamp(max=0))
    total = torch.exp(perturbed - best).sum(1, keepdim=True) + rest
    return places, torch.exp(values - best) / total
