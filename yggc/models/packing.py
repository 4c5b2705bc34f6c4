"""Packed layouts of matrices: shapes of all formats, and how float weights become panels and back.

A panel holds 16 output columns: element [p, k, j] is weight[16 p + j, k], zero where 16 p + j >=
N. Of bfloat16 two neighbours in k lie side by side, [K / 2, 16, 2], and the last of an odd number
as in other panels: AMX reads pairs, and other instruction sets widen them in one step. The
operators read a panel front to back, so a product reads memory in one stream whatever the number
of rows. The panels of quantised formats are made in `yggc.models.blocks`.
"""

from __future__ import annotations

import torch

from yggrt.core.formats import FORMATS, PANEL


def packed_shape(num_outputs: int, num_inputs: int, name: str = "float32") -> tuple[int, int, int]:
    """Shape of the packed form of a [num_outputs, num_inputs] matrix in format `name`."""
    form = FORMATS[name]
    last = form.panel_bytes if form.is_quantised else PANEL
    return (-(-num_outputs // PANEL), num_inputs // form.group, last)


def packed_dtype(name: str) -> torch.dtype:
    """The dtype of tensors of format `name`."""
    dtype: torch.dtype = torch.uint8 if FORMATS[name].is_quantised else getattr(torch, name)
    return dtype


def pack_matrix(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[N, K] of any float dtype -> contiguous [ceil(N/16), K, 16] of `dtype`, zero padded."""
    num_outputs, num_inputs = weight.shape
    panels, _, _ = packed_shape(num_outputs, num_inputs)
    padded = weight.to(dtype)
    if panels * PANEL != num_outputs:
        padded = torch.nn.functional.pad(padded, (0, 0, 0, panels * PANEL - num_outputs))
    packed = padded.view(panels, PANEL, num_inputs).transpose(1, 2).contiguous()
    if dtype == torch.bfloat16:
        even = num_inputs // 2 * 2
        pairs = packed[:, :even].unflatten(1, (-1, 2)).transpose(2, 3)
        packed[:, :even] = pairs.reshape(panels, even, PANEL)
    return packed
