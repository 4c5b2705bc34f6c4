"""One step of training: gradients of micro-batches, the optimiser, an average of the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import nn

from yggc.train.batches import collate
from yggc.train.features import Features
from yggc.train.gang import Gang
from yggc.train.learner import Learner
from yggc.train.texts import Row

BETAS = (0.9, 0.95)
CLIP = 0.5


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """By name, in the model's order: everything but what is the verifier's."""
    return {name: one for name, one in model.named_parameters() if one.requires_grad}


@dataclass(frozen=True, slots=True)
class StepResult:
    """Means over the micro-batches; `parts` as `Loss` has them."""

    total: float
    parts: Mapping[str, tuple[float, ...]]
    gradient_norm: float
    num_tokens: int


class Trainer:
    """Owns the optimiser and the averaged weights of a learner's model, which is on `device`."""

    def __init__(
        self,
        learner: Learner,
        features: Features,
        device: torch.device,
        *,
        bfloat16: bool,
        learning_rate: float,
        average: float,
        seed: int,
    ) -> None:
        self.learner = learner
        self._features, self._device, self._bfloat16 = features, device, bfloat16
        self._learning_rate, self._average, self._seed = learning_rate, average, seed
        self.parameters = trained_parameters(learner.model)
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(), lr=learning_rate, betas=BETAS, weight_decay=0.01
        )
        self.averaged = {name: one.detach().clone() for name, one in self.parameters.items()}

    def precision(self) -> AbstractContextManager[None]:
        """Products in bfloat16 if the run has it, master weights in float32."""
        context: AbstractContextManager[None] = torch.autocast(
            self._device.type, torch.bfloat16, enabled=self._bfloat16
        )
        return context

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
        mean = {
            name: tuple(torch.stack([result[2][name] for result in results]).mean(0).tolist())
            for name in results[0][2]
        }
        return StepResult(total, mean, norm, sum(result[3] for result in results))

    def _gradients(
        self, numbered: tuple[int, int, Sequence[Row]]
    ) -> tuple[Sequence[torch.Tensor], float, Mapping[str, torch.Tensor], int]:
        number, index, rows = numbered
        batch = collate(rows, self._features, self._device)
        generator = torch.Generator().manual_seed((self._seed * 1_000_003 + number) * 64 + index)
        with self.precision():
            found = self.learner.loss(batch, generator)
        gradients = torch.autograd.grad(found.total, list(self.parameters.values()))
        return gradients, found.total.item(), found.parts, int(batch.valid.sum())

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
