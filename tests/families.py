"""Tiny random configurations of the covered families, one per modelling file. Windows are 8
tokens, so that a short run passes them; sizes are multiples of nothing in particular where the
architecture allows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import (
    CohereConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    OPTConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
    StableLmConfig,
    Starcoder2Config,
)

_SIZES: dict[str, Any] = {
    "vocab_size": 203,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _sized(kind: Callable[..., PreTrainedConfig], **changes: Any) -> PreTrainedConfig:
    return kind(**{**_SIZES, **changes})


def families() -> dict[str, PreTrainedConfig]:
    """Name -> configuration, sixteen of them."""
    return {
        "llama": _sized(LlamaConfig, tie_word_embeddings=True),
        "qwen2": _sized(Qwen2Config),
        "qwen3": _sized(Qwen3Config, head_dim=16),
        "mistral": _sized(MistralConfig, sliding_window=8, head_dim=12),
        "gemma2": _sized(Gemma2Config, head_dim=16, sliding_window=8, query_pre_attn_scalar=16),
        "gemma3_text": _sized(
            Gemma3TextConfig,
            head_dim=16,
            sliding_window=8,
            query_pre_attn_scalar=16,
            layer_types=["sliding_attention", "full_attention"],
        ),
        "phi3": _sized(Phi3Config, pad_token_id=0),
        "gpt2": GPT2Config(
            vocab_size=203,
            n_embd=48,
            n_layer=2,
            n_head=4,
            n_positions=256,
            bos_token_id=1,
            eos_token_id=2,
        ),
        "gpt_neox": GPTNeoXConfig(
            vocab_size=203,
            hidden_size=48,
            intermediate_size=72,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=256,
        ),
        "opt": OPTConfig(
            vocab_size=203,
            hidden_size=48,
            ffn_dim=72,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=256,
            word_embed_proj_dim=48,
        ),
        "olmo2": _sized(Olmo2Config),
        "smollm3": _sized(SmolLM3Config, pad_token_id=0, no_rope_layers=[1, 0]),
        "granite": _sized(GraniteConfig),
        "starcoder2": _sized(Starcoder2Config, sliding_window=8),
        "cohere": _sized(CohereConfig, pad_token_id=0),
        "stablelm": _sized(StableLmConfig, hidden_size=64),
    }
