"""Formats of packed weights, by the names of GGUF where it has them.

An operator names a format by its index in `FORMATS`. What the bytes of a block mean is described
in `cpu/formats.h` and, executably, in `ygg_kernels.reference`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Format:
    """`group`: values of k in a block, 0 for floats; `block_bytes`: one block of 16 columns."""

    name: str
    group: int = 0
    block_bytes: int = 0


FORMATS = (
    Format("float32"),
    Format("bfloat16"),
    Format("q4_0", 32, 288),
    Format("q4_1", 32, 320),
    Format("q5_0", 32, 352),
    Format("q5_1", 32, 384),
    Format("q8_0", 32, 544),
    Format("q4_k", 256, 2368),
    Format("q5_k", 256, 2880),
    Format("q6_k", 256, 3360),
)
FORMAT_NUMBERS = {format.name: number for number, format in enumerate(FORMATS)}
