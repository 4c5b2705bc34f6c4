"""A small language model in training to give the verifier's own distribution.

Hinton et al., "Distilling the Knowledge in a Neural Network" (arXiv 1503.02531), for the loss;
Zhou et al., "DistillSpec" (arXiv 2310.08461), for drafting: the text that both models read is the
verifier's own, and what counts is agreement at each of its positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn
from transformers import LlamaForCausalLM, PreTrainedModel

from yggc.errors import RecipeError
from yggc.models.checkpoint import Checkpoint
from yggc.train.batches import Batch
from yggc.train.card import About
from yggc.train.cross_entropy import TrainedHeadCrossEntropy
from yggc.train.learner import Loss
from yggc.train.load import read_model
from yggc.train.run import Setting, TrainOptions
from yggc.train.student import default_heads, llama_config, write_student
from yggc.train.validate import Agreement, HeldOut

# Tokens of a draft that agreement in a row is measured over.
DRAFT_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillOptions(TrainOptions):
    """What `yggc train distill` adds: the shape of a new model, or `from_layers`, the verifier's
    layers to begin with. num_heads: 0 for heads of 64.
    """

    kind: ClassVar[str] = "distill"

    num_layers: int = 2
    hidden_size: int = 256
    num_heads: int = 0
    tied: bool = True
    from_layers: tuple[int, ...] = ()

    def check(self, checkpoint: Checkpoint) -> None:
        """Refuses layers that the verifier does not have, and sizes that make no heads."""
        found = checkpoint.config.num_hidden_layers
        for layer in self.from_layers:
            if not 0 <= layer < found:
                raise RecipeError(
                    f"--from-layers has {layer}, the verifier's layers are 0 to {found - 1}",
                    "name some of those",
                )
        heads = self.num_heads or default_heads(self.hidden_size)
        if self.hidden_size % (2 * heads):
            raise RecipeError(
                f"--hidden-size is {self.hidden_size}, wanted a multiple of {2 * heads} for "
                f"{heads} heads of even size",
                "take another, or other --heads",
            )

    def learner(self, setting: Setting) -> DistillLearner:
        """A model with random weights, or with those of the verifier's layers."""
        checkpoint, verifier = setting.checkpoint, setting.verifier
        if self.from_layers:
            model = read_model(checkpoint, torch.float32, self.from_layers)
        else:
            heads = self.num_heads or default_heads(self.hidden_size)
            config = llama_config(
                checkpoint, self.num_layers, self.hidden_size, heads, tied=self.tied
            )
            torch.manual_seed(self.seed)
            model = LlamaForCausalLM(config).float().eval()
        return DistillLearner(model.to(verifier.device), verifier.head, checkpoint, self)


class DistillLearner:
    """A language model and the verifier's output head, [vocab, hidden] in the dtype to compute
    in.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        verifier_head: torch.Tensor,
        checkpoint: Checkpoint,
        options: DistillOptions,
    ) -> None:
        self.model = model
        self.draft_ids = torch.arange(len(verifier_head))
        self._verifier_head = verifier_head
        self._checkpoint, self._options = checkpoint, options

    def loss(self, batch: Batch, generator: torch.Generator) -> Loss:
        """Cross entropy at every response position: the divergence from the verifier's
        distribution and, constant, that one's entropy. Draws nothing.
        """
        total = TrainedHeadCrossEntropy.apply(
            hidden_states(self.model, batch)[batch.valid],
            self._head,
            batch.features[:, -batch.num_queries :][batch.valid],
            self._verifier_head,
            self._options.temperature,
            self._options.rejected_weight,
        )
        return Loss(total, {"token": total.detach()[None].cpu()})

    def measure(self, held_out: HeldOut) -> Agreement:
        """Of one step, and of drafts of `DRAFT_STEPS` tokens."""
        return held_out.measure(
            lambda batch: [hidden_states(self.model, batch)], self._head, DRAFT_STEPS
        )

    def write(self, folder: Path, weights: Mapping[str, torch.Tensor]) -> None:
        """Replaces the model in the folder."""
        write_student(folder, self.model, weights, self._checkpoint)

    def about(self, num_parameters: int) -> About:
        """What the model's card says of it."""
        config, layers = self.model.config, self._options.from_layers
        begin = "random weights"
        if layers:
            begin = f"the verifier's layers {', '.join(map(str, layers))}"
        return About(
            title="Drafting model",
            noun="model",
            text=(
                f"A language model ({config.model_type}, {config.num_hidden_layers} layers, "
                f"hidden size {config.hidden_size}) with the verifier's tokenizer, which",
                "was trained to give the verifier's own distribution (distillation, arXiv "
                "1503.02531, 2310.08461) and",
                f"drafts tokens for it. It began with {begin}. {num_parameters / 1e6:.1f} M "
                "parameters.",
            ),
            training="",
            measured="It reads tokens alone: every step of a draft is as the first.",
        )

    @property
    def _head(self) -> nn.Parameter:
        head: nn.Parameter = self.model.get_output_embeddings().weight
        return head


def hidden_states(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    """The model's last hidden states [B, R, hidden] at the queries."""
    # Rows begin in column 0 here, where causal attention needs no mask for the padding behind.
    shift = (batch.positions < 0).sum(1, keepdim=True)
    columns = torch.arange(batch.ids.shape[1], device=batch.ids.device)
    ids = batch.ids.gather(1, (columns + shift).clamp(max=len(columns) - 1))
    hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
    at = (columns[batch.first_query :] - shift)[:, :, None]
    return hidden.gather(1, at.expand(-1, -1, hidden.shape[-1]))
