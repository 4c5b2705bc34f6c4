"""An EAGLE-3 head in training: its options, its loss and its folder.

Li et al., arXiv 2503.01840, section 3: no loss on features, cross entropy against the verifier's
distribution over the draft ids in several steps, each on what the step before made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from yggc.errors import SourceError
from yggc.heads import are_layers
from yggc.models.checkpoint import Checkpoint
from yggc.models.eagle3 import Eagle3Config, Eagle3ForCausalLM, head3_config, published_taps
from yggc.train.batches import Batch, first_batches
from yggc.train.card import About
from yggc.train.cross_entropy import TrainedHeadCrossEntropy, first_choices
from yggc.train.eagle import Frozen, Rejections, unroll
from yggc.train.eagle_learner import FIT_TOKENS, SCALE_ROWS, HeadOptions, padded
from yggc.train.head import AnyHeadConfig, read_head, write_head
from yggc.train.initial import add_of_embedding, new_head, ridge_regression, take_over, tap_scale
from yggc.train.learner import Loss
from yggc.train.run import Setting
from yggc.train.validate import Agreement, HeldOut

# The first regression is on the final norm's result over its weight; the least of that.
LEAST_NORM = 1e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Options(HeadOptions):
    """What `yggc train eagle3` adds. `taps`: layers as in Eagle3Config, those of published heads
    if there are none.
    """

    kind: ClassVar[str] = "eagle3"
    head: ClassVar[type[AnyHeadConfig]] = Eagle3Config

    detach: bool = False
    taps: tuple[int, ...] = ()

    def check(self, checkpoint: Checkpoint) -> None:
        """Also refuses layers that the verifier does not have, or the first head does not read."""
        config = self.first_config()
        num_layers, taps = checkpoint.config.num_hidden_layers, self.tapped(checkpoint)
        if not are_layers(taps, num_layers):
            raise SourceError(
                f"the head would read what layers {[*taps]} are given, wanted ascending ones of "
                f"the verifier's 0..{num_layers - 1}",
                "choose some with --taps",
            )
        if isinstance(config, Eagle3Config) and config.taps != [*taps]:
            raise SourceError(
                f"{self.first}: reads what layers {config.taps} are given, asked for is {[*taps]}",
                f"give --taps {','.join(map(str, config.taps))}, or begin with no head",
            )

    def tapped(self, checkpoint: Checkpoint) -> tuple[int, ...]:
        """Those asked for, else those of published heads."""
        return self.taps or tuple(published_taps(checkpoint.config.num_hidden_layers))

    def learner(self, setting: Setting) -> Eagle3Learner:
        """A head that begins as a regression under the verifier's norm and output head, or as the
        one that is given."""
        config, verifier, rows = setting.checkpoint.config, setting.verifier, setting.texts.train
        draft_ids = self.draft_ids(setting)
        theirs = head3_config(config, len(draft_ids), verifier.taps)
        model = new_head(Eagle3ForCausalLM, theirs, self.seed)
        assert isinstance(model, Eagle3ForCausalLM)
        model = model.to(verifier.device)
        chosen = verifier.head[draft_ids.to(verifier.device)].contiguous()
        frozen = Frozen(verifier.embedding, chosen, 1.0)
        scale = tap_scale(rows[:SCALE_ROWS], setting.features).to(verifier.device)
        with torch.no_grad():
            model.lm_head.weight.copy_(chosen)
        if self.first is None:
            norm, embed = verifier.norm, model.model.layers[0].input_layernorm
            # What the final norm makes of this is the verifier's last hidden state.
            least = LEAST_NORM * norm.abs().max()
            divisor = torch.where(norm.abs() < least, least, norm)
            fitted = ridge_regression(
                first_batches(rows, FIT_TOKENS),
                setting.features,
                lambda batch: torch.cat(
                    [embed(frozen.embed(batch.ids).float()), batch.given * scale], dim=-1
                ),
                lambda batch: batch.features / divisor,
                verifier.device,
            )
            with torch.no_grad():
                model.norm.weight.copy_(norm)
                model.fc.weight.copy_(fitted[:, config.hidden_size :])
            add_of_embedding(model, fitted[:, : config.hidden_size])
        else:
            first = read_head(self.first)
            take_over(model, first, str(self.first), draft_ids)
            model.fc.weight.data /= scale
        return Eagle3Learner(model, frozen, draft_ids, scale, self, setting.identity)


class Eagle3Learner:
    """A head with the verifier's embedding and, as the target, its output head. scale: [taps *
    hidden], of the inputs of `fc`; draft_ids and verifier as for EagleLearner.
    """

    def __init__(
        self,
        model: Eagle3ForCausalLM,
        frozen: Frozen,
        draft_ids: torch.Tensor,
        scale: torch.Tensor,
        options: Eagle3Options,
        verifier: Mapping[str, Any],
    ) -> None:
        self.model, self.draft_ids = model, draft_ids
        self._frozen, self._scale = frozen, scale
        self._options, self._verifier = options, verifier

    def loss(self, batch: Batch, generator: torch.Generator) -> Loss:
        """Cross entropy of each draft step, weighted by `decay` to the power of the step."""
        options, valid = self._options, batch.valid
        wanted = batch.features[:, -batch.num_queries :][valid]
        head, theirs = self.model.lm_head.weight, self._frozen.head
        rejections = Rejections(batch, theirs)
        total, parts = torch.zeros((), device=wanted.device), []
        for step, found in enumerate(self._unroll(batch, detach=options.detach)):
            reached = batch.valid_at(step)
            rows = self.model.norm(found[reached])
            if not len(rows):
                break
            rejected = None
            if options.rejected_weight is not None:
                choices = first_choices(rows.to(theirs.dtype), head.detach().to(theirs.dtype))
                rejected = rejections.of(step, choices)
            token = TrainedHeadCrossEntropy.apply(
                rows,
                head,
                wanted[reached[valid]],
                theirs,
                options.temperature,
                options.rejected_weight,
                rejected,
            )
            total = total + options.decay**step * token
            parts.append(token.detach())
        return padded(total, {"token": torch.stack(parts)}, options.num_steps)

    def measure(self, held_out: HeldOut) -> Agreement:
        """Over the draft steps that it is trained for."""

        def draft(batch: Batch) -> Sequence[torch.Tensor]:
            return [self.model.norm(one) for one in self._unroll(batch)]

        head = self.model.lm_head.weight.detach()
        return held_out.measure(draft, head, self._options.num_steps)

    def write(self, folder: Path, weights: Mapping[str, torch.Tensor]) -> None:
        """Replaces the head in the folder."""
        config = self.model.config
        write_head(folder, config, weights, self.draft_ids, self._verifier, self._scale)

    def about(self, num_parameters: int) -> About:
        """What the head's card says of it."""
        layers = ", ".join(map(str, self.model.config.taps))
        return About(
            title="EAGLE-3 head",
            noun="head",
            text=(
                "Drafts tokens for one verifier: from what its layers",
                f"{layers} are given at a token and the next token's embedding it predicts the",
                "token after that (EAGLE-3, arXiv 2503.01840), among "
                f"{len(self.draft_ids)} ids. {num_parameters / 1e6:.1f} M",
                "parameters; the embedding is the verifier's and is not stored here.",
            ),
            training=f"{self._options.num_steps} draft steps each, ",
            measured="Draft step 1 reads the verifier's layers, later ones what the head made.",
        )

    def _unroll(self, batch: Batch, *, detach: bool = False) -> list[torch.Tensor]:
        scaled = batch.with_given((batch.given * self._scale).to(batch.given))
        embeddings = self._frozen.embed(batch.ids)
        return unroll(self.model, scaled, embeddings, self._options.num_steps, detach=detach)
