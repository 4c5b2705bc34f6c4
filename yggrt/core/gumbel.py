"""Gumbel noise of uniform numbers: -log(-log x).

Logarithms of math libraries differ in their last bit between machines, and between the vector and
scalar parts of one call, so `portable_log` is built of operations that IEEE 754 rounds correctly.
"""

from __future__ import annotations

import math

import torch

# Of a float64's bits: those of its fraction, and the exponent of numbers in [1/2, 1).
_FRACTION = 2**52 - 1
_HALF = 1022 << 52


def gumbel(x: torch.Tensor) -> torch.Tensor:
    """-log(-log x) with the same bits on every machine."""
    return portable_log(portable_log(x).neg_()).neg_()


def gumbel_nearly(x: torch.Tensor) -> torch.Tensor:
    """-log(-log x) in a tenth of the calls, off by a few rounding errors (far below 1e-12)."""
    return x.log().neg_().log_().neg_()


def portable_log(x: torch.Tensor) -> torch.Tensor:
    """Natural logarithm of positive normal float64, within 2 ulp, the same bits everywhere.

    x = m 2^e with m in [sqrt 1/2, sqrt 2); log m = 2 artanh s, s = (m - 1) / (m + 1), as its
    Taylor series to s^21, whose rest is below 2^-54 of the sum. Every operation is rounded on its
    own, so none may be fused: one call of torch each.
    """
    # frexp by the number's bits: Inductor writes C++ for the function that does not compile.
    bits = x.view(torch.int64)
    mantissa = (bits & _FRACTION | _HALF).view(torch.float64)
    low = mantissa < math.sqrt(0.5)
    mantissa = mantissa + mantissa * low
    exponent = (bits >> 52) - 1022 - low.to(torch.int64)
    s = mantissa - 1.0
    s /= mantissa.add_(1.0)
    z = s * s
    series = z * (1 / 21)
    for odd in range(19, 1, -2):
        series += 1 / odd
        series *= z
    # 2 s (1 + series), the small part last.
    series *= s
    series += s
    series *= 2.0
    return series.add_(exponent.to(torch.float64).mul_(math.log(2)))
