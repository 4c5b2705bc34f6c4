"""Tiny random models in every form that the compiler reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from blocks import random_blocks
from tiny_tokenizers import CHATML, byte_level
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from yggc.workdir import WorkDir


def llama_config(**changes: object) -> LlamaConfig:
    sizes = {
        "vocab_size": 400,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "eos_token_id": [2, 3],
    }
    return LlamaConfig(**(sizes | changes))  # type: ignore[arg-type]


@pytest.fixture
def work(tmp_path: Path) -> WorkDir:
    return WorkDir(tmp_path / "work")


@pytest.fixture
def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(llama_config())


@pytest.fixture
def llama_dir(llama: LlamaForCausalLM, tmp_path: Path) -> Path:
    """A model directory with tokenizer, chat template and model card."""
    folder = tmp_path / "tiny-llama"
    llama.save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level(), eos_token="<|im_end|>", bos_token="<|im_start|>"
    )
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text("---\nlicense: mit\ntags: [x]\n---\nA tiny model.\n")
    return folder


GgufWriter = Callable[..., Path]


@pytest.fixture
def write_gguf(llama: LlamaForCausalLM, tmp_path: Path) -> GgufWriter:
    """Writes a tiny Llama as llama.cpp would: q and k rows interleaved, optionally quantised."""

    def write(
        name: str = "tiny.gguf",
        quantization: gguf.GGMLQuantizationType | None = None,
        extra: dict[str, str | float] | None = None,
        tensors: dict[str, np.ndarray] | None = None,
        model: LlamaForCausalLM = llama,
    ) -> Path:
        config = model.config
        path = tmp_path / name
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
        for key, value in (extra or {}).items():
            writer.add_string(key, value) if isinstance(value, str) else writer.add_float32(
                key, value
            )
        for stored, values in (_llama_tensors(model) | (tensors or {})).items():
            if quantization is not None and values.ndim == 2:
                if quantization.name.endswith("_K"):
                    # The gguf package reads these formats and does not write them.
                    packed = random_blocks(quantization.name.lower(), *values.shape)
                else:
                    packed = gguf.quants.quantize(values, quantization)
                writer.add_tensor(stored, packed, raw_dtype=quantization)
            else:
                writer.add_tensor(stored, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def _llama_tensors(model: LlamaForCausalLM) -> dict[str, np.ndarray]:
    config = model.config
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    stored = {}
    for name, tensor in model.state_dict().items():
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
