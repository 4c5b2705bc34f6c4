"""Quantised matrices: GGUF's blocks into the panels that the operators read, panels back into
float32, and rounding to nearest.

Rows of blocks are uint8 [N, K / group * block_bytes], as a GGUF file stores them. A panel holds
the same codes and scales for 16 rows at once; multi-byte values are little endian, columns beyond
N are zero bytes. Its pieces, each over 32 consecutive k and 16 columns j:

- codes4, 256 bytes: byte 64 v + 4 j + b (v, b in 0..3): low nibble = low four bits of code[k =
  8 v + b], high nibble = those of code[8 v + 4 + b];
- bits5, 64 bytes: bit 4 j + b of u64 number m (0..7) = bit 4 of code[4 m + b];
- codes2, 128 bytes: bits 2 f, 2 f + 1 (f in 0..3) of byte 64 u + 4 j + b (u in 0..1) = bits 4, 5
  of code[16 u + 4 f + b];
- codes8, 512 bytes: byte 64 m + 4 j + b (m in 0..7) = code[4 m + b], signed.

One group of one panel:

- q4_0: d f16[16], codes4: w = d (code - 8)
- q4_1: d, m f16[16], codes4: w = d code + m
- q5_0: d f16[16], bits5, codes4: w = d (code - 16)
- q5_1: d, m f16[16], bits5, codes4: w = d code + m
- q8_0: d f16[16], codes8: w = d code
- q4_k: d, dmin f16[16], then for each of 8 pieces scale u8[16] and minimum u8[16], then 8 codes4:
  w = d scale code - dmin minimum
- q5_k: the same with 8 times bits5, codes4
- q6_k: d f16[16], then for each of 16 half pieces scale i8[16], then 8 times codes2, codes4:
  w = d scale (code - 32)

All products are exact in float32 (at most 24 bits), so a value is rounded at most once, in its
last addition, and does not depend on fused operations.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import quantize

from yggc.errors import SourceError
from yggrt.core.formats import FORMATS, PANEL, MatrixFormat

# Bytes of panels made at a time: what is in work stays in cache.
_CHUNK_BYTES = 1 << 20
_HAS_MINIMUM = ("q4_1", "q5_1", "q4_k", "q5_k")
_OFFSETS = {"q4_0": 8, "q5_0": 16, "q6_k": 32}

Bytes = np.ndarray  # uint8


def ggml_type(name: str) -> GGMLQuantizationType:
    """GGUF's type of a quantised format."""
    return GGMLQuantizationType[name.upper()]


def block_bytes(name: str) -> int:
    """Bytes of one block of one row in a GGUF file."""
    return int(GGML_QUANT_SIZES[ggml_type(name)][1])


