"""Cross entropy against the verifier's own distribution, a chunk of rows at a time."""

from __future__ import annotations

from typing import Any

import torch

# Rows whose logits are in memory at once.
CHUNK_ROWS = 512


@torch.no_grad()
def mean_rows(
    features: torch.Tensor, head: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """The rows of `head` [V, hidden] in the mean over softmax(features head^T / temperature):
    [N, hidden], for `features` [N, hidden].

    Cross entropy against that distribution needs nothing else of it.
    """
    return torch.cat(
        [
            _soft_mean((chunk / temperature).to(head.dtype), head)[0]
            for chunk in features.split(CHUNK_ROWS)
        ]
    )


class SoftCrossEntropy(torch.autograd.Function):
    """`apply(features [N, hidden], head [V, hidden], mean_rows [N, hidden])` -> float32 [N]: the
    cross entropy of softmax(features head^T) against the distribution with these mean rows.

    The target's part, sum_v t_v z_v, is features . mean_rows, so its logits are never needed; the
    gradient, the difference of two mean rows, is made along with the loss.
    """

    @staticmethod
    def forward(
        ctx: Any, features: torch.Tensor, head: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        losses, gradients = [], []
        for chunk, wanted in zip(
            features.split(CHUNK_ROWS), target.split(CHUNK_ROWS), strict=True
        ):
            mean, log_sum = _soft_mean(chunk.to(head.dtype), head)
            gradients.append(mean - wanted)
            losses.append(log_sum - (chunk.float() * wanted).sum(-1))
        ctx.save_for_backward(torch.cat(gradients))
        return torch.cat(losses)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (by_feature,) = ctx.saved_tensors
        return by_feature * gradient[:, None], None, None


def _soft_mean(rows: torch.Tensor, head: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(rows head^T) head and the softmax's log sum, float32 [N, hidden] and [N]."""
    logits = rows @ head.T
    top = logits.amax(-1, keepdim=True)
    weights = logits.sub_(top).exp_()
    # In bfloat16, rounded once: another result type would copy all weights first.
    total = weights.sum(-1).float()
    mean = (weights @ head).float() / total[:, None]
    return mean, total.log() + top[:, 0].float()


@torch.no_grad()
def soft_targets(
    features: torch.Tensor, head: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """softmax(features head^T / temperature), [N, V] in `head`'s dtype, for `features` [N, hidden]
    and `head` [V, hidden].
    """
    chunks = features.split(CHUNK_ROWS)
    parts = [((one / temperature).to(head.dtype) @ head.T).softmax(-1) for one in chunks]
    return torch.cat(parts).to(head.dtype)


class MeanCrossEntropy(torch.autograd.Function):
    """`apply(rows [N, hidden], head [V, hidden], target [N, V])` -> float32 scalar: the mean cross
    entropy of softmax(rows head^T) against `target`, with products in `target`'s dtype and
    gradients for both.

    Those are made along with the loss, so that no logits are kept.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, head: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        matrix = head.to(target.dtype)
        total = torch.zeros((), device=rows.device)
        by_row, by_head = [], torch.zeros_like(head, dtype=torch.float32)
        for chunk, wanted in zip(rows.split(CHUNK_ROWS), target.split(CHUNK_ROWS), strict=True):
            given = chunk.to(target.dtype)
            log = (given @ matrix.T).float().log_softmax(-1)
            total -= (wanted * log).sum()
            difference = (log.exp_() - wanted).to(target.dtype)
            by_row.append((difference @ matrix).float())
            by_head += difference.T @ given
        ctx.save_for_backward(torch.cat(by_row) / len(rows), by_head / len(rows))
        return total / len(rows)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        by_row, by_head = ctx.saved_tensors
        return by_row * gradient, by_head * gradient, None
