"""What a kind of drafter adds to the run that all kinds share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from yggc.train.batches import Batch
from yggc.train.card import About
from yggc.train.validate import Agreement, HeldOut


@dataclass(frozen=True, slots=True)
class Loss:
    """`total` (scalar) is what is minimised; `parts` are float32 [n] on the CPU by the name that
    the log has for them, of the same n for every batch and without gradients.
    """

    total: torch.Tensor
    parts: Mapping[str, torch.Tensor]


class Learner(Protocol):
    """A drafter in training.

    What of `model` requires gradients is trained, in float32. `draft_ids` (int64, ascending): the
    ids that it gives logits for.
    """

    @property
    def model(self) -> nn.Module: ...

    @property
    def draft_ids(self) -> torch.Tensor: ...

    def loss(self, batch: Batch, generator: torch.Generator) -> Loss:
        """The loss of one micro-batch; products are in the run's precision. `generator` (CPU) is
        the part's own, so that what is drawn from it is the same when a run goes on. Called by
        several threads at once.
        """

    def measure(self, held_out: HeldOut) -> Agreement:
        """How often the model as it is agrees with the verifier."""

    def write(self, folder: Path, weights: Mapping[str, torch.Tensor]) -> None:
        """Replaces what `yggc build --drafter` reads in the folder, each file whole or as it was;
        `weights` are in place of the trained parameters.
        """

    def about(self, num_parameters: int) -> About:
        """What its card says of it; `num_parameters` are trained."""