def pack_blocks(rows: Bytes, name: str, tensor: str) -> torch.Tensor:
    """Rows of blocks [N, K / group * block_bytes] of format `name` -> panels, uint8 [ceil(N/16),
    K / group, panel_bytes]. SourceError naming `tensor` for a scale that is no finite number.
    """
    form = FORMATS[name]
    size = block_bytes(name)
    num_rows, num_groups = rows.shape[0], rows.shape[1] // size
    num_panels = -(-num_rows // PANEL)
    panels = np.empty((num_panels, num_groups, form.panel_bytes), np.uint8)
    step = max(1, _CHUNK_BYTES // (num_groups * form.panel_bytes))
    for first in range(0, num_panels, step):
        some = rows[first * PANEL : (first + step) * PANEL]
        if missing := -len(some) % PANEL:
            some = np.concatenate([some, np.zeros((missing, rows.shape[1]), np.uint8)])
        blocks = np.ascontiguousarray(some).reshape(-1, PANEL, num_groups, size)
        # [panels, groups, 16, block]: a panel's columns side by side.
        at = 0
        for piece in _pieces(blocks.swapaxes(1, 2), name, tensor):
            panels[first : first + step, :, at : at + piece.shape[2]] = piece
            at += piece.shape[2]
        assert at == form.panel_bytes, name
    return torch.from_numpy(panels)


def _pieces(blocks: Bytes, name: str, tensor: str) -> Iterator[Bytes]:
    """The parts of panels, each [panels, groups, bytes], from blocks [panels, groups, 16, block]
    by the layouts of llama.cpp's `ggml-common.h`.
    """
    if name.endswith("_k"):
        yield from _k_pieces(blocks, name, tensor)
        return
    at = 2
    yield _halves(blocks[..., :2], tensor)
    if name in _HAS_MINIMUM:
        yield _halves(blocks[..., 2:4], tensor)
        at = 4
    if name == "q8_0":
        yield _by_four(blocks[..., at:])
        return
    if name in ("q5_0", "q5_1"):
        yield _bits5(np.unpackbits(blocks[..., at : at + 4], axis=-1, bitorder="little"))
        at += 4
    # Byte i: code[i] below code[16 + i].
    packed = blocks[..., at:]
    yield _codes4(np.concatenate([packed & 15, packed >> 4], axis=-1))


def _k_pieces(blocks: Bytes, name: str, tensor: str) -> Iterator[Bytes]:
    if name == "q6_k":
        low, high, scales, d = np.split(blocks, [128, 192, 208], axis=-1)
        yield _halves(d, tensor)
        yield _flat(scales.swapaxes(2, 3))
        # Two halves of 128: 64 bytes hold the low nibbles of the first 64 codes below those of
        # the second, 32 bytes the high bits of four times 32.
        low = low.reshape(*low.shape[:3], 2, 1, 64) >> np.array([[0], [4]], np.uint8)
        high = high.reshape(*high.shape[:3], 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8)
        low = (low & 15).reshape(*blocks.shape[:3], 8, 32)
        high = (high & 3).reshape(*blocks.shape[:3], 8, 32)
        for piece in range(8):
            yield _codes2(high[..., piece, :])
            yield _codes4(low[..., piece, :])
        return
    yield _halves(blocks[..., :2], tensor)
    yield _halves(blocks[..., 2:4], tensor)
    # [.., 8 pieces, (scale, minimum), 16 columns]
    yield _flat(np.stack(_scales_and_minima(blocks[..., 4:16]), axis=-1).transpose(0, 1, 3, 4, 2))
    # 32 bytes: the codes of an even piece below those of the next.
    codes = blocks[..., -128:].reshape(*blocks.shape[:3], 4, 1, 32)
    codes = (codes >> np.array([[0], [4]], np.uint8)) & 15
    codes = codes.reshape(*blocks.shape[:3], 8, 32)
    for piece in range(8):
        if name == "q5_k":
            # Bit p of byte l: the fifth bit of code l of piece p.
            yield _bits5((blocks[..., 16:48] >> np.uint8(piece)) & 1)
        yield _codes4(codes[..., piece, :])


def _scales_and_minima(packed: Bytes) -> tuple[Bytes, Bytes]:
    """The eight 6-bit scales and minima of 12 bytes: four in the low bits of 0..3 and 4..7, four
    with low bits in 8..11 and high bits above the first ones.
    """
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = [first & 63, (third & 15) | ((first >> 2) & 48)]
    minima = [second & 63, (third >> 4) | ((second >> 2) & 48)]
    return np.concatenate(scales, axis=-1), np.concatenate(minima, axis=-1)


def _flat(piece: Bytes) -> Bytes:
    """[panels, groups, ...] -> [panels, groups, bytes]."""
    return piece.reshape(*piece.shape[:2], -1)


def _halves(values: Bytes, tensor: str) -> Bytes:
    """One float16 for each column, [panels, groups, 16, 2] -> [panels, groups, 32]."""
    values = np.ascontiguousarray(values)
    # An exponent of all ones: infinity or not a number.
    if ((values.view("<u2") & 0x7C00) == 0x7C00).any():
        raise SourceError(
            f"tensor {tensor!r} has a scale that is no finite number",
            "the file is damaged, or its values exceed what float16 scales can hold",
        )
    return _flat(values)


def _by_four(codes: Bytes) -> Bytes:
    """[panels, groups, 16 j, 4 m b] -> bytes in the order m, j, b."""
    fours = np.ascontiguousarray(codes).view(np.uint32)
    return _flat(np.ascontiguousarray(fours.swapaxes(2, 3))).view(np.uint8)


def _codes4(codes: Bytes) -> Bytes:
    """Codes [panels, groups, 16 j, 32 k]; only their low four bits count."""
    eights = codes.reshape(*codes.shape[:3], 4, 2, 4)
    packed = eights[..., 0, :] | (eights[..., 1, :] << 4)
    return _by_four(packed.reshape(*codes.shape[:3], 16))


def _codes2(bits: Bytes) -> Bytes:
    """Bits 4 and 5 of codes, as values 0..3, [panels, groups, 16 j, 32 k]."""
    fours = bits.reshape(*bits.shape[:3], 2, 4, 4)
    packed = fours[..., 0, :]
    for f in (1, 2, 3):
        packed = packed | (fours[..., f, :] << (2 * f))
    return _by_four(packed.reshape(*bits.shape[:3], 8))


def _bits5(bits: Bytes) -> Bytes:
    """Bit 4 of codes, as values 0 and 1, [panels, groups, 16 j, 32 k]."""
    return np.packbits(_by_four(bits), axis=-1, bitorder="little")


def unpack_blocks(panels: torch.Tensor, name: str, num_outputs: int) -> torch.Tensor:
    """Panels of format `name` -> float32 [num_outputs, K]: what the operators multiply with."""
    form = FORMATS[name]
    data = panels.numpy()
    values = np.empty((data.shape[0] * PANEL, data.shape[1] * form.group), np.float32)
    for panel in range(data.shape[0]):
        columns = _values(data[panel], form)
        values[panel * PANEL : (panel + 1) * PANEL] = columns.swapaxes(0, 1).reshape(PANEL, -1)
    return torch.from_numpy(values[:num_outputs])


def _values(panel: Bytes, form: MatrixFormat) -> np.ndarray:
    """One panel [groups, panel_bytes] -> float32 [groups, 16, group]."""
    name = form.name
    groups = len(panel)
    has_minimum = name in _HAS_MINIMUM
    heads = np.ascontiguousarray(panel[:, : 64 if has_minimum else 32]).view("<f2")
    d = heads[:, :16, None].astype(np.float32)
    m = heads[:, 16:, None].astype(np.float32)
    rest = panel[:, 64 if has_minimum else 32 :]
    if name == "q8_0":
        codes = _from_fours(rest, 8).astype(np.int8).astype(np.float32)
        return np.asarray(d * codes)
    if form.group == 32:
        codes = _codes(rest, name)
        values = d * (codes - np.float32(_OFFSETS.get(name, 0)))
        return np.asarray(values + m if has_minimum else values)
    scales, rest = rest[:, :256], rest[:, 256:]
    pieces = rest.reshape(groups, 8, -1)
    codes = np.stack([_codes(pieces[:, p], name) for p in range(8)], axis=2)
    if name == "q6_k":
        each = scales.view(np.int8).reshape(groups, 16, 16).swapaxes(1, 2).astype(np.float32)
        codes = codes.reshape(groups, 16, 16, 16) - np.float32(32)
        return np.asarray((d * each)[..., None] * codes).reshape(groups, 16, 256)
    pairs = scales.reshape(groups, 8, 2, 16).astype(np.float32)
    scale, minimum = (pairs[:, :, i].swapaxes(1, 2) for i in (0, 1))
    values = (d * scale)[..., None] * codes - (m * minimum)[..., None]
    return np.asarray(values).reshape(groups, 16, 256)


def _codes(piece: Bytes, name: str) -> np.ndarray:
    """Unsigned codes of one piece [groups, bytes], as float32 [groups, 16, 32]."""
    packed = _from_fours(piece[:, -256:], 4).reshape(-1, 16, 4, 1, 4)
    low = np.concatenate([packed & 15, packed >> 4], axis=3).reshape(-1, 16, 32)
    if name.startswith("q5"):
        bits = np.unpackbits(np.ascontiguousarray(piece[:, :64]), axis=-1, bitorder="little")
        return (low | (_from_fours(bits, 8) << 4)).astype(np.float32)
    if name == "q6_k":
        pairs = _from_fours(piece[:, :128], 2).reshape(-1, 16, 2, 1, 4)
        shifts = np.array([0, 2, 4, 6], np.uint8).reshape(4, 1)
        high = ((pairs >> shifts) & 3).reshape(-1, 16, 32)
        return (low | (high << 4)).astype(np.float32)
    return low.astype(np.float32)


def _from_fours(data: Bytes, num: int) -> Bytes:
    """Bytes in the order (num, 16 j, 4 b) -> [groups, 16 j, num * 4]."""
    return data.reshape(-1, num, 16, 4).swapaxes(1, 2).reshape(-1, 16, num * 4)


def quantise(weight: torch.Tensor, name: str) -> Bytes:
    """A matrix [N, K] rounded to nearest, as rows of q8_0 or q4_1 blocks: llama.cpp's own codes.

    A value that is no finite number gives a scale that `pack_blocks` refuses.
    """
    values = weight.to(torch.float32).contiguous().numpy()
    with np.errstate(all="ignore"):
        return np.asarray(quantize(values, ggml_type(name)))
