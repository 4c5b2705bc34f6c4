"""Tiny random models in every form that the compiler reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf_files import write_llama
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
    """Writes a tiny Llama as `gguf_files.write_llama` does."""

    def write(
        name: str = "tiny.gguf",
        quantization: gguf.GGMLQuantizationType | None = None,
        model: LlamaForCausalLM = llama,
        **more: Any,
    ) -> Path:
        return write_llama(tmp_path / name, model, quantization, **more)

    return write
