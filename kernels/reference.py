"""Plain-torch definitions of the operators: the oracles of the tests, in float32 or float64.

Each computes in the dtype of its floating inputs and makes no promise about bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from ygg_kernels.formats import FORMAT_NUMBERS, FORMATS

PANEL = 16


def pack_panels(weight: Tensor) -> Tensor:
    """A matrix [N, K] in panels [ceil(N / 16), K, 16] of the same dtype, zero padded; of bfloat16
    each two neighbours in k lie side by side, [K / 2, 16, 2], an odd last one by itself.
    """
    num_outputs, num_k = weight.shape
    num_panels = -(-num_outputs // PANEL)
    padded = weight.new_zeros(num_panels * PANEL, num_k)
    padded[:num_outputs] = weight
    panels = padded.view(num_panels, PANEL, num_k).transpose(1, 2).contiguous()
    if weight.dtype == torch.bfloat16:
        pairs = panels[:, : num_k // 2 * 2].unflatten(1, (-1, 2))
        panels[:, : num_k // 2 * 2] = pairs.transpose(2, 3).reshape(num_panels, -1, PANEL)
    return panels


def unpack_panels(panels: Tensor, num_outputs: int) -> Tensor:
    """The inverse of pack_panels: [num_outputs, K]."""
    num_panels, num_k, _ = panels.shape
    if panels.dtype == torch.bfloat16:
        panels = panels.clone()
        pairs = panels[:, : num_k // 2 * 2].reshape(num_panels, -1, PANEL, 2)
        panels[:, : num_k // 2 * 2] = pairs.transpose(2, 3).reshape(num_panels, -1, PANEL)
    return panels.transpose(1, 2).reshape(-1, num_k)[:num_outputs]


def _pieces(raw: Tensor, count: int) -> Tensor:
    """Bytes [..., 4 * count] of vectors (lane, byte) as [..., count / 16, 16 columns, 4]."""
    return raw.unflatten(-1, (count // 16, PANEL, 4)).long()


def _codes4(raw: Tensor) -> Tensor:
    """codes4 [..., 256] -> codes [..., 16 columns, 32]."""
    pairs = _pieces(raw, 64)
    codes = torch.stack([pairs & 15, pairs >> 4], dim=-3)  # [..., vector, half, column, byte]
    return codes.movedim(-2, -4).flatten(-3)


def _bits5(raw: Tensor) -> Tensor:
    """bits5 [..., 64] -> 16 or 0 [..., 16 columns, 32]."""
    bits = (raw.long().unsqueeze(-1) >> torch.arange(8)) & 1
    words = bits.flatten(-2).unflatten(-1, (8, PANEL, 4))  # [..., word, column, byte]
    return 16 * words.transpose(-3, -2).flatten(-2)


def _codes2(raw: Tensor) -> Tensor:
    """codes2 [..., 128] -> bits 4 and 5 [..., 16 columns, 32]."""
    vectors = _pieces(raw, 32)  # [..., vector, column, byte]
    fields = (vectors.unsqueeze(-3) >> (2 * torch.arange(4)[:, None, None])) & 3
    return 16 * fields.movedim(-2, -4).flatten(-3)


def _codes8(raw: Tensor) -> Tensor:
    """codes8 [..., 512] -> signed codes [..., 16 columns, 32]."""
    return _pieces(raw.view(torch.int8), 128).transpose(-3, -2).flatten(-2)


def _half(raw: Tensor) -> Tensor:
    return raw.contiguous().view(torch.float16).float()


def decode_blocks(panels: Tensor, format: str) -> tuple[Tensor, Tensor, Tensor | None]:
    """Quantised panels uint8 [ceil(N/16), K/group, bytes] as codes, scales and minima.

    Codes int64 [rows, K] with the format's offset taken off, scales float32 [rows, K / s] for
    sub-groups of s values (16 for q6_k, else 32), minima float32 [rows, K / 32] or None; rows is N
    padded to 16. A weight is scale * code + minimum.
    """
    d = _half(panels[..., :32])
    high: Tensor | int = 0
    minima = None
    if format in ("q4_k", "q5_k"):
        parts = panels[..., 64:320].unflatten(-1, (8, 2, PANEL)).float()
        scales = d.unsqueeze(-2) * parts[..., 0, :]  # [panel, block, piece, column]
        minima = -_half(panels[..., 32:64]).unsqueeze(-2) * parts[..., 1, :]
        pieces = panels[..., 320:].unflatten(-1, (8, -1))
        if format == "q5_k":
            high, pieces = _bits5(pieces[..., :64]), pieces[..., 64:]
        codes = _codes4(pieces) + high
    elif format == "q6_k":
        parts = panels[..., 32:288].view(torch.int8).unflatten(-1, (16, PANEL)).float()
        scales = d.unsqueeze(-2) * parts
        pieces = panels[..., 288:].unflatten(-1, (8, -1))
        codes = _codes4(pieces[..., 128:]) + _codes2(pieces[..., :128]) - 32
    else:
        scales = d.unsqueeze(-2)
        rest = panels[..., 32:].unsqueeze(-2)
        if format in ("q4_1", "q5_1"):
            minima, rest = _half(rest[..., :32]), rest[..., 32:]
        if format in ("q5_0", "q5_1"):
            high, rest = _bits5(rest[..., :64]), rest[..., 64:]
        codes = _codes8(rest) if format == "q8_0" else _codes4(rest) + high
        codes = codes - {"q4_0": 8, "q5_0": 16}.get(format, 0)
    return _by_row(codes), _by_row(scales), None if minima is None else _by_row(minima)


def _by_row(t: Tensor) -> Tensor:
    """[panel, block, piece, 16] or [panel, block, piece, 16, 32] -> [panel * 16, rest]."""
    return t.movedim(3, 1).flatten(0, 1).flatten(1)


def decode_panels(panels: Tensor, size: int, format: int) -> Tensor:
    """The matrix [size, K] behind packed panels: stored values, or float32 from quantised ones."""
    if format < FORMAT_NUMBERS["q4_0"]:
        return unpack_panels(panels, size)
    codes, scales, minima = decode_blocks(panels, FORMATS[format].name)
    weight = scales.double().repeat_interleave(codes.shape[1] // scales.shape[1], 1) * codes
    if minima is not None:
        weight = weight + minima.double().repeat_interleave(32, 1)
    return weight[:size].float()


def linear(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    sizes: Sequence[int],
    formats: Sequence[int],
    integer: bool,
) -> list[Tensor]:
    """x [..., K] times each packed weight, plus its bias [N].

    `integer`: quantised weights take rows rounded to int8 (`linear_integer`).
    """
    products = linear_unbiased(x, weights, sizes, formats, integer)
    return [y + bias.to(x.dtype) for y, bias in zip(products, biases, strict=True)]


def linear_unbiased(
    x: Tensor,
    weights: Sequence[Tensor],
    sizes: Sequence[int],
    formats: Sequence[int],
    integer: bool,
) -> list[Tensor]:
    """The same without biases."""
    outputs = []
    for weight, size, format in zip(weights, sizes, formats, strict=True):
        if integer and format >= FORMAT_NUMBERS["q4_0"]:
            outputs.append(linear_integer(x.float(), weight, size, format).to(x.dtype))
        else:
            outputs.append(x @ decode_panels(weight, size, format).to(x.dtype).T)
    return outputs


def argmax(logits: Tensor) -> Tensor:
    """logits [n, N] float32: the first place of the largest value of each row, int64 [n]."""
    return logits.argmax(-1)


def silu_mul(a: Tensor, b: Tensor) -> Tensor:
    """a / (1 + exp(-a)) * b; b of a's shape or expanded to it."""
    return torch.nn.functional.silu(a) * b


