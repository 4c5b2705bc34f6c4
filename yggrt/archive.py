"""The container of a bundle: a ZIP whose every byte outside the members follows from their names,
sizes and CRC-32s.

Members are stored, never compressed, and laid end to end. ZIP64 records are always present, so a
bundle of 5 GB takes the same path as one of 5 KB. Knows nothing of manifests; reads and writes no
files.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

MAGIC = b"PK\x03\x04"

_VERSION = 45  # the ZIP specification's number for ZIP64
_MADE_ON_UNIX = 3 << 8
_DATE_1980_01_01 = 0x21
_REGULAR_FILE_0644 = 0o100644 << 16
_IN_ZIP64 = 0xFFFFFFFF
_ZIP64_TAG = 1

_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_LOCAL_ZIP64 = struct.Struct("<HHQQ")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_CENTRAL_ZIP64 = struct.Struct("<HHQQQ")
_END_ZIP64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR = struct.Struct("<4sIQI")
_END = struct.Struct("<4sHHHHIIH")


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one member lies: its local header at `header`, its bytes at `payload .. end`."""

    header: int
    payload: int
    num_bytes: int

    @property
    def end(self) -> int:
        return self.payload + self.num_bytes


@dataclass(frozen=True, slots=True)
class LocalHeader:
    """The fields of a ZIP local header that tell what a file is; sizes as found, before ZIP64."""

    name: bytes
    flags: int
    method: int
    crc: int
    num_bytes: int


def header_bytes(name: str) -> int:
    """Size of the local header of a member of that name."""
    return _LOCAL.size + len(name.encode()) + _LOCAL_ZIP64.size


def place(sizes: Mapping[str, int]) -> dict[str, Slot]:
    """Positions of members of these sizes, in the mapping's order, from byte 0, without holes."""
    slots: dict[str, Slot] = {}
    position = 0
    for name, num_bytes in sizes.items():
        payload = position + header_bytes(name)
        slots[name] = Slot(position, payload, num_bytes)
        position = payload + num_bytes
    return slots


def local_header(name: str, num_bytes: int, crc: int) -> bytes:
    """The record in front of a member's bytes."""
    raw = name.encode()
    fixed = _LOCAL.pack(
        MAGIC,
        _VERSION,
        0,
        0,
        0,
        _DATE_1980_01_01,
        crc,
        _IN_ZIP64,
        _IN_ZIP64,
        len(raw),
        _LOCAL_ZIP64.size,
    )
    return fixed + raw + _LOCAL_ZIP64.pack(_ZIP64_TAG, 16, num_bytes, num_bytes)


def read_local_header(data: bytes) -> LocalHeader | None:
    """Reads a local header written by any program; None when `data` holds none."""
    if len(data) < _LOCAL.size or not data.startswith(MAGIC):
        return None
    fields = _LOCAL.unpack_from(data)
    flags, method, crc, num_bytes, name_bytes, extra_bytes = (
        fields[2],
        fields[3],
        *fields[6:7],
        *fields[8:],
    )
    name = data[_LOCAL.size : _LOCAL.size + name_bytes]
    extra = data[_LOCAL.size + name_bytes : _LOCAL.size + name_bytes + extra_bytes]
    if num_bytes == _IN_ZIP64 and len(extra) == _LOCAL_ZIP64.size:
        num_bytes = _LOCAL_ZIP64.unpack(extra)[2]
    return LocalHeader(name, flags, method, crc, num_bytes)


def directory(slots: Mapping[str, Slot], crcs: Mapping[str, int]) -> bytes:
    """What follows the last member: a record for each, then the ZIP64 and plain end records."""
    start = max((slot.end for slot in slots.values()), default=0)
    records = b"".join(_central(name, slot, crcs[name]) for name, slot in slots.items())
    end_zip64 = _END_ZIP64.pack(
        b"PK\x06\x06",
        _END_ZIP64.size - 12,
        _MADE_ON_UNIX | _VERSION,
        _VERSION,
        0,
        0,
        len(slots),
        len(slots),
        len(records),
        start,
    )
    locator = _LOCATOR.pack(b"PK\x06\x07", 0, start + len(records), 1)
    end = _END.pack(b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, _IN_ZIP64, _IN_ZIP64, 0)
    return records + end_zip64 + locator + end


def directory_bytes(names: Mapping[str, object]) -> int:
    """Size of the directory of members of these names."""
    records = sum(_CENTRAL.size + len(name.encode()) + _CENTRAL_ZIP64.size for name in names)
    return records + _END_ZIP64.size + _LOCATOR.size + _END.size


def directory_crcs(data: bytes, names: Mapping[str, object]) -> dict[str, int]:
    """The CRC-32 that a directory of exactly these names, in this order, holds for each."""
    crcs: dict[str, int] = {}
    position = 0
    for name in names:
        crcs[name] = _CENTRAL.unpack_from(data, position)[7]
        position += _CENTRAL.size + len(name.encode()) + _CENTRAL_ZIP64.size
    return crcs


def _central(name: str, slot: Slot, crc: int) -> bytes:
    raw = name.encode()
    fixed = _CENTRAL.pack(
        b"PK\x01\x02",
        _MADE_ON_UNIX | _VERSION,
        _VERSION,
        0,
        0,
        0,
        _DATE_1980_01_01,
        crc,
        _IN_ZIP64,
        _IN_ZIP64,
        len(raw),
        _CENTRAL_ZIP64.size,
        0,
        0,
        0,
        _REGULAR_FILE_0644,
        _IN_ZIP64,
    )
    extra = _CENTRAL_ZIP64.pack(_ZIP64_TAG, 24, slot.num_bytes, slot.num_bytes, slot.header)
    return fixed + raw + extra
