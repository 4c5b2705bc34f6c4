"""`linear` for 1 to 64 rows: dense bfloat16 or float16, 8-bit and 4-bit weights.

Order of sums, which results depend on: K in splits of 1024; in a split, blocks of `BLOCK_K` in
order, each one matrix product that adds onto the last; then the splits in order; then the bias.
Rows are padded to tiles of 16 and every tile goes through the same instructions, so the bits of a
row depend neither on the number of rows nor on the other rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton
from ygg_kernels.triton import checks, packing
from ygg_kernels.triton.numerics import dot, emulates, narrow, widen

OPERATOR = "linear"
TILE = tl.constexpr(16)
SPLIT = 1024
BLOCK_N = 64
Q8_0 = tl.constexpr(packing.Q8_0)
Q4_1 = tl.constexpr(packing.Q4_1)
GROUP = tl.constexpr(packing.GROUP)


@triton.jit
def _load_weight(
    weight, n, start, num_n, num_k, row_stride, DTYPE: tl.constexpr, FORMAT: tl.constexpr,
    PACKED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    """Columns start .. start + BLOCK_K of outputs n: [BLOCK_K, BLOCK_N] of DTYPE."""
    rows = weight + n.to(tl.int64)[:, None] * row_stride
    exists = (n < num_n)[:, None]
    k = start + tl.arange(0, BLOCK_K)
    if PACKED:
        group = start // GROUP + tl.arange(0, BLOCK_K // GROUP)
        in_group = exists & (group < num_k // GROUP)[None, :]
        if FORMAT == Q8_0:
            codes = tl.load(rows + k[None, :], mask=exists & (k < num_k)[None, :], other=0)
            values = codes.to(tl.int8, bitcast=True).to(tl.float32)
            scales = rows + num_k
        else:
            byte = start // 2 + tl.arange(0, BLOCK_K // 2)
            codes = tl.load(
                rows + byte[None, :], mask=exists & (byte < num_k // 2)[None, :], other=0
            )
            values = tl.interleave(codes & 15, codes >> 4).to(tl.float32)
            scales = rows + num_k // 2
        halves = scales.to(tl.pointer_type(tl.float16), bitcast=True) + group[None, :]
        scale = tl.load(halves, mask=in_group, other=0.0).to(tl.float32)
        grouped = tl.reshape(values, [BLOCK_N, BLOCK_K // GROUP, GROUP])
        scale = tl.broadcast_to(scale[:, :, None], grouped.shape)
        if FORMAT == Q8_0:
            grouped = grouped * scale
        else:
            minimum = tl.load(halves + num_k // GROUP, mask=in_group, other=0.0).to(tl.float32)
            minimum = tl.broadcast_to(minimum[:, :, None], grouped.shape)
            grouped = tl.fma(grouped, scale, minimum)
        block = narrow(tl.reshape(grouped, [BLOCK_N, BLOCK_K]), DTYPE, EMULATE)
    else:
        block = tl.load(rows + k[None, :], mask=exists & (k < num_k)[None, :], other=0.0)
    return tl.trans(block)


@triton.jit
def _tile_step(x, weight, acc, tile, k, num_rows, num_k, x_stride, EMULATE: tl.constexpr):
    """acc + 16 rows of x times the block of weights."""
    row = tile * TILE + tl.arange(0, TILE)
    rows = tl.load(
        x + row[:, None] * x_stride + k[None, :],
        mask=(row < num_rows)[:, None] & (k < num_k)[None, :], other=0.0,
    )  # fmt: skip
    return dot(rows, weight, acc, EMULATE)


@triton.jit
def _finish_tile(out, bias, acc, tile, n, split, num_rows, num_n, BIAS: tl.constexpr,
                 EMULATE: tl.constexpr):  # fmt: skip
    """Stores 16 rows: float32 sums of a split, or the result."""
    row = tile * TILE + tl.arange(0, TILE)
    if BIAS:
        added = tl.load(bias + n, mask=n < num_n, other=0.0)
        acc += widen(added, EMULATE)[None, :]
    if out.dtype.element_ty != tl.float32:
        acc = narrow(acc, out.dtype.element_ty, EMULATE)
    tl.store(
        out + (split * num_rows + row).to(tl.int64)[:, None] * num_n + n[None, :], acc,
        mask=(row < num_rows)[:, None] & (n < num_n)[None, :],
    )  # fmt: skip


@triton.jit
def _linear_kernel(
    x, weight, bias, out, num_rows, num_n, num_k, x_stride, row_stride,
    FORMAT: tl.constexpr, PACKED: tl.constexpr, BIAS: tl.constexpr, TILES: tl.constexpr,
    SPLIT: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(1)
    acc0 = tl.zeros([TILE, BLOCK_N], tl.float32)
    acc1 = tl.zeros([TILE, BLOCK_N], tl.float32)
    acc2 = tl.zeros([TILE, BLOCK_N], tl.float32)
    acc3 = tl.zeros([TILE, BLOCK_N], tl.float32)
    for start in range(split * SPLIT, tl.minimum(num_k, (split + 1) * SPLIT), BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        block = _load_weight(
            weight, n, start, num_n, num_k, row_stride, x.dtype.element_ty, FORMAT, PACKED,
            BLOCK_N, BLOCK_K, EMULATE,
        )  # fmt: skip
        acc0 = _tile_step(x, block, acc0, 0, k, num_rows, num_k, x_stride, EMULATE)
        if TILES > 1:
            acc1 = _tile_step(x, block, acc1, 1, k, num_rows, num_k, x_stride, EMULATE)
        if TILES > 2:
            acc2 = _tile_step(x, block, acc2, 2, k, num_rows, num_k, x_stride, EMULATE)
            acc3 = _tile_step(x, block, acc3, 3, k, num_rows, num_k, x_stride, EMULATE)
    _finish_tile(out, bias, acc0, 0, n, split, num_rows, num_n, BIAS, EMULATE)
    if TILES > 1:
        _finish_tile(out, bias, acc1, 1, n, split, num_rows, num_n, BIAS, EMULATE)
    if TILES > 2:
        _finish_tile(out, bias, acc2, 2, n, split, num_rows, num_n, BIAS, EMULATE)
        _finish_tile(out, bias, acc3, 3, n, split, num_rows, num_n, BIAS, EMULATE)


@triton.jit
def _sum_kernel(
    partial, bias, out, num_rows, num_n, num_splits,
    BIAS: tl.constexpr, BLOCK: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(1)
    exists = n < num_n
    total = tl.zeros([BLOCK], tl.float32)
    for split in range(num_splits):
        place = (split * num_rows + row).to(tl.int64) * num_n
        total += tl.load(partial + place + n, mask=exists, other=0.0)
    if BIAS:
        total += widen(tl.load(bias + n, mask=exists, other=0.0), EMULATE)
    tl.store(out + row * num_n + n, narrow(total, out.dtype.element_ty, EMULATE), mask=exists)


def _check_input(x: Tensor, integer: bool) -> None:
    checks.require_dtype(OPERATOR, "x", x, torch.bfloat16, torch.float16)
    checks.require_contiguous(OPERATOR, "x", x)
    checks.require_aligned(OPERATOR, "x", x)
    checks.require_rows(OPERATOR, x.numel() // x.shape[-1])
    if x.shape[-1] % 32 != 0:
        raise checks.refuse(OPERATOR, "K", x.shape[-1], "a multiple of 32")
    if integer:
        raise checks.refuse(OPERATOR, "integer", True, "False: no kernel multiplies int8 by int8")


def _check_weight(x: Tensor, weight: Tensor, size: int, weight_format: int) -> None:
    num_k = x.shape[-1]
    if weight_format in packing.DENSE:
        if str(x.dtype) != f"torch.{packing.NAMES[weight_format]}":
            raise checks.refuse(
                OPERATOR, "format of the weight", packing.NAMES[weight_format],
                f"{str(x.dtype)[6:]}, the dtype of x",
            )  # fmt: skip
        checks.require_dtype(OPERATOR, "weight", weight, x.dtype)
        checks.require_shape(OPERATOR, "weight", weight, size, num_k)
    elif weight_format in (packing.Q8_0, packing.Q4_1):
        checks.require_dtype(OPERATOR, "weight", weight, torch.uint8)
        width = packing.row_bytes(weight_format, num_k)
        checks.require_shape(OPERATOR, "weight", weight, size, width)
    else:
        known = ", ".join(
            f"{code} ({packing.NAMES[code]})"
            for code in (*packing.DENSE, packing.Q4_1, packing.Q8_0)
        )
        raise checks.refuse(OPERATOR, "format of the weight", weight_format, f"one of {known}")
    checks.require_contiguous(OPERATOR, "weight", weight)
    checks.require_aligned(OPERATOR, "weight", weight)
    checks.require_same_device(OPERATOR, x, weight=weight)


def _multiply(
    x: Tensor, weight: Tensor, bias: Tensor | None, size: int, weight_format: int
) -> Tensor:
    _check_weight(x, weight, size, weight_format)
    if bias is not None:
        checks.require_dtype(OPERATOR, "bias", bias, x.dtype)
        checks.require_shape(OPERATOR, "bias", bias, size)
        checks.require_contiguous(OPERATOR, "bias", bias)
        checks.require_same_device(OPERATOR, x, bias=bias)
    num_k = x.shape[-1]
    num_rows = x.numel() // num_k
    num_splits = triton.cdiv(num_k, SPLIT)
    out = torch.empty((*x.shape[:-1], size), dtype=x.dtype, device=x.device)
    sums = out
    if num_splits > 1:
        shape = (num_splits, num_rows, size)
        sums = torch.empty(shape, dtype=torch.float32, device=x.device)
    tiles = triton.next_power_of_2(triton.cdiv(num_rows, 16))
    emulate, packed = emulates(x.dtype), weight_format not in packing.DENSE
    # More stages than these spill in some triton release where codes are unpacked in registers.
    stages = 2 if packed else 3
    # One that is not read stands in for a bias, so that the arguments have the same types.
    added = x if bias is None else bias
    wrap_triton(_linear_kernel)[(triton.cdiv(size, BLOCK_N), num_splits)](
        x, weight, added, sums, num_rows, size, num_k, num_k, weight.stride(0),
        FORMAT=weight_format, PACKED=packed, BIAS=bias is not None and num_splits == 1,
        TILES=tiles, SPLIT=SPLIT, BLOCK_N=BLOCK_N, BLOCK_K=128 if packed else 64, EMULATE=emulate,
        num_warps=4, num_stages=stages,
    )  # fmt: skip
    if num_splits > 1:
        wrap_triton(_sum_kernel)[(triton.cdiv(size, 256), num_rows)](
            sums, added, out, num_rows, size, num_splits,
            BIAS=bias is not None, BLOCK=256, EMULATE=emulate, num_warps=2, num_stages=2,
        )  # fmt: skip
    return out


@triton_op("ygg_cuda::linear", mutates_args=())
def linear(
    x: Tensor,
    weights: list[Tensor],
    biases: list[Tensor],
    sizes: list[int],
    formats: list[int],
    integer: bool,
) -> list[Tensor]:
    """x [..., K] bfloat16 or float16 (1 to 64 rows) times each weight, plus its bias [N].

    Weights as in `packing`: dense [N, K] of x's dtype, or packed uint8 for `formats` 3 (q4_1) and
    6 (q8_0), whose values are rounded to x's dtype before the product. Sums in float32, results
    in x's dtype. `integer` must be false. Raises KernelInputError.
    """
    _check_input(x, integer)
    return [
        _multiply(x, weight, bias, size, weight_format)
        for weight, bias, size, weight_format in zip(weights, biases, sizes, formats, strict=True)
    ]


@triton_op("ygg_cuda::linear_unbiased", mutates_args=())
def linear_unbiased(
    x: Tensor, weights: list[Tensor], sizes: list[int], formats: list[int], integer: bool
) -> list[Tensor]:
    """The same without biases."""
    _check_input(x, integer)
    return [
        _multiply(x, weight, None, size, weight_format)
        for weight, size, weight_format in zip(weights, sizes, formats, strict=True)
    ]
