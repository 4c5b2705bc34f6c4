"""Reads the GGUF container: metadata, tensor table and one dequantised tensor at a time.

Everything is checked against the file size before any tensor is touched. Knows nothing of
transformers' names. Covered: versions 2 and 3, little endian, one file. Not covered: split files,
big endian, version 1.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from yggc.errors import SourceError

# Metadata value types by number: struct format of the scalars, then string and array.
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9
_MAX_DEPTH = 8
_FETCH_TIP = "the file is incomplete or damaged; fetch it again"


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One entry of the tensor table; `shape` row-major, `offset` in bytes from the start of the
    file.
    """

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int

    @property
    def type_name(self) -> str:
        known = {kind.value: kind.name for kind in GGMLQuantizationType}
        return str(known.get(self.type, f"number {self.type}"))

    @property
    def is_quantised(self) -> bool:
        return GGML_QUANT_SIZES[GGMLQuantizationType(self.type)][0] > 1


class GgufFile:
    """An opened, checked GGUF file; raises SourceError for one that is damaged or of a kind not
    covered.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_bytes = path.stat().st_size
        if self.num_bytes < 24:
            raise SourceError(
                f"{path}: {self.num_bytes} bytes, too short for a GGUF file", _FETCH_TIP
            )
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        cursor = _Cursor(self._map, path)
        if (magic := cursor.take(4)) != b"GGUF":
            raise SourceError(
                f"{path}: starts with {magic!r}, a GGUF file starts with b'GGUF'", _FETCH_TIP
            )
        version = cursor.scalar("<I")
        if version not in (2, 3):
            raise SourceError(
                f"{path}: GGUF version {version}, supported are 2 and 3 (little endian)",
                "convert the model again with a current converter",
            )
        num_tensors, num_keys = cursor.scalar("<Q"), cursor.scalar("<Q")
        self.metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            name = cursor.string()
            self.metadata[name] = cursor.value(cursor.scalar("<I"))
        entries = [cursor.tensor_entry() for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise SourceError(
                f"{path}: general.alignment is {alignment!r}, wanted a number of bytes", _FETCH_TIP
            )
        start = -(-cursor.position // alignment) * alignment
        self.tensors = {
            name: GgufTensor(name, shape, kind, start + offset)
            for name, shape, kind, offset in entries
        }
        self._check(start, alignment)

    def _check(self, start: int, alignment: int) -> None:
        parts = self.number("split.count", 1)
        if parts > 1:
            raise SourceError(
                f"{self.path}: is one of {parts} parts of a split GGUF model, one whole file is "
                "wanted",
                "join the parts with `llama-gguf-split --merge`",
            )
        end = start
        decodable: set[int] = set()
        for tensor in self.tensors.values():
            if tensor.type not in decodable:
                self._check_type(tensor)
                decodable.add(tensor.type)
            self._check_rows(tensor)
            end = max(end, tensor.offset + self._size(tensor))
        if end > self.num_bytes:
            raise SourceError(
                f"{self.path}: is {self.num_bytes} bytes, its tensors end at {end}", _FETCH_TIP
            )
        if self.num_bytes > -(-end // alignment) * alignment:
            raise SourceError(
                f"{self.path}: is {self.num_bytes} bytes, {self.num_bytes - end} more than its "
                "tensors",
                _FETCH_TIP,
            )

    def _check_type(self, tensor: GgufTensor) -> None:
        try:
            kind = GGMLQuantizationType(tensor.type)
            size = GGML_QUANT_SIZES[kind][1]
            # One block of zeros: the only public way to ask whether there is a decoder.
            dequantize(np.zeros((1, size), np.uint8), kind)
        except (ValueError, KeyError, NotImplementedError):
            raise SourceError(
                f"{self.path}: tensor {tensor.name!r} has type {tensor.type_name}, which cannot "
                "be dequantised",
                "take a file of a usual type (F32, F16, BF16, Q8_0, Q6_K, Q5_K, Q4_K, Q4_1, Q4_0)",
            ) from None

    def _check_rows(self, tensor: GgufTensor) -> None:
        kind = GGMLQuantizationType(tensor.type)
        block, _ = GGML_QUANT_SIZES[kind]
        if tensor.shape and tensor.shape[-1] % block:
            raise SourceError(
                f"{self.path}: tensor {tensor.name!r} of type {kind.name} has rows of "
                f"{tensor.shape[-1]} values, "
                f"wanted a multiple of {block}",
                _FETCH_TIP,
            )

    def _size(self, tensor: GgufTensor) -> int:
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.type)]
        return int(math.prod(tensor.shape) // block * size)

    def read_bytes(self, name: str) -> np.ndarray:
        """Tensor `name` as it is stored: uint8 [..., bytes of a row], a view of the file."""
        tensor = self.tensors[name]
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.type)]
        *outer, row = tensor.shape or (1,)
        raw = np.frombuffer(self._map, np.uint8, self._size(tensor), tensor.offset)
        return raw.reshape(*outer, row // block * size)

    def release(self) -> None:
        """Gives back the memory of what was read; what is read later comes from the file again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def read(self, name: str) -> np.ndarray:
        """Tensor `name` as float32, row-major; a fresh array that may be written."""
        tensor = self.tensors[name]
        values = dequantize(self.read_bytes(name), GGMLQuantizationType(tensor.type))
        return np.array(values, dtype=np.float32, order="C").reshape(tensor.shape)

    def number(self, key: str, default: float) -> float:
        """A number of the metadata, `default` without it; SourceError for anything else."""
        value = self.metadata.get(key, default)
        if not isinstance(value, int | float):
            raise SourceError(
                f"{self.path}: metadata {key} is {value!r}, wanted a number", _FETCH_TIP
            )
        return value

    @cached_property
    def architecture(self) -> str:
        name = self.metadata.get("general.architecture")
        if not isinstance(name, str):
            raise SourceError(f"{self.path}: has no general.architecture", _FETCH_TIP)
        return name


class _Cursor:
    """A position in the file; every read is checked against its end."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.position = 0

    def take(self, num_bytes: int) -> bytes:
        end = self.position + num_bytes
        if end > len(self.data):
            raise SourceError(
                f"{self.path}: is {len(self.data)} bytes, its header needs at least {end}",
                _FETCH_TIP,
            )
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def scalar(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self) -> str:
        # Vocabularies of old converters hold bytes that are not UTF-8; they must survive as
        # something.
        return self.take(self.scalar("<Q")).decode("utf-8", errors="replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            raise SourceError(f"{self.path}: metadata value of unknown type {kind}", _FETCH_TIP)
        item, count = self.scalar("<I"), self.scalar("<Q")
        if item not in _SCALARS:
            if depth == _MAX_DEPTH:
                raise SourceError(
                    f"{self.path}: metadata arrays nest deeper than {_MAX_DEPTH}", _FETCH_TIP
                )
            return [self.value(item, depth + 1) for _ in range(count)]
        form = _SCALARS[item]
        raw = self.take(count * struct.calcsize(form))
        return list(struct.unpack(f"<{count}{form[1]}", raw))

    def tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.string()
        num_dims = self.scalar("<I")
        if num_dims > 4:
            raise SourceError(
                f"{self.path}: tensor {name!r} has {num_dims} dimensions, at most 4", _FETCH_TIP
            )
        # GGUF lists the fastest dimension first.
        shape = tuple(reversed([self.scalar("<Q") for _ in range(num_dims)]))
        return name, shape, self.scalar("<I"), self.scalar("<Q")
