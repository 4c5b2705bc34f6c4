"""What the operators refuse, each time with operator, argument, value found and value wanted.

The checks run where Python runs an operator or traces it; a compiled graph holds only kernels, so
a runtime checks what it binds to a graph against the manifest.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from yggrt.core.errors import YggError

MAX_ROWS = 64
ALIGNMENT = 16


class KernelInputError(YggError):
    """An argument that no kernel can compute with."""


def refuse(operator: str, argument: str, found: object, wanted: object) -> KernelInputError:
    """The error, to be raised by the caller."""
    return KernelInputError(f"{operator}: {argument} is {found}, wanted {wanted}")


def require_dtype(operator: str, argument: str, tensor: Tensor, *wanted: torch.dtype) -> None:
    """One of the dtypes `wanted`."""
    if tensor.dtype not in wanted:
        names = " or ".join(str(dtype) for dtype in wanted)
        raise refuse(operator, f"dtype of {argument}", tensor.dtype, names)


def require_shape(operator: str, argument: str, tensor: Tensor, *wanted: int | str) -> None:
    """Sizes that are numbers must agree; the names of the others only appear in the message."""
    agrees = tensor.ndim == len(wanted) and all(
        isinstance(want, str) or size == want
        for size, want in zip(tensor.shape, wanted, strict=True)
    )
    if not agrees:
        text = "[" + ", ".join(str(want) for want in wanted) + "]"
        raise refuse(operator, f"shape of {argument}", list(tensor.shape), text)


def require_contiguous(operator: str, argument: str, tensor: Tensor) -> None:
    """Dense and row-major."""
    if not tensor.is_contiguous():
        raise refuse(operator, f"strides of {argument}", list(tensor.stride()), "contiguous")


def require_aligned(operator: str, argument: str, tensor: Tensor) -> None:
    """The first element on a boundary of 16 bytes, as vector loads want it."""
    offset = tensor.storage_offset() * tensor.element_size()
    # What stands for a tensor while a graph is traced has no address, only a place in its storage.
    if type(tensor) in (Tensor, torch.nn.Parameter) and tensor.device.type != "meta":
        offset = tensor.data_ptr()
    if offset % ALIGNMENT != 0:
        raise refuse(
            operator, f"address of {argument}", f"{offset % ALIGNMENT} modulo {ALIGNMENT}", 0
        )


def require_rows(operator: str, num_rows: int) -> None:
    """A row count that the kernels have."""
    if not 1 <= num_rows <= MAX_ROWS:
        raise refuse(operator, "row count", num_rows, f"1 to {MAX_ROWS}")


def require_finite(operator: str, argument: str, value: float, *, positive: bool) -> None:
    """A finite number; above zero, or at least zero."""
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        wanted = "a finite number above 0" if positive else "a finite number, 0 or above"
        raise refuse(operator, argument, value, wanted)


def require_same_device(operator: str, first: Tensor, **others: Tensor) -> None:
    """Every tensor where the first is."""
    for argument, tensor in others.items():
        if tensor.device != first.device:
            raise refuse(operator, f"device of {argument}", tensor.device, first.device)
