"""Llama models as llama.cpp would write them: q and k rows interleaved, optionally quantised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np
from blocks import random_blocks
from transformers import LlamaForCausalLM


def write_llama(
    path: Path,
    model: LlamaForCausalLM,
    quantization: gguf.GGMLQuantizationType | None = None,
    *,
    extra: Mapping[str, str | float] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    describe: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
) -> Path:
    """Writes `path`; formats that the gguf package cannot write get random blocks. `describe` adds
    metadata of its own.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_license("apache-2.0")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(3)
    describe(writer)
    for key, value in (extra or {}).items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        add(key, value)
    for stored, values in {**_stored_tensors(model), **(tensors or {})}.items():
        if quantization is None or values.ndim != 2:
            writer.add_tensor(stored, values)
            continue
        if quantization.name.endswith("_K"):
            packed = random_blocks(quantization.name.lower(), *values.shape)
        else:
            packed = gguf.quants.quantize(values, quantization)
        writer.add_tensor(stored, packed, raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _stored_tensors(model: LlamaForCausalLM) -> dict[str, np.ndarray]:
    config = model.config
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    stored = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy().copy()
        if "q_proj" in name or "k_proj" in name:
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            values = (
                values.reshape(heads, 2, values.shape[0] // heads // 2, -1)
                .swapaxes(1, 2)
                .reshape(values.shape)
            )
        base, _, suffix = name.rpartition(".")
        stored[f"{names.get_name(base)}.{suffix}"] = np.ascontiguousarray(values)
    return stored
