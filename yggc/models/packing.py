"""Packed layouts of matrices: the one place that knows how a weight becomes panels and back.

A panel holds 16 output columns: element [p, k, j] is weight[16 p + j, k], zero where 16 p + j >=
N. The operators read a panel front to back, so a product reads memory in one stream whatever the
number of rows.
"""

from __future__ import annotations

import torch

PANEL = 16


def packed_shape(num_outputs: int, num_inputs: int) -> tuple[int, int, int]:
    """Shape of the packed form of a [num_outputs, num_inputs] matrix."""
    return (-(-num_outputs // PANEL), num_inputs, PANEL)


def pack_matrix(weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[N, K] of any float dtype -> contiguous [ceil(N/16), K, 16] of `dtype`, zero padded."""
    num_outputs, num_inputs = weight.shape
    panels, _, _ = packed_shape(num_outputs, num_inputs)
    padded = weight.to(dtype)
    if panels * PANEL != num_outputs:
        padded = torch.nn.functional.pad(padded, (0, 0, 0, panels * PANEL - num_outputs))
    return padded.view(panels, PANEL, num_inputs).transpose(1, 2).contiguous()


def unpack_matrix(packed: torch.Tensor, num_outputs: int) -> torch.Tensor:
    """Inverse of `pack_matrix`: [ceil(N/16), K, 16] -> [N, K] in the same dtype."""
    panels, num_inputs, _ = packed.shape
    return packed.transpose(1, 2).reshape(panels * PANEL, num_inputs)[:num_outputs].contiguous()
