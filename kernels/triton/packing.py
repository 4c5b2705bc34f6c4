"""Layouts of weights on CUDA, packed and unpacked in plain torch.

Dense: [N, K] row-major. Packed: uint8 [N, row_bytes], a row holding its codes and then its scales,
so that one pointer and one stride find everything of an output:

* q8_0: K int8 codes; K / 32 float16 d.                              w = d * code
* q4_1: K / 2 bytes, byte j = code[2j] | code[2j + 1] << 4;          w = d * code + m
        K / 32 float16 d; K / 32 float16 m.

A group is 32 consecutive k. Rows are padded with zero bytes to a multiple of 16.
"""

from __future__ import annotations

import torch
from torch import Tensor
from ygg_kernels.formats import FORMAT_NUMBERS
from ygg_kernels.triton.checks import refuse

GROUP = 32
# Numbers of formats as the CPU operators have them; float16, which they lack, stands apart.
CODES = {name: FORMAT_NUMBERS[name] for name in ("bfloat16", "q4_1", "q8_0")} | {"float16": 64}
NAMES = {code: name for name, code in CODES.items()}
DENSE = (CODES["bfloat16"], CODES["float16"])
Q4_1, Q8_0 = CODES["q4_1"], CODES["q8_0"]


def row_bytes(weight_format: int, num_k: int) -> int:
    """Bytes of one packed output row."""
    used = num_k + num_k // 16 if weight_format == Q8_0 else num_k // 2 + num_k // 8
    return -(-used // 16) * 16


def quantize(weight: Tensor, weight_format: int) -> Tensor:
    """[N, K] rounded to nearest and packed: the scale takes the group's largest value (q8_0) or
    range (q4_1) to the largest code. Raises KernelInputError for K or a scale that does not fit.
    """
    groups = _groups(weight.float())
    if weight_format == Q8_0:
        scale = groups.abs().amax(dim=2) / 127
        stored = scale.half()
        codes = (groups / _divisor(stored)[..., None]).round().clamp(-127, 127)
        return pack(codes.flatten(1), stored, None)
    lowest = groups.amin(dim=2)
    stored = ((groups.amax(dim=2) - lowest) / 15).half()
    minimum = lowest.half()
    shifted = groups - minimum.float()[..., None]
    codes = (shifted / _divisor(stored)[..., None]).round().clamp(0, 15)
    return pack(codes.flatten(1), stored, minimum)


def pack(codes: Tensor, scales: Tensor, minima: Tensor | None) -> Tensor:
    """Codes [N, K], scales and, for q4_1, minima [N, K / 32] float16: uint8 [N, row_bytes].

    Raises KernelInputError for a NaN or infinite scale or minimum.
    """
    _groups(codes)
    num_rows, num_k = codes.shape
    for name, values in (("scale", scales), ("minimum", minima)):
        if values is not None and not bool(values.isfinite().all()):
            found = float(values[~values.isfinite()][0])
            raise refuse("linear", f"a {name} of the packed weight", found, "a finite number")
    if minima is None:
        weight_format, parts = Q8_0, [codes.to(torch.int8).view(torch.uint8)]
    else:
        nibbles = codes.to(torch.uint8).view(num_rows, num_k // 2, 2)
        weight_format, parts = Q4_1, [nibbles[..., 0] | nibbles[..., 1] << 4]
    parts += [
        values.half().contiguous().view(torch.uint8)
        for values in (scales, minima)
        if values is not None
    ]
    packed = torch.cat(parts, dim=1)
    padding = row_bytes(weight_format, num_k) - packed.shape[1]
    return torch.nn.functional.pad(packed, (0, padding))


def unpack(packed: Tensor, weight_format: int, num_k: int) -> Tensor:
    """The values [N, K] in float32."""
    num_groups = num_k // GROUP
    num_codes = num_k if weight_format == Q8_0 else num_k // 2
    codes = packed[:, :num_codes]

    def halves(start: int) -> Tensor:
        part = packed[:, start : start + 2 * num_groups].contiguous()
        return part.view(torch.float16).float()[..., None]

    scales = halves(num_codes)
    if weight_format == Q8_0:
        values = _groups(codes.view(torch.int8).float()) * scales
    else:
        nibbles = torch.stack([codes & 15, codes >> 4], dim=2).flatten(1).float()
        values = _groups(nibbles) * scales + halves(num_codes + 2 * num_groups)
    return values.flatten(1)


def _groups(values: Tensor) -> Tensor:
    num_k = values.shape[1]
    if num_k % GROUP != 0:
        raise refuse("linear", "K of a packed weight", num_k, f"a multiple of {GROUP}")
    return values.reshape(values.shape[0], num_k // GROUP, GROUP)


def _divisor(scale: Tensor) -> Tensor:
    """A zero scale means that every value of its group is zero: any divisor gives code 0."""
    return torch.where(scale == 0, 1.0, scale.float())
