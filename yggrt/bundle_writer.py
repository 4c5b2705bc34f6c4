"""Writes a `.ygg` file: weights streamed tensor by tensor, every byte decided by the inputs, all
or nothing.

The file grows under a temporary name beside the final one and is renamed when it is complete and
on disk.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import os
import resource
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import msgspec

from yggrt import archive
from yggrt.core.consistency import MANIFEST_NAME, WEIGHTS_NAME, check_manifest, check_member_name
from yggrt.core.errors import BundleError, YggError
from yggrt.core.schema import Dtype, Manifest, Member, WeightSpec
from yggrt.safetensors_layout import TensorLayout, lay_out

Bytes = bytes | bytearray | memoryview

_CHUNK = 1 << 20
_UNKNOWN_DIGEST = "0" * 64
# Stands for an offset while the manifest's size is not known: as many digits as a file of a
# petabyte needs.
_WIDEST_OFFSET = 10**15
# The manifest is padded until the weights' member starts on a multiple of it, which is one of the
# weights' alignment: the member's bytes are the same whatever lies before it.
_WEIGHTS_START = 4096
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class WeightSource(NamedTuple):
    """One weight to write: `load` gives its row-major little-endian bytes, whole or in pieces."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    load: Callable[[], Bytes | Iterable[Bytes]]


