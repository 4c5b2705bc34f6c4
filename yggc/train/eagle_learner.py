"""An EAGLE head in training: its options, its loss and its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from yggc.models.checkpoint import Checkpoint
from yggc.models.eagle import EagleForCausalLM, head_config
from yggc.models.shards import SINGLE
from yggc.train.batches import Batch, first_batches
from yggc.train.card import About
from yggc.train.eagle import Frozen, LossWeights, losses, unroll
from yggc.train.head import read_head, write_head
from yggc.train.initial import embedding_scale, fit_joint, new_head, take_over
from yggc.train.learner import Loss
from yggc.train.run import Setting, TrainOptions
from yggc.train.texts import frequent_ids
from yggc.train.validate import Agreement, HeldOut
from yggc.workdir import hash_file

# What the scale and the first `fc` look at, at most.
SCALE_ROWS = 256
FIT_TOKENS = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleOptions(TrainOptions):
    """What `yggc train eagle` adds. `first`: the folder of a head to begin with."""

    kind: ClassVar[str] = "eagle"

    draft_vocab: int = 8192
    num_steps: int = 4
    feature_weight: float = 1.0
    token_weight: float = 1.0
    decay: float = 0.8
    noise: float = 0.0
    detach: bool = False
    first: Path | None = None

    def check(self, checkpoint: Checkpoint) -> None:
        """Refuses a first head that cannot be read."""
        if self.first is not None:
            read_head(self.first)

    def compared(self) -> dict[str, Any]:
        """With the first head by what is in it."""
        fields = TrainOptions.compared(self)
        return fields | {"first": None if self.first is None else hash_file(self.first / SINGLE)}

    def learner(self, setting: Setting) -> EagleLearner:
        """A head that begins as a regression, or as the one that is given."""
        config, verifier, rows = setting.checkpoint.config, setting.verifier, setting.texts.train
        num_ids = min(self.draft_vocab, config.vocab_size)
        draft_ids = torch.from_numpy(frequent_ids(rows, config.vocab_size, num_ids))
        model = new_head(head_config(config, num_ids), self.seed).to(verifier.device)
        scale = embedding_scale(verifier.embedding, rows[:SCALE_ROWS], setting.features)
        chosen = verifier.head[draft_ids.to(verifier.device)].contiguous()
        frozen = Frozen(verifier.embedding, chosen, scale)
        if self.first is None:
            fit_joint(model, first_batches(rows, FIT_TOKENS), setting.features, frozen)
        else:
            take_over(model, read_head(self.first), scale, str(self.first))
        return EagleLearner(model, frozen, draft_ids, self, setting.identity)

    @property
    def loss_weights(self) -> LossWeights:
        return LossWeights(self.feature_weight, self.token_weight, self.decay, self.temperature)


class EagleLearner:
    """A head with the verifier's frozen part. draft_ids: int64, ascending; verifier:
    `describe_verifier`'s record, which goes into the head's folder.
    """

    def __init__(
        self,
        model: EagleForCausalLM,
        frozen: Frozen,
        draft_ids: torch.Tensor,
        options: EagleOptions,
        verifier: Mapping[str, Any],
    ) -> None:
        self.model, self.draft_ids = model, draft_ids
        self._frozen, self._options, self._verifier = frozen, options, verifier

    def loss(self, batch: Batch, generator: torch.Generator) -> Loss:
        """Both losses over all draft steps, with noise on the features that are given."""
        options = self._options
        if options.noise:
            given = batch.given
            drawn = torch.rand(given.shape, generator=generator, dtype=torch.float32) - 0.5
            batch = batch.with_given(given + (drawn * options.noise).to(given))
        steps = self._unroll(batch, detach=options.detach)
        found = losses(steps, batch, self._frozen.head, options.loss_weights)
        padding = options.num_steps - len(found.feature)
        parts = {
            name: torch.nn.functional.pad(part, (0, padding), value=0.0).cpu()
            for name, part in (("feature", found.feature), ("token", found.token))
        }
        return Loss(found.total, parts)

    def measure(self, held_out: HeldOut) -> Agreement:
        """Over the draft steps that it is trained for."""
        return held_out.measure(self._unroll, self._frozen.head, self._options.num_steps)

    def write(self, folder: Path, weights: Mapping[str, torch.Tensor]) -> None:
        """Replaces the head in the folder."""
        scale = self._frozen.scale
        write_head(folder, self.model.config, weights, self.draft_ids, scale, self._verifier)

    def about(self, num_parameters: int) -> About:
        """What the head's card says of it."""
        return About(
            title="EAGLE head",
            noun="head",
            text=(
                "Drafts tokens for one verifier: from its last hidden state and the next token's",
                "embedding it predicts the next hidden state (EAGLE, arXiv 2401.15077), and the",
                f"verifier's own output head, cut to {self._options.draft_vocab} ids, makes "
                f"tokens of it. {num_parameters / 1e6:.1f} M parameters; the",
                "embedding and the output head are the verifier's and are not stored here.",
            ),
            training=f"{self._options.num_steps} draft steps each, ",
            measured="Draft step 1 reads the verifier's features, later ones the head's own.",
        )

    def _unroll(self, batch: Batch, *, detach: bool = False) -> list[torch.Tensor]:
        embeddings = self._frozen.embed(batch.ids)
        return unroll(self.model, batch, embeddings, self._options.num_steps, detach=detach)
