"""One step of training: gradients of micro-batches, the optimiser, an average of the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from yggc.models.eagle import EagleForCausalLM
from yggc.train.batches import collate
from yggc.train.eagle import LossWeights, losses, unroll
from yggc.train.features import Features
from yggc.train.gang import Gang
from yggc.train.texts import Row

BETAS = (0.9, 0.95)
CLIP = 0.5


@dataclass(frozen=True, slots=True)
class Frozen:
    """The verifier's part of a head: `embedding` [vocab, hidden] and the drafting `head`
    [draft_vocab, hidden], both in the dtype to compute in; embeddings times `scale` have the
    features' size.
    """

    embedding: torch.Tensor
    head: torch.Tensor
    scale: float

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(ids, self.embedding) * self.scale


@dataclass(frozen=True, slots=True)
class StepOptions:
    num_steps: int
    weights: LossWeights
    noise: float
    detach: bool
    bfloat16: bool


def precision(device: torch.device, bfloat16: bool) -> AbstractContextManager[None]:
    """Products in bfloat16, master weights in float32."""
    context: AbstractContextManager[None] = torch.autocast(
        device.type, torch.bfloat16, enabled=bfloat16
    )
    return context


def trained_parameters(model: EagleForCausalLM) -> dict[str, torch.nn.Parameter]:
    """By name, in the model's order: everything but the verifier's embedding and head."""
    return {name: one for name, one in model.named_parameters() if one.requires_grad}


@dataclass(frozen=True, slots=True)
class StepResult:
    """Means over the micro-batches; losses by fed-back step."""

    total: float
    feature: tuple[float, ...]
    token: tuple[float, ...]
    gradient_norm: float
    num_tokens: int


class Trainer:
    """Owns the model, the optimiser and the averaged weights."""

    def __init__(
        self,
        model: EagleForCausalLM,
        frozen: Frozen,
        features: Features,
        options: StepOptions,
        *,
        learning_rate: float,
        average: float,
        seed: int,
    ) -> None:
        self.model, self.frozen = model, frozen
        self._features, self._options = features, options
        self._learning_rate, self._average, self._seed = learning_rate, average, seed
        self.parameters = trained_parameters(model)
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(), lr=learning_rate, betas=BETAS, weight_decay=0.01
        )
        self.averaged = {name: one.detach().clone() for name, one in self.parameters.items()}

    def step(
        self, number: int, parts: Sequence[Sequence[Row]], rate: float, gang: Gang
    ) -> StepResult:
        """Step `number` (from 0) on these micro-batches; `rate` is the share of the learning rate
        to take.
        """
        numbered = [(number, index, rows) for index, rows in enumerate(parts)]
        results = list(gang.map(self._gradients, numbered))
        share = 1 / len(results)
        for index, parameter in enumerate(self.parameters.values()):
            parameter.grad = torch.stack([result[0][index] for result in results]).sum(0) * share
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), CLIP).item()
        total = sum(result[1] for result in results) * share
        if math.isfinite(total) and math.isfinite(norm):
            for group in self.optimizer.param_groups:
                group["lr"] = self._learning_rate * rate
            self.optimizer.step()
            self._follow(number)
        mean = [
            tuple(torch.stack(columns).mean(0).tolist())
            for columns in zip(*(result[2] for result in results), strict=True)
        ]
        return StepResult(total, mean[0], mean[1], norm, sum(result[3] for result in results))

    def _gradients(
        self, numbered: tuple[int, int, Sequence[Row]]
    ) -> tuple[Sequence[torch.Tensor], float, tuple[torch.Tensor, torch.Tensor], int]:
        number, index, rows = numbered
        options, device = self._options, self.model.device
        batch = collate(rows, self._features, device)
        given = batch.given
        if options.noise:
            generator = torch.Generator().manual_seed(
                (self._seed * 1_000_003 + number) * 64 + index
            )
            drawn = torch.rand(given.shape, generator=generator, dtype=torch.float32) - 0.5
            batch = batch.with_given(given + (drawn * options.noise).to(given))
        with precision(device, options.bfloat16):
            steps = unroll(
                self.model,
                batch,
                self.frozen.embed(batch.ids),
                options.num_steps,
                detach=options.detach,
            )
            found = losses(steps, batch, self.frozen.head, options.weights)
        gradients = torch.autograd.grad(found.total, list(self.parameters.values()))
        padding = options.num_steps - len(found.feature)
        parts = tuple(
            torch.nn.functional.pad(part, (0, padding), value=0.0).cpu()
            for part in (found.feature, found.token)
        )
        return gradients, found.total.item(), (parts[0], parts[1]), int(batch.valid.sum())

    @torch.no_grad()
    def _follow(self, number: int) -> None:
        # Young averages forget faster, or they would remember the first weights.
        keep = min(self._average, (1 + number) / (10 + number))
        for name, parameter in self.parameters.items():
            self.averaged[name].lerp_(parameter, 1 - keep)


def schedule(number: int, total: int, warmup: int) -> float:
    """Share of the learning rate in step `number`: linear warm-up, then half a cosine to 2 %."""
    if number < warmup:
        return (number + 1) / warmup
    done = (number - warmup) / max(1, total - warmup)
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
