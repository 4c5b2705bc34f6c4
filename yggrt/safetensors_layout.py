"""The header of `weights.safetensors`: where each tensor lies, so that all start on a 64-byte
boundary of the bundle.

The member is an ordinary safetensors file. Two freedoms of that format give the alignment: spaces
behind the header's JSON, and small uint8 tensors named `__pad_N` between the real ones. Knows
nothing of files or torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from yggrt.core.errors import BundleError
from yggrt.core.schema import Dtype, WeightSpec

ALIGNMENT = 64
PAD_PREFIX = "__pad_"
# The safetensors library refuses longer headers.
MAX_HEADER_BYTES = 100_000_000

SAFETENSORS_DTYPES: dict[str, str] = {
    "float32": "F32",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "bool": "BOOL",
    "uint8": "U8",
}


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """`header`: length field and padded JSON. Offsets are bytes behind the header; `num_bytes` is
    the whole member.
    """

    header: bytes
    offsets: dict[str, int]
    num_bytes: int


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def lay_out(tensors: Sequence[tuple[str, Dtype, tuple[int, ...]]], payload: int) -> TensorLayout:
    """Lays tensors out in the given order for a member whose bytes start at `payload` of the
    bundle.

    Raises BundleError for a name that is reserved or given twice, and for a header over the
    format's limit.
    """
    entries: dict[str, _Entry] = {}
    offsets: dict[str, int] = {}
    position = 0
    for name, dtype, shape in tensors:
        if name in entries or name == "__metadata__" or name.startswith(PAD_PREFIX):
            raise BundleError(
                f"weight {name!r}: the name is given twice or reserved; wanted unique names other "
                f"than "
                f"'__metadata__' and '{PAD_PREFIX}…'"
            )
        num_bytes = WeightSpec(dtype=dtype, shape=shape, offset=0).num_bytes
        entries[name] = _Entry(SAFETENSORS_DTYPES[dtype], shape, (position, position + num_bytes))
        offsets[name] = position
        position += num_bytes
        pad = -position % ALIGNMENT
        if pad:
            entries[f"{PAD_PREFIX}{len(entries)}"] = _Entry(
                "U8", (pad,), (position, position + pad)
            )
            position += pad
    text = msgspec.json.encode(entries)
    text += b" " * (-(payload + 8 + len(text)) % ALIGNMENT)
    if len(text) > MAX_HEADER_BYTES:
        raise BundleError(
            f"weights: a header of {len(text)} bytes, the format allows {MAX_HEADER_BYTES}"
        )
    header = len(text).to_bytes(8, "little") + text
    return TensorLayout(header, offsets, len(header) + position)


def check_header(
    header: bytes, weights: Mapping[str, WeightSpec], payload: int, num_bytes: int, where: str
) -> None:
    """Compares the header of a member at `payload .. payload + num_bytes` with the manifest's
    weight table.

    Raises BundleError naming the tensor, what was found and what was wanted.
    """
    tip = "the file is damaged or was written by another program; build it again"
    try:
        entries = msgspec.json.decode(header[8:], type=dict[str, _Entry])
    except (msgspec.DecodeError, RecursionError) as error:
        raise BundleError(
            f"{where}: header of weights.safetensors is not valid: {error}", tip
        ) from error
    missing = sorted(weights.keys() - entries.keys())
    if missing:
        raise BundleError(
            f"{where}: weight {missing[0]!r} is in the manifest and not in weights.safetensors",
            tip,
        )
    position = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        begin, end = entry.data_offsets
        if begin != position or end < begin:
            raise BundleError(
                f"{where}: tensor {name!r} lies at {begin}..{end} of the data, wanted a start of "
                f"{position}",
                tip,
            )
        position = end
        spec = weights.get(name)
        if spec is not None:
            _check_entry(name, entry, spec, payload + len(header), where)
        elif not name.startswith(PAD_PREFIX):
            raise BundleError(
                f"{where}: tensor {name!r} is not in the manifest's weight table", tip
            )
    if len(header) + position != num_bytes:
        raise BundleError(
            f"{where}: tensors end at byte {len(header) + position} of weights.safetensors, "
            f"wanted {num_bytes}",
            tip,
        )


def _check_entry(name: str, entry: _Entry, spec: WeightSpec, data: int, where: str) -> None:
    found = (entry.dtype, entry.shape, data + entry.data_offsets[0])
    wanted = (SAFETENSORS_DTYPES[spec.dtype], spec.shape, spec.offset)
    for label, left, right in zip(("dtype", "shape", "offset"), found, wanted, strict=True):
        if left != right:
            raise BundleError(
                f"{where}: weight {name!r}: {label} is {left} in weights.safetensors, {right} in "
                f"the manifest",
                "the file was changed after it was built; build it again",
            )
    if entry.data_offsets[1] - entry.data_offsets[0] != spec.num_bytes:
        raise BundleError(
            f"{where}: weight {name!r} has {entry.data_offsets[1] - entry.data_offsets[0]} bytes, "
            f"{spec.dtype} {list(spec.shape)} needs {spec.num_bytes}",
            "the file was changed after it was built; build it again",
        )
