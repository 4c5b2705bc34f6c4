"""Tensors and bytes: weights as views of a mapped file, a tensor's bytes to write; no copies."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from yggrt.core.schema import WeightSpec
from yggrt.memory import huge_pages, read_into_huge_pages
from yggrt.safetensors_layout import ALIGNMENT

TORCH_DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "bool": torch.bool,
    "uint8": torch.uint8,
}


def map_file(path: Path, num_bytes: int) -> torch.UntypedStorage:
    """The file's first `num_bytes`, mapped privately: read on use and never written back."""
    storage = torch.UntypedStorage.from_file(str(path), False, num_bytes)
    assert isinstance(storage, torch.UntypedStorage)
    return storage


def copy_file(descriptor: int, num_bytes: int) -> torch.UntypedStorage:
    """The open file's first `num_bytes`, copied into huge pages of this process's own."""
    data = read_into_huge_pages(descriptor, num_bytes)
    return torch.frombuffer(data, dtype=torch.uint8).untyped_storage()


def zeros_in_huge_pages(
    shapes: Sequence[tuple[torch.dtype, tuple[int, ...]]],
) -> list[torch.Tensor]:
    """Tensors of zeros, one behind another in huge pages, each on a 64-byte boundary."""
    offsets, end = [], 0
    for dtype, shape in shapes:
        offsets.append(end)
        end += -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
    data = huge_pages(max(end, 1))
    return [
        torch.frombuffer(data, dtype=dtype, count=math.prod(shape), offset=offset).view(shape)
        for (dtype, shape), offset in zip(shapes, offsets, strict=True)
    ]


def view(storage: torch.UntypedStorage, spec: WeightSpec) -> torch.Tensor:
    """The contiguous tensor that `spec` describes in a mapped bundle."""
    dtype = TORCH_DTYPES[spec.dtype]
    stride = torch.empty(spec.shape, dtype=dtype, device="meta").stride()
    flat = torch.empty(0, dtype=dtype)
    return flat.set_(storage, spec.offset // dtype.itemsize, spec.shape, stride)


def file_chunks(
    path: Path, offset: int, num_bytes: int, chunk_bytes: int = 1 << 24
) -> Iterator[bytes]:
    """`num_bytes` of a file from `offset` on in pieces; unlike a mapping's pages, what was read
    takes no memory afterwards."""
    with path.open("rb") as file:
        file.seek(offset)
        while num_bytes:
            chunk = file.read(min(chunk_bytes, num_bytes))
            if not chunk:
                raise ValueError(f"{path}: ends {num_bytes} bytes too soon")
            num_bytes -= len(chunk)
            yield chunk


def tensor_chunks(tensor: torch.Tensor, chunk_bytes: int = 1 << 24) -> Iterator[memoryview]:
    """The bytes of a contiguous CPU tensor in pieces, not copied; the iterator keeps it alive."""
    if not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ValueError(
            f"a contiguous CPU tensor wanted, got strides {tensor.stride()} on {tensor.device}"
        )
    num_bytes = tensor.numel() * tensor.itemsize
    if not num_bytes:
        return
    data = memoryview((ctypes.c_ubyte * num_bytes).from_address(tensor.data_ptr())).cast("B")
    for start in range(0, num_bytes, chunk_bytes):
        yield data[start : start + chunk_bytes]
