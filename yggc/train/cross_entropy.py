"""Cross entropy against the verifier's own distribution, a chunk of rows at a time."""

from __future__ import annotations

from typing import Any

import torch

# Rows whose logits are in memory at once.
CHUNK_ROWS = 512
# Fewer where both models' are, in float32.
TRAINED_ROWS = 128


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


@torch.no_grad()
def first_choices(features: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """int64 [N]: the row of `head` [V, hidden] with the largest logit, for each of `features`
    [N, hidden].
    """
    found = [(rows.to(head.dtype) @ head.T).argmax(-1) for rows in features.split(CHUNK_ROWS)]
    return torch.cat(found)


def weighted_mean(losses: torch.Tensor, chosen: torch.Tensor, weight: float) -> torch.Tensor:
    """The mean of `losses` [N] with `weight` where `chosen` (bool [N]) and 1 elsewhere, over the
    sum of the weights.
    """
    weights = torch.where(chosen, weight, 1.0)
    return (losses * weights).sum() / weights.sum()


def _soft_mean(rows: torch.Tensor, head: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(rows head^T) head and the softmax's log sum, float32 [N, hidden] and [N]."""
    logits = rows @ head.T
    top = logits.amax(-1, keepdim=True)
    weights = logits.sub_(top).exp_()
    # In bfloat16, rounded once: another result type would copy all weights first.
    total = weights.sum(-1).float()
    mean = (weights @ head).float() / total[:, None]
    return mean, total.log() + top[:, 0].float()


class TrainedHeadCrossEntropy(torch.autograd.Function):
    """`apply(hidden [N, h], head [V, h], features [N, hidden], verifier_head [V, hidden],
    temperature, rejected[, among])` -> float32 []: the mean cross entropy of softmax(hidden
    head^T) against softmax(features verifier_head^T / temperature), with gradients for `hidden`
    and `head`.

    Products are in the dtype of `verifier_head`, what follows in float32. Of all logits a chunk of
    rows is in memory: the gradients are made along with the loss. rejected: the weight of a row
    whose likeliest id is not the verifier's, of those in `among` (bool [N], all without it),
    beside 1 for the others; None for a plain mean.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        head: torch.Tensor,
        features: torch.Tensor,
        verifier_head: torch.Tensor,
        temperature: float,
        rejected: float | None,
        among: torch.Tensor | None = None,
    ) -> torch.Tensor:
        dtype = verifier_head.dtype
        matrix = head.to(dtype)
        by_head = torch.zeros(head.shape, dtype=torch.float32, device=head.device)
        by_hidden = []
        total = torch.zeros((), device=head.device)
        weight_sum = torch.zeros((), device=head.device)
        if among is None:
            among = torch.ones(len(hidden), dtype=torch.bool, device=head.device)
        # No product is to be rounded further than it says above.
        with torch.autocast(head.device.type, enabled=False):
            for rows, wanted, counted in zip(
                hidden.to(dtype).split(TRAINED_ROWS),
                features.to(dtype).split(TRAINED_ROWS),
                among.split(TRAINED_ROWS),
                strict=True,
            ):
                logits = (rows @ matrix.T).float()
                target = (wanted @ verifier_head.T).float()
                weights = torch.ones(len(rows), device=head.device)
                if rejected is not None:
                    wrong = logits.argmax(-1) != target.argmax(-1)
                    weights[wrong & counted] = rejected
                target = target.div_(temperature).softmax(-1)
                log_sum = logits.logsumexp(-1)
                found = log_sum - torch.linalg.vecdot(target, logits)
                total += (weights * found).sum()
                weight_sum += weights.sum()
                by_logits = (
                    logits.sub_(log_sum[:, None]).exp_().sub_(target).mul_(weights[:, None])
                )
                by_logits = by_logits.to(dtype)
                by_hidden.append((by_logits @ matrix).float())
                by_head += by_logits.T @ rows
        ctx.save_for_backward(torch.cat(by_hidden).div_(weight_sum), by_head.div_(weight_sum))
        return total / weight_sum

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        by_hidden, by_head = ctx.saved_tensors
        return by_hidden * gradient, by_head * gradient, None, None, None, None, None