def member_slots(manifest_bytes: int, sizes: Mapping[str, int]) -> dict[str, archive.Slot]:
    """Where every member lies: the manifest first, the others in ascending order of name."""
    return archive.place(
        {MANIFEST_NAME: manifest_bytes, **{name: sizes[name] for name in sorted(sizes)}}
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is known before a byte is read: the manifest but for its digests, and all positions."""

    draft: Manifest
    layout: TensorLayout
    slots: dict[str, archive.Slot]
    num_bytes: int


def write_bundle(
    path: Path,
    manifest: Manifest,
    weights: Iterable[WeightSource],
    files: Mapping[str, Path | bytes],
) -> Manifest:
    """Writes the bundle and returns its manifest, with `members` and `weights` filled in (given
    ones are ignored).

    `files` are the other members by name, weights are laid out in the given order. Equal inputs
    give equal bytes. Raises BundleError for inputs that contradict each other and YggError when
    the disk is full or cannot be written; then, and after any other exception, nothing is left
    behind and an older file under `path` is untouched.
    """
    sources = [WeightSource(*source) for source in weights]
    sizes = {
        name: len(file) if isinstance(file, bytes) else file.stat().st_size
        for name, file in files.items()
    }
    plan = _plan(path, manifest, sources, sizes)
    members: dict[str, Member] = {}
    crcs: dict[str, int] = {}
    with _replacing(path, plan.num_bytes) as file:
        for name in sorted(plan.draft.members):
            chunks = (
                _weight_chunks(sources, plan.layout)
                if name == WEIGHTS_NAME
                else _file_chunks(files[name])
            )
            members[name], crcs[name] = _write_member(file, name, plan.slots[name], chunks)
        manifest = msgspec.structs.replace(plan.draft, members=members)
        text = _padded(manifest, plan.slots[MANIFEST_NAME].num_bytes)
        crcs[MANIFEST_NAME] = zlib.crc32(text)
        _write(file, archive.directory(plan.slots, crcs))
        file.seek(0)
        _write(file, archive.local_header(MANIFEST_NAME, len(text), crcs[MANIFEST_NAME]) + text)
    return manifest


def _plan(
    path: Path, manifest: Manifest, sources: list[WeightSource], sizes: Mapping[str, int]
) -> _Plan:
    for name in sizes:
        problem = check_member_name(name)
        if problem or name == WEIGHTS_NAME:
            raise BundleError(
                f"{path}: {problem or f'member {name!r} is written from the weights'}"
            )
    # Offsets depend on the manifest's size, so it gets the size that it has with the widest ones.
    widest = {source.name: _WIDEST_OFFSET for source in sources}
    draft = _draft(manifest, sources, widest, {**sizes, WEIGHTS_NAME: _WIDEST_OFFSET})
    manifest_bytes = len(draft.to_json()) + 1
    payload = member_slots(manifest_bytes, {**sizes, WEIGHTS_NAME: 0})[WEIGHTS_NAME].payload
    manifest_bytes += -payload % _WEIGHTS_START
    payload += -payload % _WEIGHTS_START
    layout = lay_out([source[:3] for source in sources], payload)
    start = payload + len(layout.header)
    offsets = {name: start + offset for name, offset in layout.offsets.items()}
    all_sizes = {**sizes, WEIGHTS_NAME: layout.num_bytes}
    draft = _draft(manifest, sources, offsets, all_sizes)
    check_manifest(Manifest.from_json(draft.to_json(), str(path)), str(path))
    slots = member_slots(manifest_bytes, all_sizes)
    end = max(slot.end for slot in slots.values())
    return _Plan(draft, layout, slots, end + archive.directory_bytes(slots))


def _draft(
    manifest: Manifest,
    sources: list[WeightSource],
    offsets: Mapping[str, int],
    sizes: Mapping[str, int],
) -> Manifest:
    """The manifest with everything but the members' digests."""
    return msgspec.structs.replace(
        manifest,
        members={
            name: Member(num_bytes=size, sha256=_UNKNOWN_DIGEST) for name, size in sizes.items()
        },
        weights={
            s.name: WeightSpec(dtype=s.dtype, shape=s.shape, offset=offsets[s.name])
            for s in sources
        },
    )


def _padded(manifest: Manifest, num_bytes: int) -> bytes:
    text = manifest.to_json()
    return text + b" " * (num_bytes - len(text) - 1) + b"\n"


def _write_member(
    file: FileIO, name: str, slot: archive.Slot, chunks: Iterable[Bytes]
) -> tuple[Member, int]:
    """Writes a member's bytes, then its header, which holds their CRC-32; gives that as well."""
    file.seek(slot.payload)
    digest, crc, written = hashlib.sha256(), 0, 0
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        for start in range(0, len(view), _CHUNK):
            piece = view[start : start + _CHUNK]
            digest.update(piece)
            crc = zlib.crc32(piece, crc)
            _write(file, piece)
        written += len(view)
    if written != slot.num_bytes:
        raise BundleError(
            f"member {name!r} gave {written} bytes, wanted {slot.num_bytes}",
            "it changed while it was read",
        )
    file.seek(slot.header)
    _write(file, archive.local_header(name, slot.num_bytes, crc))
    file.seek(slot.end)
    return Member(num_bytes=written, sha256=digest.hexdigest()), crc


def _write(file: FileIO, data: Bytes) -> None:
    # An unbuffered write may take a part, notably just before the disk is full.
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _file_chunks(source: Path | bytes) -> Iterator[Bytes]:
    if isinstance(source, bytes):
        yield source
        return
    with source.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _weight_chunks(sources: list[WeightSource], layout: TensorLayout) -> Iterator[Bytes]:
    yield layout.header
    position = 0
    for source in sources:
        offset = layout.offsets[source.name]
        yield bytes(offset - position)
        loaded = source.load()
        wanted = WeightSpec(dtype=source.dtype, shape=source.shape, offset=0).num_bytes
        found = 0
        for chunk in [loaded] if isinstance(loaded, Bytes) else loaded:
            found += memoryview(chunk).nbytes
            yield chunk
        if found != wanted:
            raise BundleError(
                f"weight {source.name!r} gave {found} bytes, {source.dtype} "
                f"{list(source.shape)} needs {wanted}"
            )
        position = offset + wanted
    yield bytes(layout.num_bytes - len(layout.header) - position)


@contextmanager
def _replacing(path: Path, num_bytes: int) -> Iterator[FileIO]:
    """A new file that takes the name `path` when the block ends, and is removed when it raises."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with _open_partial(path, partial, num_bytes) as file:
        try:
            yield file
            os.fsync(file.fileno())
            os.replace(partial, path)
        except BaseException as error:
            partial.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.errno in _NO_SPACE:
                raise _no_space(path, num_bytes, shutil.disk_usage(path.parent).free) from error
            if isinstance(error, OSError) and error.errno == errno.EFBIG:
                raise YggError(
                    f"{path}: the bundle needs {num_bytes} bytes, {file_size_limit(path.parent)}",
                    "raise the limit (`ulimit -f unlimited`) or write to another disk with -o",
                ) from error
            raise
    _sync_directory(path.parent)


def _open_partial(path: Path, partial: Path, num_bytes: int) -> FileIO:
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        _remove_abandoned(path)
        free = shutil.disk_usage(path.parent).free
        if num_bytes > free:
            raise _no_space(path, num_bytes, free)
        handle = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        # Held until the file is closed, also by a kill; tells `_remove_abandoned` that a writer
        # lives.
        fcntl.flock(handle, fcntl.LOCK_EX)
        # Unbuffered: closing after a full disk then has nothing left to write.
        return FileIO(handle, "w+")
    except OSError as error:
        raise YggError(
            f"{path}: cannot be written: {error.strerror or error}",
            "name another file or directory with -o",
        ) from error


def file_size_limit(folder: Path) -> str:
    """What keeps a file in `folder` from growing, in words: EFBIG does not say."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY:
        return f"this process may write files of at most {limit} bytes (ulimit -f)"
    return f"the file system of {folder.absolute()} holds no files of that size"


def _no_space(path: Path, num_bytes: int, free: int) -> YggError:
    return YggError(
        f"{path}: the bundle needs {num_bytes} bytes, {path.absolute().parent} has {free} bytes "
        f"free",
        "make room there or write to another disk with -o",
    )


def _remove_abandoned(path: Path) -> None:
    """Removes partial files of this name whose writer was killed: nobody holds their lock."""
    for partial in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        with partial.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            partial.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
