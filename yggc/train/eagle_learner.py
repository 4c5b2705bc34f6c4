"""An EAGLE head in training: its options, its loss and its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from yggc.errors import SourceError
from yggc.models.checkpoint import Checkpoint
from yggc.models.eagle import EagleConfig, EagleForCausalLM, head_config
from yggc.models.shards import SINGLE
from yggc.train.batches import Batch, first_batches
from yggc.train.card import About
from yggc.train.eagle import Frozen, LossWeights, losses, unroll
from yggc.train.head import AnyHeadConfig, read_head, write_head
from yggc.train.initial import embedding_scale, new_head, ridge_regression, take_over
from yggc.train.learner import Loss
from yggc.train.run import Setting, TrainOptions
from yggc.train.texts import frequent_ids
from yggc.train.validate import Agreement, HeldOut
from yggc.workdir import hash_file

# What the scale and the first `fc` look at, at most.
SCALE_ROWS = 256
FIT_TOKENS = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadOptions(TrainOptions):
    """What the commands that train heads add. num_steps: tokens that a draft is trained for.
    `first`: the folder of a head to begin with.
    """

    head: ClassVar[type[AnyHeadConfig]]

    draft_vocab: int = 8192
    num_steps: int = 4
    decay: float = 0.8
    first: Path | None = None

    def check(self, checkpoint: Checkpoint) -> None:
        """Refuses a first head that cannot be read, or is of another kind."""
        self.first_config()

    def first_config(self) -> AnyHeadConfig | None:
        """Of the head to begin with; SourceError if it is none of this kind."""
        config = None if self.first is None else read_head(self.first).config
        if config is not None and not isinstance(config, self.head):
            raise SourceError(
                f"{self.first}: is a head of another kind, wanted one of `yggc train {self.kind}`",
                "begin with another head, or with none",
            )
        return config

    def compared(self) -> dict[str, Any]:
        """With the first head by what is in it."""
        fields = TrainOptions.compared(self)
        return fields | {"first": None if self.first is None else hash_file(self.first / SINGLE)}

    def draft_ids(self, setting: Setting) -> torch.Tensor:
        """The ids that can be drafted: the text's most frequent."""
        vocab_size = setting.checkpoint.config.vocab_size
        num_ids = min(self.draft_vocab, vocab_size)
        return torch.from_numpy(frequent_ids(setting.texts.train, vocab_size, num_ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleOptions(HeadOptions):
    """What `yggc train eagle` adds."""

    kind: ClassVar[str] = "eagle"
    head: ClassVar[type[AnyHeadConfig]] = EagleConfig

    detach: bool = False
    feature_weight: float = 1.0
    token_weight: float = 1.0
    noise: float = 0.0

    def learner(self, setting: Setting) -> EagleLearner:
        """A head that begins as a regression, or as the one that is given."""
        config, verifier, rows = setting.checkpoint.config, setting.verifier, setting.texts.train
        draft_ids = self.draft_ids(setting)
        model = new_head(EagleForCausalLM, head_config(config, len(draft_ids)), self.seed)
        assert isinstance(model, EagleForCausalLM)
        model = model.to(verifier.device)
        scale = embedding_scale(verifier.embedding, rows[:SCALE_ROWS], setting.features)
        chosen = verifier.head[draft_ids.to(verifier.device)].contiguous()
        frozen = Frozen(verifier.embedding, chosen, scale)
        if self.first is None:
            fitted = ridge_regression(
                first_batches(rows, FIT_TOKENS),
                setting.features,
                lambda batch: torch.cat([frozen.embed(batch.ids), batch.given], dim=-1),
                lambda batch: batch.features,
                verifier.device,
            )
            model.fc.weight.data.copy_(fitted)
        else:
            factors = fc_scale(scale, config.hidden_size)
            first = read_head(self.first)
            take_over(model, first, str(self.first), draft_ids)
            model.fc.weight.data /= factors.to(verifier.device)
        return EagleLearner(model, frozen, draft_ids, self, setting.identity)

    @property
    def loss_weights(self) -> LossWeights:
        return LossWeights(
            self.feature_weight,
            self.token_weight,
            self.decay,
            self.temperature,
            self.rejected_weight,
        )


def fc_scale(embedding_scale: float, hidden_size: int) -> torch.Tensor:
    """What the inputs of an EAGLE head's `fc` are multiplied by in training."""
    ones = torch.ones(hidden_size)
    return torch.cat([ones * embedding_scale, ones])


def padded(total: torch.Tensor, parts: Mapping[str, torch.Tensor], num_steps: int) -> Loss:
    """A loss whose parts [n] have zeros for steps that no query reached."""
    whole = {
        name: torch.nn.functional.pad(part, (0, num_steps - len(part))).cpu()
        for name, part in parts.items()
    }
    return Loss(total, whole)


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
        parts = {"feature": found.feature, "token": found.token}
        return padded(found.total, parts, options.num_steps)

    def measure(self, held_out: HeldOut) -> Agreement:
        """Over the draft steps that it is trained for."""
        return held_out.measure(self._unroll, self._frozen.head, self._options.num_steps)

    def write(self, folder: Path, weights: Mapping[str, torch.Tensor]) -> None:
        """Replaces the head in the folder."""
        scale = fc_scale(self._frozen.scale, self.model.config.hidden_size)
        write_head(folder, self.model.config, weights, self.draft_ids, self._verifier, scale)

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
