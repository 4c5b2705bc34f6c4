"""Heads over a verifier, and the first of them: the EAGLE head, which predicts the verifier's next
feature and, through its output head, a token.

Li et al., "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty" (arXiv
2401.15077), section 4. A feature is the verifier's last hidden state, what its output head reads.
A row joins the embedding of a token with the feature of the token before it, and one decoder layer
makes of them the token's own feature. The embedding and the output head are the verifier's and are
not trained; the head may give the logits of chosen ids alone. The EAGLE-3 head is in
yggc.models.eagle3.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.llama.modeling_llama import LlamaModel, LlamaPreTrainedModel

from yggc.heads import HEAD


def cache_argument(model: nn.Module) -> str:
    """transformers renamed the argument that takes the cache within the supported range."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


class HeadConfig(LlamaConfig):
    """A Llama configuration of one layer, in the verifier's hidden size and vocabulary.

    draft_vocab_size: ids that the head gives logits for.
    """

    draft_vocab_size: int = 0

    def __init__(self, draft_vocab_size: int = 0, **fields: Any) -> None:
        fields["num_hidden_layers"] = 1
        fields["tie_word_embeddings"] = False
        super().__init__(**fields)
        self.draft_vocab_size = draft_vocab_size or self.vocab_size


class HeadForCausalLM(LlamaPreTrainedModel):
    """`input_ids` [B, S] int64 and `features` [B, S, hidden] of the tokens before them -> logits
    [B, S, draft_vocab] of the tokens after; the features of the tokens themselves are what
    `get_decoder()` returns.

    `norm` stands before the output head alone: what it reads is not what is drafted on.
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__(config)
        self.model = LlamaModel(config)
        self.model.norm = nn.Identity()
        self.norm: nn.Module = nn.Identity()
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def get_decoder(self) -> LlamaModel:
        return self.model

    def fuse(self, taps: torch.Tensor) -> torch.Tensor:
        """Features [..., hidden] of what the head reads of the verifier: the same, unless it reads
        something else."""
        return taps

    def join(self, embeddings: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """What the decoder layer is given, of [..., hidden] of both."""
        raise NotImplementedError

    def enter(self, joined: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of what `join` made: what the layer's attention reads, and what [..., hidden] its result
        is added to."""
        raise NotImplementedError

    def forward(
        self,
        input_ids: torch.Tensor,
        features: torch.Tensor,
        position_ids: torch.Tensor | None = None,
        cache: Any = None,
        use_cache: bool = False,
        logits_to_keep: int | torch.Tensor = 0,
    ) -> CausalLMOutputWithPast:
        out = self.model(
            inputs_embeds=self.join(self.model.embed_tokens(input_ids), features),
            position_ids=position_ids,
            use_cache=use_cache,
            **{cache_argument(self.model): cache},
        )
        hidden = out.last_hidden_state
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return CausalLMOutputWithPast(logits=self.lm_head(self.norm(hidden[:, kept])))


class EagleConfig(HeadConfig):
    """fc_bias: whether `fc` has a bias. input_norm: whether the layer normalises what it is given,
    as Llama's layers do and the published EAGLE heads do not.
    """

    model_type = HEAD
    fc_bias: bool = False
    input_norm: bool = True

    def __init__(self, fc_bias: bool = False, input_norm: bool = True, **fields: Any) -> None:
        super().__init__(**fields)
        self.fc_bias = fc_bias
        self.input_norm = input_norm


class EagleForCausalLM(HeadForCausalLM):
    """What its layer returns is a feature already, behind the verifier's own last norm."""

    config_class = EagleConfig

    def __init__(self, config: EagleConfig) -> None:
        super().__init__(config)
        if not config.input_norm:
            self.model.layers[0].input_layernorm = nn.Identity()
        size = config.hidden_size
        self.fc = nn.Linear(2 * size, size, bias=config.fc_bias)
        self.post_init()

    def join(self, embeddings: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        joined: torch.Tensor = self.fc(torch.cat([embeddings, features], dim=-1))
        return joined

    def enter(self, joined: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.model.layers[0].input_layernorm(joined), joined


AutoConfig.register(EagleConfig.model_type, EagleConfig)
AutoModelForCausalLM.register(EagleConfig, EagleForCausalLM)


def head_config(verifier: Any, draft_vocab_size: int = 0) -> EagleConfig:
    """The configuration of a new EAGLE head for a verifier with this transformers
    configuration."""
    return EagleConfig(**head_fields(verifier, draft_vocab_size))


def head_fields(verifier: Any, draft_vocab_size: int) -> dict[str, Any]:
    """What configurations of heads for a verifier have in common: the shape of its layers where it
    states one that Llama has, else Llama's usual proportions.
    """
    size = verifier.hidden_size
    heads = getattr(verifier, "num_attention_heads", None) or max(1, size // 64)
    head_dim = getattr(verifier, "head_dim", None) or size // heads
    return {
        "draft_vocab_size": draft_vocab_size,
        "vocab_size": verifier.vocab_size,
        "hidden_size": size,
        "intermediate_size": getattr(verifier, "intermediate_size", None) or 8 * size // 3,
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(verifier, "num_key_value_heads", None) or heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": getattr(verifier, "max_position_embeddings", 1 << 20),
        "rms_norm_eps": getattr(verifier, "rms_norm_eps", 1e-5),
        "rope_parameters": plain_rope(verifier),
    }


def plain_rope(verifier: Any) -> dict[str, Any]:
    """Rotary parameters with the verifier's base and nothing scaled."""
    rope = getattr(verifier, "rope_parameters", None) or {}
    # Configurations with a rope per kind of layer state none here.
    return {"rope_type": "default", "rope_theta": float(rope.get("rope_theta") or 10000.0)}
