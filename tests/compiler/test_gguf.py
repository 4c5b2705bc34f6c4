"""GGUF files: every tensor equal to what transformers reads, and damaged or foreign ones "
"refused."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from yggc.errors import SourceError
from yggc.models.checkpoint import Checkpoint, empty_model, open_checkpoint
from yggc.models.gguf_file import GgufFile
from yggc.models.source import resolve_source
from yggc.workdir import WorkDir


def opened(path: Path, work: WorkDir) -> Checkpoint:
    return open_checkpoint(resolve_source(str(path), work))


def test_float32_gives_the_model_back(
    write_gguf: Callable[..., Path], llama: LlamaForCausalLM, work: WorkDir
) -> None:
    checkpoint = opened(write_gguf(), work)
    state = llama.state_dict()
    assert set(checkpoint.tensor_names) == set(state)
    for name in state:
        assert torch.equal(checkpoint.read(name), state[name]), name
    assert checkpoint.license == "apache-2.0"
    assert checkpoint.dtype == "float32"
    assert checkpoint.eos_ids() == (2, 3)
    assert checkpoint.tokenizer_json() is None


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_1", "BF16", "F16"])
def test_equal_to_transformers(kind: str, write_gguf: Callable[..., Path], work: WorkDir) -> None:
    path = write_gguf(quantization=gguf.GGMLQuantizationType[kind])
    checkpoint = opened(path, work)
    model = empty_model(checkpoint.config)
    loaded = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    assert set(checkpoint.tensor_names) == set(loaded)
    for name in checkpoint.tensor_names:
        assert torch.equal(checkpoint.read(name), loaded[name]), name


def test_tied_output(write_gguf: Callable[..., Path], work: WorkDir, tmp_path: Path) -> None:
    path = write_gguf()
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(tmp_path / "tied.gguf", "llama")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            writer.add_key_value(field.name, field.contents(), field.types[0])
    for tensor in reader.tensors:
        if tensor.name != "output.weight":
            writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = opened(tmp_path / "tied.gguf", work)
    assert checkpoint.config.tie_word_embeddings
    assert "lm_head.weight" not in checkpoint.tensor_names


def test_unsupported_type_is_named(write_gguf: Callable[..., Path], work: WorkDir) -> None:
    path = write_gguf(tensors={"blk.0.attn_q.weight": np.zeros((64, 64), np.int8)})
    with pytest.raises(SourceError, match=r"tensor 'blk\.0\.attn_q\.weight' has type I8"):
        resolve_source(str(path), work)


def test_unknown_type_is_named(write_gguf: Callable[..., Path], work: WorkDir) -> None:
    path = write_gguf()
    data = bytearray(path.read_bytes())
    # name, then number of dimensions, two sizes, type.
    at = data.index(b"blk.1.ffn_up.weight") + len(b"blk.1.ffn_up.weight") + 4 + 16
    data[at : at + 4] = (99).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"tensor 'blk\.1\.ffn_up\.weight' has type number 99"):
        resolve_source(str(path), work)


@pytest.mark.parametrize("keep", [0, 10, 100, 1000, -100, -100_000])
def test_truncated(keep: int, write_gguf: Callable[..., Path], work: WorkDir) -> None:
    path = write_gguf()
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(SourceError, match=r"tiny\.gguf: .*\d+ bytes"):
        resolve_source(str(path), work)


@pytest.mark.parametrize("extra", [8, 64])
def test_trailing_bytes(extra: int, write_gguf: Callable[..., Path], work: WorkDir) -> None:
    path = write_gguf()
    path.write_bytes(path.read_bytes() + bytes(extra))
    with pytest.raises(SourceError, match=f"{extra} more than its tensors"):
        resolve_source(str(path), work)


def test_no_alignment(write_gguf: Callable[..., Path], work: WorkDir) -> None:
    path = write_gguf()
    key = b"general.architecture"
    # A key of the same length takes the place of one that comes before the alignment is needed.
    data = path.read_bytes()
    start = data.index(key) - 8
    value = data.index(b"llama", start)
    name = b"general.alignment"
    entry = struct.pack("<Q", len(name)) + name + struct.pack("<II", 4, 0)
    path.write_bytes(data[:start] + entry + data[value + 5 :])
    with pytest.raises(SourceError, match=r"general\.alignment is 0"):
        GgufFile(path)


def test_not_gguf(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGML" + bytes(100))
    with pytest.raises(SourceError, match="starts with b'GGML'"):
        GgufFile(path)
    path.write_bytes(b"GGUF" + (1).to_bytes(4, "little") + bytes(100))
    with pytest.raises(SourceError, match="GGUF version 1"):
        GgufFile(path)


def test_missing_tensor(write_gguf: Callable[..., Path], work: WorkDir) -> None:
    path = write_gguf()
    data = path.read_bytes().replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_uq.weight")
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"'blk.1.ffn_uq.weight' .* has no place"):
        opened(path, work)


def test_rope_scaling_is_not_dropped(write_gguf: Callable[..., Path], work: WorkDir) -> None:
    path = write_gguf(tensors={"rope_freqs.weight": np.ones(8, np.float32)})
    with pytest.raises(SourceError, match=r"rope scaling \(rope_freqs\.weight\)"):
        opened(path, work)
    path = write_gguf("linear.gguf", extra={"llama.rope.scaling.type": "linear"})
    with pytest.raises(SourceError, match=r"rope scaling \(linear\)"):
        opened(path, work)


def test_fact_that_the_configuration_lacks(write_gguf: Callable[..., Path], work: WorkDir) -> None:
    path = write_gguf(extra={"llama.attn_logit_softcapping": 50.0})
    with pytest.raises(SourceError, match=r"attn_logit_softcapping is 50.0"):
        opened(path, work)


def test_architecture_not_read(tmp_path: Path, work: WorkDir) -> None:
    for name, message in (
        ("mamba", "'mamba' are not read"),
        ("nonesuch", "cannot read its configuration"),
    ):
        path = tmp_path / f"{name}.gguf"
        writer = gguf.GGUFWriter(path, name)
        writer.add_tensor("a.weight", np.zeros((2, 2), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        with pytest.raises(SourceError, match=message):
            opened(path, work)
