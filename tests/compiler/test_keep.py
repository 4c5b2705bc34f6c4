"""GGUF matrices taken over in their blocks: the values that transformers reads, rows in the
model's order; what cannot be taken over is said.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from blocks import QUANTISED
from compiler.conftest import llama_config
from transformers import GPT2Config, GPT2LMHeadModel, LlamaForCausalLM

from yggc.config import BuildConfig, load_config
from yggc.errors import SourceError
from yggc.models.blocks import block_bytes, pack_blocks, unpack_blocks
from yggc.models.checkpoint import Checkpoint, empty_model, open_checkpoint
from yggc.models.formats import choose_formats, model_footprint
from yggc.models.source import resolve_source
from yggc.workdir import WorkDir


def opened(path: Path, work: WorkDir) -> Checkpoint:
    return open_checkpoint(resolve_source(str(path), work))


def asked(**options: Any) -> BuildConfig:
    needed = {"verifier": "m", "output": "m.ygg", "target": "cpu", "max_model_len": 64}
    resolved = {"dtype": "float32", "activations": "float32", "kv_dtype": "float32"}
    return load_config(None, needed | resolved | options)[0]


@pytest.fixture
def wide() -> LlamaForCausalLM:
    """Grouped heads, and inputs that fill the largest blocks."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "num_hidden_layers": 1}
    return LlamaForCausalLM(llama_config(vocab_size=100, **sizes))


@pytest.mark.parametrize("name", QUANTISED)
def test_every_format(
    name: str, wide: LlamaForCausalLM, write_gguf: Callable[..., Path], work: WorkDir
) -> None:
    path = write_gguf(quantization=gguf.GGMLQuantizationType[name.upper()], model=wide)
    checkpoint = opened(path, work)
    formats, notes = choose_formats(
        empty_model(checkpoint.config), asked(quant="keep"), checkpoint
    )
    matrices = {key for key, value in wide.state_dict().items() if value.dim() == 2}
    assert set(formats) == matrices
    assert set(formats.values()) == {name}
    assert notes == [f"quant: as stored, {name} ({len(matrices)})"]
    for key in formats:
        rows = checkpoint.read_blocks(key)
        values = unpack_blocks(pack_blocks(rows, name, key), name, len(rows))
        assert torch.equal(values, checkpoint.read(key)), key


def test_types_without_an_operator_become_floats_and_are_named(
    wide: LlamaForCausalLM, write_gguf: Callable[..., Path], work: WorkDir
) -> None:
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.Q3_K][1]
    path = write_gguf("q3.gguf", quantization=gguf.GGMLQuantizationType.Q4_1, model=wide)
    data = bytearray(path.read_bytes())
    name = b"blk.0.ffn_up.weight"
    # name, number of dimensions, two sizes, type; the shorter blocks leave a part unread.
    at = data.index(name) + len(name) + 4 + 16
    data[at : at + 4] = gguf.GGMLQuantizationType.Q3_K.value.to_bytes(4, "little")
    path.write_bytes(data)
    assert size < 8 * block_bytes("q4_1")
    checkpoint = opened(path, work)
    model = empty_model(checkpoint.config)
    formats, notes = choose_formats(model, asked(quant="keep"), checkpoint)
    assert "model.layers.0.mlp.up_proj.weight" not in formats
    [note] = notes[1:]
    assert "1 quantised matrices become float32" in note
    assert "model.layers.0.mlp.up_proj.weight, which is of type Q3_K" in note


class Shuffling:
    """A processor that mixes columns of one tensor and adds to another."""

    def process(self, weights: np.ndarray, name: str, **_more: Any) -> Any:
        if "attn_v" in name:
            weights = weights[:, ::-1]
        if "ffn_up" in name:
            weights = weights + 1
        if "ffn_down" in name:
            weights = weights[::-1]
        return type("Processed", (), {"weights": weights, "name": name})()


def test_only_whole_rows_are_taken_over(write_gguf: Callable[..., Path], work: WorkDir) -> None:
    checkpoint: Any = opened(write_gguf(quantization=gguf.GGMLQuantizationType.Q8_0), work)
    before = checkpoint.read_blocks("model.layers.0.mlp.down_proj.weight")
    del checkpoint._quantised
    checkpoint._processor = Shuffling()
    lost = {name.split(".")[-2] for name in checkpoint.not_kept}
    assert lost == {"v_proj", "up_proj"}
    after = checkpoint.read_blocks("model.layers.0.mlp.down_proj.weight")
    assert np.array_equal(after, before[::-1])


