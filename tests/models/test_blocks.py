"""Panels of quantised matrices: GGUF's own values, in the places that the operators read."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from blocks import QUANTISED, random_blocks
from gguf.quants import dequantize
from ygg_kernels.formats import FORMATS as OPERATOR_FORMATS

from yggc.errors import SourceError
from yggc.models.blocks import block_bytes, ggml_type, pack_blocks, quantise, unpack_blocks
from yggrt.core.formats import FORMATS, quantised_format


@pytest.mark.parametrize("shape", [(37, 512), (16, 256), (1, 1024)])
@pytest.mark.parametrize("name", QUANTISED)
def test_values_are_those_of_the_gguf_package(name: str, shape: tuple[int, int]) -> None:
    """To the last bit."""
    rows = random_blocks(name, *shape)
    panels = pack_blocks(rows, name, "w")
    assert panels.numel() == FORMATS[name].num_bytes(*shape)
    assert quantised_format("uint8", tuple(panels.shape)) == name
    values = unpack_blocks(panels, name, shape[0]).numpy()
    assert np.array_equal(values, dequantize(rows, ggml_type(name)))
    assert np.abs(values).max() > 0.01


def piece_code(name: str, piece: np.ndarray, k: int, j: int) -> int:
    """The code of one piece (32 k, 16 columns) by the formulas of `yggc.models.blocks`."""
    if name == "q8_0":
        return int(piece[64 * (k // 4) + 4 * j + k % 4].view(np.int8))
    codes4 = piece[-256:]
    byte = int(codes4[64 * (k // 8) + 4 * j + k % 4])
    code = byte >> 4 if k % 8 >= 4 else byte & 15
    if name.startswith("q5"):
        word = int.from_bytes(piece[8 * (k // 4) : 8 * (k // 4) + 8].tobytes(), "little")
        code |= (word >> (4 * j + k % 4) & 1) << 4
    if name == "q6_k":
        byte = int(piece[64 * (k // 16) + 4 * j + k % 4])
        code |= (byte >> (2 * (k % 16 // 4)) & 3) << 4
    return code


@pytest.mark.parametrize("name", QUANTISED)
def test_every_byte_is_where_the_operators_read_it(name: str) -> None:
    """Element by element, with nothing of the packing code."""
    group = FORMATS[name].group
    rows = random_blocks(name, 21, 2 * group, seed=1)
    values = dequantize(rows, ggml_type(name))
    panels = pack_blocks(rows, name, "w").numpy()
    head = {"q6_k": 288, "q4_k": 320, "q5_k": 320, "q4_1": 64, "q5_1": 64}.get(name, 32)
    piece_bytes = (FORMATS[name].panel_bytes - head) * 32 // group
    rng = np.random.default_rng(2)
    places = zip(
        rng.integers(0, 21, 200).tolist(), rng.integers(0, 2 * group, 200).tolist(), strict=True
    )
    for n, k in places:
        block = panels[n // 16, k // group]
        j, within = n % 16, k % group
        at = head + within // 32 * piece_bytes
        code = piece_code(name, block[at : at + piece_bytes], within % 32, j)
        halves = block[:64].view("<f2").astype(np.float32)
        d, m = halves[j], halves[16 + j]
        found = {"q4_0": d * (code - 8), "q5_0": d * (code - 16), "q8_0": d * code}.get(name)
        if name in ("q4_1", "q5_1"):
            found = d * code + m
        elif name in ("q4_k", "q5_k"):
            scale, minimum = (int(block[64 + within // 32 * 32 + 16 * i + j]) for i in (0, 1))
            found = d * scale * code - m * minimum
        elif name == "q6_k":
            scale = int(block[32 + within // 16 * 16 + j].view(np.int8))
            found = d * scale * (code - 32)
        assert found == values[n, k], (n, k)


@pytest.mark.parametrize("name", QUANTISED)
def test_columns_beyond_the_matrix_are_zero_bytes(name: str) -> None:
    rows = random_blocks(name, 3, 256)
    rows[:] = np.maximum(rows, 1)
    padded = np.concatenate([rows, np.zeros((13, rows.shape[1]), np.uint8)])
    assert torch.equal(pack_blocks(rows, name, "w"), pack_blocks(padded, name, "w"))


@pytest.mark.parametrize("bits", [0x7C00, 0xFC00, 0x7E01])
@pytest.mark.parametrize("name", QUANTISED)
def test_scales_that_are_no_numbers_are_refused(name: str, bits: int) -> None:
    rows = random_blocks(name, 20, 512)
    at = 7 * rows.shape[1] + block_bytes(name) + (208 if name == "q6_k" else 0)
    rows.reshape(-1)[at : at + 2].view("<u2")[:] = bits
    with pytest.raises(SourceError, match=r"'blk\.7' has a scale that is no finite number"):
        pack_blocks(rows, name, "blk.7")


@pytest.mark.parametrize(("name", "steps"), [("q8_0", 254), ("q4_1", 15)])
def test_rounding_is_to_the_nearest_code(name: str, steps: int) -> None:
    """No value is further away than half a step of its block, and a bit for the float16 scales."""
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(24, 96, generator=generator)
    values = unpack_blocks(pack_blocks(quantise(weight, name), name, "w"), name, 24)
    blocks = weight.view(24, 3, 32)
    span = 2 * blocks.abs().amax(2) if name == "q8_0" else blocks.amax(2) - blocks.amin(2)
    error = (values - weight).view(24, 3, 32).abs().amax(2)
    assert (error <= span / steps * 0.5 + blocks.abs().amax(2) * 2e-3).all()
    assert (error > 0).any()


@pytest.mark.parametrize("name", ["q8_0", "q4_1"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_values_without_a_scale_are_refused(name: str, value: float) -> None:
    weight = torch.randn(4, 64)
    weight[2, 40] = value
    with pytest.raises(SourceError, match="'w' has a scale"):
        pack_blocks(quantise(weight, name), name, "w")


def test_formats_of_llama_cpp() -> None:
    """Groups are GGUF's block sizes, and no two formats share a size in panels."""
    for name in QUANTISED:
        assert FORMATS[name].group == gguf.GGML_QUANT_SIZES[ggml_type(name)][0]
    assert len({FORMATS[name].panel_bytes for name in QUANTISED}) == len(QUANTISED)


def test_operators_and_compiler_have_one_table() -> None:
    ours = [(one.name, one.group, one.panel_bytes) for one in FORMATS.values()]
    theirs = [(one.name, one.group, one.block_bytes) for one in OPERATOR_FORMATS]
    assert [one.code for one in FORMATS.values()] == list(range(len(theirs)))
    assert ours[2:] == theirs[2:]
    assert [name for name, _, _ in ours[:2]] == [name for name, _, _ in theirs[:2]]
