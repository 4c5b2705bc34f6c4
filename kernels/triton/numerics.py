"""Arithmetic that several kernels share, and the two things that Triton's interpreter does wrong.

The interpreter keeps bfloat16 as 16-bit integers: a dot multiplies those integers, and a cast cuts
bits off instead of rounding. Kernels therefore take `EMULATE`: true in the interpreter, where
bfloat16 is widened and rounded here by its bits; false on a GPU, where these are plain casts.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter (TRITON_INTERPRET=1 when it was imported)."""
    return bool(triton.knobs.runtime.interpret)


def emulates(dtype: torch.dtype) -> bool:
    """The value of `EMULATE` for kernels over tensors of `dtype`."""
    return dtype == torch.bfloat16 and interpreted()


@triton.jit
def widen(x, EMULATE: tl.constexpr):
    """To float32, exactly."""
    if EMULATE:
        bits = x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
        wide = bits.to(tl.float32, bitcast=True)
    else:
        wide = x.to(tl.float32)
    return wide


@triton.jit
def narrow(x, DTYPE: tl.constexpr, EMULATE: tl.constexpr):
    """From float32 to DTYPE, to nearest, ties to even; NaN stays NaN."""
    if EMULATE:
        bits = x.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        rounded = tl.where(x != x, 0x7FC0, rounded)
        narrowed = rounded.to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        narrowed = x.to(DTYPE)
    return narrowed


@triton.jit
def dot(a, b, acc, EMULATE: tl.constexpr):
    """acc + a @ b, products and sums in float32."""
    if EMULATE:
        a = widen(a, True)
        b = widen(b, True)
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def tanh(x):
    """Within a few float32 roundings of tanh; Triton has none that its interpreter knows."""
    size = tl.abs(x)
    square = x * x
    # The quotient cancels near zero, the series has not converged far from it.
    series = size * (
        1.0
        + square * (-1.0 / 3 + square * (2.0 / 15 + square * (-17.0 / 315 + square * 62.0 / 2835)))
    )
    falling = tl.exp(-2.0 * size)
    value = tl.where(size < 0.25, series, (1.0 - falling) / (1.0 + falling))
    return tl.where(x < 0, -value, value)
