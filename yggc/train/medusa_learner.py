"""Medusa heads in training: their options, their loss and their folder.

Cai et al., "Medusa" (arXiv 2401.10774), section 2.2.1: the verifier is frozen, and the loss is the
sum over the heads k = 1, 2, ... of 0.8^k times the cross entropy of the token k + 1 behind the one
whose hidden state the head reads; here against the verifier's distribution for that token.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as functional

from yggc.models.medusa import MedusaConfig, MedusaForCausalLM, medusa_config
from yggc.train.batches import Batch, first_batches
from yggc.train.card import About
from yggc.train.cross_entropy import SoftCrossEntropy, first_choices, mean_rows, weighted_mean
from yggc.train.eagle import Rejections
from yggc.train.eagle_learner import FIT_TOKENS, HeadOptions, padded
from yggc.train.head import AnyHeadConfig, read_head, write_head
from yggc.train.initial import ridge_regressions, take_over
from yggc.train.learner import Loss
from yggc.train.run import Setting
from yggc.train.validate import Agreement, HeldOut


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaOptions(HeadOptions):
    """What `yggc train medusa` adds. num_steps: heads; num_blocks: of each."""

    kind: ClassVar[str] = "medusa"
    head: ClassVar[type[AnyHeadConfig]] = MedusaConfig

    num_blocks: int = 1

    def learner(self, setting: Setting) -> MedusaLearner:
        """Heads whose blocks pass their input on and whose projections are regressions, or those
        that are given."""
        verifier, rows = setting.verifier, setting.texts.train
        draft_ids = self.draft_ids(setting)
        config = medusa_config(
            setting.checkpoint.config, len(draft_ids), self.num_steps, self.num_blocks
        )
        model = new_heads(config).to(verifier.device)
        if self.first is None:
            fitted = ridge_regressions(
                first_batches(rows, FIT_TOKENS),
                setting.features,
                [functools.partial(read_by, step) for step in range(self.num_steps)],
                lambda batch: batch.features,
                verifier.device,
            )
            for head, matrix in zip(model.heads, fitted, strict=True):
                head.get_parameter("out.weight").data.copy_(matrix)
        else:
            take_over(model, read_head(self.first), str(self.first), draft_ids)
        chosen = verifier.head[draft_ids.to(verifier.device)].contiguous()
        return MedusaLearner(model, chosen, draft_ids, self, setting.identity)


def new_heads(config: MedusaConfig) -> MedusaForCausalLM:
    """Heads whose blocks pass their input on, float32; what is the verifier's is frozen and empty.

    Nothing is random: the same blocks under other projections learn other things.
    """
    model = MedusaForCausalLM(MedusaConfig(**{**config.to_dict(), "draft_vocab_size": 1})).float()
    model.config = config
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".blocks." in name:
                parameter.zero_()
    model.get_parameter("lm_head.weight").requires_grad_(False)
    return model


def read_by(step: int, batch: Batch) -> torch.Tensor:
    """What head `step` (from 0) reads [B, C, hidden] to guess the token behind each column.

    A draft's root stands `step` tokens before the column, and heads read the hidden state of the
    token before the root, after which the verifier chose the root itself.
    """
    num = batch.given.shape[1]
    return functional.pad(batch.given[:, : max(0, num - step)], (0, 0, min(step, num), 0))


class MedusaLearner:
    """Heads with the verifier's output head for the draft ids, `output` [draft_vocab, hidden] in
    the dtype to compute in; draft_ids and verifier as for EagleLearner.
    """

    def __init__(
        self,
        model: MedusaForCausalLM,
        output: torch.Tensor,
        draft_ids: torch.Tensor,
        options: MedusaOptions,
        verifier: Mapping[str, Any],
    ) -> None:
        self.model, self.draft_ids = model, draft_ids
        self._output, self._options, self._verifier = output, options, verifier

    def loss(self, batch: Batch, generator: torch.Generator) -> Loss:
        """Cross entropy of each head, weighted by `decay` to the power of its number from 1. Draws
        nothing.
        """
        options, valid, output = self._options, batch.valid, self._output
        wanted = batch.features[:, -batch.num_queries :][valid]
        target = mean_rows(wanted, output, options.temperature)
        rejections = Rejections(batch, output)
        total, parts = torch.zeros((), device=wanted.device), []
        for step, found in enumerate(self._draft(batch)):
            reached = batch.valid_at(step)
            rows = found[reached]
            if not len(rows):
                break
            by_query = SoftCrossEntropy.apply(rows, output, target[reached[valid]])
            if options.rejected_weight is None:
                token = by_query.mean()
            else:
                rejected = rejections.of(step, first_choices(rows, output))
                token = weighted_mean(by_query, rejected, options.rejected_weight)
            total = total + options.decay ** (step + 1) * token
            parts.append(token.detach())
        return padded(total, {"token": torch.stack(parts)}, options.num_steps)

    def measure(self, held_out: HeldOut) -> Agreement:
        """A head for each step of a draft."""
        return held_out.measure(self._draft, self._output, self._options.num_steps)

    def write(self, folder: Path, weights: Mapping[str, torch.Tensor]) -> None:
        """Replaces the heads in the folder."""
        write_head(folder, self.model.config, weights, self.draft_ids, self._verifier)

    def about(self, num_parameters: int) -> About:
        """What the heads' card says of them."""
        options = self._options
        return About(
            title="Medusa heads",
            noun="head",
            text=(
                f"{options.num_steps} heads that draft tokens for one verifier: head k predicts "
                "the token k + 1 behind the",
                "one whose last hidden state it reads (Medusa, arXiv 2401.10774), and the "
                "verifier's own output head, cut to",
                f"{len(self.draft_ids)} ids, makes logits of what they give. "
                f"{num_parameters / 1e6:.1f} M parameters; the output head is the",
                "verifier's and is not stored here.",
            ),
            training="",
            measured="Draft step k is head k's: all read the same hidden state.",
        )

    def _draft(self, batch: Batch) -> list[torch.Tensor]:
        """What each head gives of the queries [B, R, hidden], float32."""
        return [
            head(read_by(step, batch)[:, -batch.num_queries :].float()).float()
            for step, head in enumerate(self.model.heads)
        ]
