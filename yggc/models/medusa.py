"""Medusa heads: each predicts one token further on from one hidden state of the verifier.

Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads"
(arXiv 2401.10774), section 2.1. From the last hidden state of token t, what the verifier's output
head reads, the verifier itself gives token t + 1 and head k gives token t + 1 + k. A head is
residual blocks x + SiLU(W x + b) and a projection. A published head projects to the whole
vocabulary; here a head projects to the hidden size, and one output head, the verifier's own cut to
chosen ids, makes logits of what all of them give.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from yggc.heads import MAX_BLOCKS, MAX_HEADS, MEDUSA


class MedusaConfig(PreTrainedConfig):
    """num_heads: tokens behind the verifier's own that are predicted; num_blocks: of each head.
    own_outputs: whether each head projects to logits itself. draft_vocab_size: logits of a head.
    """

    model_type = MEDUSA
    # There is no layer that attends, and so no cache.
    num_hidden_layers = 0
    num_attention_heads = 1

    vocab_size: int = 0
    hidden_size: int = 0
    draft_vocab_size: int = 0
    num_heads: int = 0
    num_blocks: int = 1
    own_outputs: bool = False

    def __init__(
        self,
        vocab_size: int = 0,
        hidden_size: int = 0,
        draft_vocab_size: int = 0,
        num_heads: int = 0,
        num_blocks: int = 1,
        own_outputs: bool = False,
        **fields: Any,
    ) -> None:
        super().__init__(**fields)
        for name, value, least, most in (
            ("vocab_size", vocab_size, 1, 1 << 31),
            ("hidden_size", hidden_size, 1, 1 << 31),
            ("num_heads", num_heads, 1, MAX_HEADS),
            ("num_blocks", num_blocks, 0, MAX_BLOCKS),
        ):
            if not isinstance(value, int) or not least <= value <= most:
                raise ValueError(f"{name} is {value!r}, wanted a number in {least}..{most}")
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.draft_vocab_size = draft_vocab_size or vocab_size
        self.num_heads, self.num_blocks = num_heads, num_blocks
        self.own_outputs = own_outputs

    @property
    def num_logits(self) -> int:
        """Of all heads together."""
        return self.num_heads * self.draft_vocab_size


class ResBlock(nn.Module):
    """x + SiLU(W x + b); made with zeros, it passes its input on."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + nn.functional.silu(self.linear(x))


class MedusaHead(nn.Module):
    """Blocks and a projection: [..., hidden] -> [..., hidden or logits]."""

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.blocks = nn.ModuleList(ResBlock(size) for _ in range(config.num_blocks))
        num_outputs = config.draft_vocab_size if config.own_outputs else size
        self.out = nn.Linear(size, num_outputs, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            hidden = block(hidden)
        found: torch.Tensor = self.out(hidden)
        return found


class MedusaForCausalLM(PreTrainedModel):
    """The verifier's last hidden states [..., hidden] -> logits [..., num_heads *
    draft_vocab], those of one head after those of the head before."""

    config_class = MedusaConfig
    config: MedusaConfig

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__(config)
        self.heads = nn.ModuleList(MedusaHead(config) for _ in range(config.num_heads))
        self.lm_head: nn.Linear | None = None
        if not config.own_outputs:
            self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> None:
        return None

    def get_output_embeddings(self) -> nn.Module | None:
        return self.lm_head

    def features(self, hidden: torch.Tensor) -> list[torch.Tensor]:
        """What each head gives of [..., hidden]."""
        return [head(hidden) for head in self.heads]

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        found = self.features(hidden)
        if self.lm_head is None:
            return torch.cat(found, dim=-1)
        logits: torch.Tensor = self.lm_head(torch.stack(found, dim=-2))
        return logits.flatten(-2)


AutoConfig.register(MedusaConfig.model_type, MedusaConfig)
AutoModelForCausalLM.register(MedusaConfig, MedusaForCausalLM)


def medusa_config(
    verifier: Any, draft_vocab_size: int, num_heads: int, num_blocks: int
) -> MedusaConfig:
    """The configuration of new heads for a verifier with this transformers configuration."""
    return MedusaConfig(
        vocab_size=verifier.vocab_size,
        hidden_size=verifier.hidden_size,
        draft_vocab_size=draft_vocab_size,
        num_heads=num_heads,
        num_blocks=num_blocks,
    )