def materialize(x: Tensor) -> Tensor:
    """x in memory of its own."""
    return x.clone()


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows float32 [..., K] as codes int64 [..., K] and scales float32 [..., K / 32].

    scale = max|x| / 127 over a group of 32, code = x * (127 / max|x|), ties to even; 0 where that
    factor is too large to be a number.
    """
    groups = x.unflatten(-1, (-1, 32))
    largest = groups.abs().amax(-1, keepdim=True)
    inverse = 127.0 / largest
    inverse = torch.where((largest > 0) & inverse.isfinite(), inverse, 0.0)
    return (groups * inverse).round().long().flatten(-2), (largest / 127.0).squeeze(-1)


def _fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """round(a * b + c) of float32, rounded once: the float64 sum is made odd where it is inexact
    (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    product, addend = a.double() * b.double(), c.double()
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    bits = total.view(torch.int64)
    step = torch.where((error > 0) == (total > 0), 1, -1)
    bits = torch.where((error != 0) & (bits & 1 == 0), bits + step, bits)
    return bits.view(torch.float64).float()


def linear_integer(x: Tensor, weight: Tensor, size: int, format: int) -> Tensor:
    """x float32 [..., K], rounded to int8, times a quantised weight: the bits that every build of
    the operator gives.

    Per sub-group in order of k: integer sum of code * code, times the row's scale (rounded), then
    one fused multiply-add by the weight's scale; then one of the row's scaled sum by the minimum.
    """
    codes, scales, minima = decode_blocks(weight, FORMATS[format].name)
    rows, row_scales = quantize_rows(x.reshape(-1, x.shape[-1]))
    part = codes.shape[1] // scales.shape[1]
    sums = torch.einsum(
        "rgk,ngk->grn",
        rows.unflatten(1, (-1, part)).double(),
        codes.unflatten(1, (-1, part)).double(),
    ).float()
    row_sums = rows.unflatten(1, (-1, 32)).sum(-1).float() * row_scales
    total = torch.zeros(len(rows), len(codes))
    for g in range(sums.shape[0]):
        group = g * part // 32
        total = _fma(sums[g] * row_scales[:, group, None], scales[:, g].expand_as(total), total)
        if minima is not None:
            total = _fma(
                row_sums[:, group, None].expand_as(total), minima[:, group].expand_as(total), total
            )
    return total[:, :size].reshape(*x.shape[:-1], size)


def embedding(ids: Tensor, weight: Tensor, size: int, format: int) -> Tensor:
    """Rows `ids` [...] int64 of a packed matrix with `size` rows: [..., K] float32."""
    return decode_panels(weight, size, format)[ids].float()


def decode_cache(cache: Tensor) -> Tensor:
    """The values of a cache [1, H, S, D]; int8 rows are uint8 [1, H, S, D + 4], D codes and then
    one float32 scale."""
    if cache.dtype != torch.uint8:
        return cache
    scales = cache[..., -4:].contiguous().view(torch.float32)
    return cache[..., :-4].contiguous().view(torch.int8) * scales


def encode_int8(rows: Tensor) -> Tensor:
    """Rows [..., D] float32 as int8 rows [..., D + 4]: scale max|row| / 127, halves to even."""
    largest = rows.abs().amax(dim=-1, keepdim=True)
    codes = torch.where(largest == 0.0, 0.0, rows * (127.0 / largest)).round().to(torch.int8)
    return torch.cat([codes.view(torch.uint8), (largest / 127.0).view(torch.uint8)], dim=-1)


def tree_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    length: Tensor,
    positions: Tensor,
    tree_mask: Tensor,
    scale: float,
    window: int,
    softcap: float,
) -> Tensor:
    """Attention of tree rows: q [1, Hq, V, Dk], caches [1, Hkv, S, D] -> [1, V, Hq, Dv].

    Caches as in decode_cache: what they hold is widened to the dtype of q.

    Row r sees slots 0..length-1 and, of slots length..length+M-1, those that `tree_mask` [V, M]
    bool names; M >= V. The sequence index of a key is its position: prefix first, then the
    ancestors in row order. With a window only positions above positions[r] - window are seen, and
    always the row itself.
    """
    num_heads, num_rows = q.shape[1], q.shape[2]
    prefix = int(length)
    total = prefix + tree_mask.shape[1]
    group = num_heads // k_cache.shape[1]
    keys = decode_cache(k_cache[:, :, :total]).to(q.dtype).repeat_interleave(group, dim=1)
    values = decode_cache(v_cache[:, :, :total]).to(q.dtype).repeat_interleave(group, dim=1)
    scores = (q @ keys.transpose(2, 3)) * scale
    if softcap != 0.0:
        scores = torch.tanh(scores / softcap) * softcap
    visible = torch.cat([tree_mask.new_ones(num_rows, prefix), tree_mask], dim=1)
    if window != 0:
        index = visible.long().cumsum(dim=1) - 1
        last = visible.sum(dim=1, keepdim=True) - 1
        visible = visible & ((index > positions[:, None] - window) | (index == last))
    scores = scores.masked_fill(~visible, float("-inf"))
    return (scores.softmax(dim=-1) @ values).transpose(1, 2).contiguous()


def kv_write(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
    """cache[0, h, slots[v]] = rows[0, h, v] in the cache's type, in place."""
    cache[:, :, slots] = encode_int8(rows) if cache.dtype == torch.uint8 else rows.to(cache.dtype)


def kv_commit(caches: Sequence[Tensor], sources: Tensor, targets: Tensor) -> None:
    """Slot rows `sources` move to `targets` in every cache, all loads before any store."""
    for cache in caches:
        cache[:, :, targets] = cache[:, :, sources]