def test_transposed_matrices_have_their_rows_in_the_file(work: WorkDir, tmp_path: Path) -> None:
    """GPT-2's Conv1D is [K, N] in the model and [N, K] in a GGUF file."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=100,
        n_embd=64,
        n_layer=1,
        n_head=2,
        n_positions=1024,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = GPT2LMHeadModel(config)
    path = tmp_path / "gpt2.gguf"
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_context_length(1024)
    writer.add_block_count(1)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(256)
    writer.add_head_count(2)
    writer.add_layer_norm_eps(1e-5)
    writer.add_token_list([f"<{number}>" for number in range(100)])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, 1)
    kind = gguf.GGMLQuantizationType.Q4_1
    for name, tensor in model.state_dict().items():
        base, _, suffix = name.rpartition(".")
        values = tensor.numpy()
        if name == "lm_head.weight":
            continue
        stored = f"{names.get_name(base.removeprefix('transformer.'))}.{suffix}"
        if ".h." in name and values.ndim == 2:
            packed = gguf.quants.quantize(np.ascontiguousarray(values.T), kind)
            writer.add_tensor(stored, packed, raw_dtype=kind)
        else:
            writer.add_tensor(stored, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = opened(path, work)
    kept = checkpoint.stored_formats
    assert len(kept) == 4
    assert not checkpoint.not_kept
    for key in kept:
        rows = checkpoint.read_blocks(key)
        values = unpack_blocks(pack_blocks(rows, "q4_1", key), "q4_1", len(rows))
        assert torch.equal(values, checkpoint.read(key).t()), key


def test_rounded_formats(llama: LlamaForCausalLM) -> None:
    names = [name for name, value in llama.state_dict().items() if value.dim() == 2]
    int8, notes = choose_formats(llama, asked(quant="int8"), None)
    assert int8 == dict.fromkeys(names, "q8_0")
    assert notes == []
    int4, _ = choose_formats(llama, asked(quant="int4"), None)
    vocabulary = {name: form for name, form in int4.items() if form == "q8_0"}
    assert set(vocabulary) == {"model.embed_tokens.weight", "lm_head.weight"}
    assert set(int4) == set(names)
    assert choose_formats(llama, asked(quant="none"), None) == ({}, [])


def test_odd_sizes_stay_in_dtype_and_are_counted() -> None:
    model = LlamaForCausalLM(llama_config(intermediate_size=90))
    formats, [note] = choose_formats(model, asked(quant="int4"), None)
    assert all("down_proj" not in name for name in formats)
    assert "2 of 16 matrices stay in float32" in note
    assert "first model.layers.0.mlp.down_proj.weight" in note
    odd = LlamaForCausalLM(
        llama_config(hidden_size=60, num_attention_heads=4, head_dim=14, intermediate_size=90)
    )
    with pytest.raises(SourceError, match="no matrix of the model has a multiple of 32"):
        choose_formats(odd, asked(quant="int8"), None)


def test_rounding_twice_is_said(write_gguf: Callable[..., Path], work: WorkDir) -> None:
    checkpoint = opened(write_gguf(quantization=gguf.GGMLQuantizationType.Q8_0), work)
    formats, notes = choose_formats(
        empty_model(checkpoint.config), asked(quant="int4"), checkpoint
    )
    assert formats["model.layers.0.mlp.up_proj.weight"] == "q4_1"
    assert notes == ["quant: what the file rounded is rounded again; keep takes it as stored"]


def test_footprint(llama: LlamaForCausalLM) -> None:
    """Bytes counted by hand."""
    config = asked(quant="int4", kv_dtype="int8")
    formats, _ = choose_formats(llama, config, None)
    footprint = model_footprint(llama, config, formats)
    norms = 5 * 64 * 4
    vocabulary = 2 * (400 // 16) * 2 * 544
    # q, o: 64 x 64; k, v: 32 x 64; gate, up: 96 x 64; down: 64 x 96
    layer = (2 * 4 * 2 + 2 * 2 * 2 + 2 * 6 * 2 + 4 * 3) * 320
    assert footprint.weights_bytes == norms + vocabulary + 2 * layer
    # 2 layers, keys and values, 2 heads, 64 + 256 slots, 16 codes and a scale
    assert footprint.kv_bytes == 2 * 2 * 2 * 320 * 20
    assert footprint.workspace_bytes == 4 * (400 + 256 * 4 * 96)
