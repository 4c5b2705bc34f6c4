"""Says what is wrong with a bundle whose container is not what its manifest implies."""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from yggrt.archive import Slot
from yggrt.core.errors import BundleError

_DAMAGED = "the file is damaged; copy it again or build it again"
_REPACKED = (
    "it was changed or packed again by another program; use the file that `yggc build` wrote"
)
_ENCRYPTED = 0x1


def diagnose(
    file: BinaryIO, path: Path, slots: Mapping[str, Slot], wanted_bytes: int
) -> BundleError:
    """The error for a file that should hold just `slots` in `wanted_bytes`, and does not."""
    found_bytes = os.fstat(file.fileno()).st_size
    members = _members(file)
    problem = _member_problem(members, slots)
    if problem:
        return BundleError(f"{path}: {problem}", _REPACKED)
    if found_bytes < wanted_bytes:
        return BundleError(
            f"{path}: has {found_bytes} bytes, its manifest says {wanted_bytes}: it is truncated",
            _DAMAGED,
        )
    if found_bytes > wanted_bytes:
        return BundleError(
            f"{path}: has {found_bytes} bytes, its manifest says {wanted_bytes}: bytes were added "
            f"to it",
            _REPACKED,
        )
    return BundleError(
        f"{path}: its ZIP directory differs from the one that its manifest implies", _DAMAGED
    )


def _members(file: BinaryIO) -> list[zipfile.ZipInfo]:
    """The members that a ZIP reader would list; none when it would refuse the file."""
    try:
        with zipfile.ZipFile(file) as reader:
            return reader.infolist()
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        ValueError,
        OverflowError,
        OSError,
        struct.error,
    ):
        return []


def _member_problem(members: list[zipfile.ZipInfo], slots: Mapping[str, Slot]) -> str | None:
    if not members:
        return None
    names = [info.filename for info in members]
    for name in names:
        if name not in slots:
            return f"it holds member {name!r}, which its manifest does not list"
        if names.count(name) > 1:
            return f"it holds member {name!r} {names.count(name)} times, wanted once"
    for name in slots:
        if name not in names:
            return f"its manifest lists member {name!r}, which it does not hold"
    for info in members:
        if info.flag_bits & _ENCRYPTED:
            return f"member {info.filename!r} is encrypted, wanted plain bytes"
        if info.compress_type != zipfile.ZIP_STORED:
            return (
                f"member {info.filename!r} is compressed (ZIP method {info.compress_type}), "
                "wanted stored (method 0)"
            )
        wanted = slots[info.filename].num_bytes
        if info.file_size != wanted:
            return (
                f"member {info.filename!r} has {info.file_size} bytes, its manifest says {wanted}"
            )
        if info.header_offset != slots[info.filename].header:
            return (
                f"member {info.filename!r} starts at byte {info.header_offset}, "
                f"wanted {slots[info.filename].header}: members overlap, leave a hole or are out "
                f"of order"
            )
    return None
