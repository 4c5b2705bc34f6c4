"""The EAGLE-3 head: predicts the token after the next and no feature of the verifier.

Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time
Test" (arXiv 2503.01840), section 3. The verifier's feature of a token is `fc` of what several of
its layers are given there; where the head drafts on, its own output takes that place. One decoder
layer attends over [norm(embedding); norm(feature)]; its output, not normalised, is the next
feature, and behind a norm of the head's own it goes to an output head of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

from yggc.heads import HEAD_3
from yggc.models.eagle import HeadConfig, HeadForCausalLM, head_fields


class Eagle3Config(HeadConfig):
    """taps: the verifier's layers whose inputs make a feature, ascending: 0 is given the
    embeddings. norm_before_residual: whether the layer's result is added to the normalised feature
    rather than to the feature.
    """

    model_type = HEAD_3
    taps: list[int]
    norm_before_residual: bool = False

    def __init__(
        self, taps: Sequence[int] = (), norm_before_residual: bool = False, **fields: Any
    ) -> None:
        super().__init__(**fields)
        self.taps = [int(one) for one in taps]
        self.norm_before_residual = norm_before_residual


class JoinedLayer(LlamaDecoderLayer):
    """A decoder layer that is given [embedding; feature], 2 hidden sizes wide, and returns one."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__(config, layer_idx=0)
        size = config.hidden_size
        self.hidden_norm = LlamaRMSNorm(size, eps=config.rms_norm_eps)
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = getattr(self.self_attn, name)
            wide = nn.Linear(2 * size, narrow.out_features, bias=narrow.bias is not None)
            setattr(self.self_attn, name, wide)
        self.norm_before_residual = config.norm_before_residual

    def enter(self, joined: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As HeadForCausalLM.enter."""
        embedding, feature = joined.chunk(2, dim=-1)
        normed = self.hidden_norm(feature)
        residual = normed if self.norm_before_residual else feature
        return torch.cat([self.input_layernorm(embedding), normed], dim=-1), residual

    def forward(self, hidden_states: torch.Tensor, **arguments: Any) -> torch.Tensor:
        attended, residual = self.enter(hidden_states)
        hidden = residual + self.self_attn(hidden_states=attended, **arguments)[0]
        out: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class Eagle3ForCausalLM(HeadForCausalLM):
    """`features` are those of `fuse` where the verifier has run the token before."""

    config_class = Eagle3Config

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.fc = nn.Linear(len(config.taps) * size, size, bias=False)
        self.model.layers[0] = JoinedLayer(config)
        self.norm = LlamaRMSNorm(size, eps=config.rms_norm_eps)
        self.post_init()

    def fuse(self, taps: torch.Tensor) -> torch.Tensor:
        """What the layers in `config.taps` are given, side by side, -> features [..., hidden]."""
        features: torch.Tensor = self.fc(taps)
        return features

    def join(self, embeddings: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        return torch.cat([embeddings, features], dim=-1)

    def enter(self, joined: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found: tuple[torch.Tensor, torch.Tensor] = self.model.layers[0].enter(joined)
        return found


AutoConfig.register(Eagle3Config.model_type, Eagle3Config)
AutoModelForCausalLM.register(Eagle3Config, Eagle3ForCausalLM)


def published_taps(num_layers: int) -> list[int]:
    """The layers that published heads read where they do not say others, of a verifier with so
    many: `modeling_llama_kv.py` of SafeAILab/EAGLE and `get_eagle3_aux_hidden_state_layers` of
    vLLM keep what layers 2, n // 2 and n - 3 are given.
    """
    return [2, num_layers // 2, num_layers - 3]


def head3_config(verifier: Any, draft_vocab_size: int, taps: Sequence[int]) -> Eagle3Config:
    """The configuration of a new EAGLE-3 head for a verifier with this transformers
    configuration."""
    return Eagle3Config(taps=taps, **head_fields(verifier, draft_vocab_size))
