"""Hazards of a draft in plain torch: their definition, their loss, and the predictor that the
verifier's graphs hold.

L is how many tokens of a draft are accepted. Hazard d, d = 1, 2, ..., is P(L >= d | L >= d - 1),
survival d is P(L >= d), the product of the first d hazards. A draft of which `known` levels were
drafted and recorded says something of hazard d if d <= min(L + 1, known): levels behind the first
failure were never tried, and those beyond what is known are censored.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

# Observations that an unconditional hazard starts from: half of one each way (Jeffreys).
PRIOR = 0.5


@dataclass(frozen=True, slots=True)
class Predictor:
    """The constants of the graphs' predictor, float32: encode_weight [64, d], encode_bias [64],
    decode_weight [D_max, 64], decode_bias [D_max]."""

    encode_weight: torch.Tensor
    encode_bias: torch.Tensor
    decode_weight: torch.Tensor
    decode_bias: torch.Tensor

    @classmethod
    def constant(cls, hazards: torch.Tensor, hidden_size: int, num_units: int) -> Predictor:
        """The same hazards [D_max] for every row."""
        return cls(
            torch.zeros(num_units, hidden_size),
            torch.zeros(num_units),
            torch.zeros(len(hazards), num_units),
            torch.logit(hazards).float(),
        )

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """[n, D_max] of hidden rows [n, d]; hazards are their sigmoid."""
        return self.decode(self.encode(rows))

    def encode(self, rows: torch.Tensor) -> torch.Tensor:
        """The units [n, 64]."""
        return nn.functional.silu(nn.functional.linear(rows, self.encode_weight, self.encode_bias))

    def decode(self, units: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(units, self.decode_weight, self.decode_bias)

    def hazards(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.logits(rows))


def hazard_mask(lengths: torch.Tensor, known: torch.Tensor, max_depth: int) -> torch.Tensor:
    """[n, max_depth] bool: which hazards a draft says something of; lengths, known [n] int64."""
    depths = torch.arange(1, max_depth + 1)
    return depths <= torch.minimum(lengths + 1, known)[:, None]


def reached(lengths: torch.Tensor, max_depth: int) -> torch.Tensor:
    """[n, max_depth] bool: L >= d."""
    return lengths[:, None] >= torch.arange(1, max_depth + 1)


def hazard_losses(
    logits: torch.Tensor, lengths: torch.Tensor, known: torch.Tensor
) -> torch.Tensor:
    """[n, D] binary cross entropy in nats of logits [n, D], 0 where the mask is."""
    num = logits.shape[1]
    target = reached(lengths, num).to(logits.dtype)
    loss = nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
    return loss * hazard_mask(lengths, known, num)


def log_loss(logits: torch.Tensor, lengths: torch.Tensor, known: torch.Tensor) -> float:
    """Mean per hazard that the drafts say something of; 0 without one."""
    num = hazard_mask(lengths, known, logits.shape[1]).sum().clamp(min=1)
    return float(hazard_losses(logits, lengths, known).sum() / num)


def unconditional_hazards(
    lengths: torch.Tensor, known: torch.Tensor, max_depth: int
) -> torch.Tensor:
    """[max_depth] float32: the hazards of all drafts together."""
    mask = hazard_mask(lengths, known, max_depth)
    hits = (mask & reached(lengths, max_depth)).sum(0)
    return (hits + PRIOR) / (mask.sum(0) + 2 * PRIOR)
