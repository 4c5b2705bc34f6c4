"""Opens, checks and maps a `.ygg` file. Never loads the native code that it holds; docs/format.md
is the rule book.

Order: magic, size cap, manifest, format version, container, weight table, digests; the payload is
touched last.
"""

from __future__ import annotations

import hashlib
import os
import stat
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self

from yggrt import archive
from yggrt.bundle_diagnosis import diagnose
from yggrt.bundle_writer import WeightSource, member_slots, write_bundle
from yggrt.cache import Cache
from yggrt.core.consistency import CODE_PREFIX, MANIFEST_NAME, WEIGHTS_NAME, check_manifest
from yggrt.core.errors import BundleError
from yggrt.core.schema import Manifest
from yggrt.safetensors_layout import MAX_HEADER_BYTES, check_header

if TYPE_CHECKING:
    import torch

__all__ = ["Bundle", "WeightSource", "write_bundle"]

MAX_MANIFEST_BYTES = 64 << 20
_CHUNK = 1 << 20
_REPACKED = "it was packed again by another program; use the file that `yggc build` wrote"
_DAMAGED = "the file is damaged; copy it again or build it again"


class Bundle:
    """An open, checked bundle. Immutable; what was taken from it stays valid after `close`."""

    def __init__(
        self,
        path: Path,
        file: BinaryIO,
        manifest: Manifest,
        digest: str,
        slots: Mapping[str, archive.Slot],
    ):
        """Used by `open`."""
        self.path = path
        self.manifest = manifest
        self.digest = digest
        self._file = file
        self._slots = slots
        self.verified = "everything but the weights"
        self._storage: torch.UntypedStorage | None = None

    @staticmethod
    def read_manifest(path: Path) -> Manifest:
        """The manifest alone, checked in itself; BundleError as for `open`. Of the other members
        nothing is read.
        """
        with _open_file(path) as file:
            text = _read_manifest(file, path)
        manifest = Manifest.from_json(text, str(path))
        check_manifest(manifest, str(path))
        return manifest

    @classmethod
    def open(cls, path: Path | str, *, full: bool = False, cache: Cache | None = None) -> Self:
        """Opens and checks a bundle; raises BundleError with what was found and what was wanted.

        Everything but the weights is hashed each time. The weights are hashed with `full`, without
        a `cache`, and when the cache does not remember this file.
        """
        path = Path(path).absolute()
        file = _open_file(path)
        try:
            text = _read_manifest(file, path)
            manifest = Manifest.from_json(text, str(path))
            check_manifest(manifest, str(path))
            slots = member_slots(
                len(text), {name: m.num_bytes for name, m in manifest.members.items()}
            )
            _check_container(file, path, slots)
            bundle = cls(path, file, manifest, hashlib.sha256(text).hexdigest(), slots)
            bundle._check_weight_header()
            bundle._check_digests(full, cache)
        except BaseException:
            file.close()
            raise
        return bundle

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the file. Tensors that were taken keep the mapping alive."""
        self._file.close()
        self._storage = None

    @property
    def num_bytes(self) -> int:
        """Size of the whole file."""
        return max(slot.end for slot in self._slots.values()) + archive.directory_bytes(
            self._slots
        )

    def read(self, member: str) -> bytes:
        """The bytes of a member, as they were checked when the bundle was opened."""
        slot = self._slots.get(member)
        if slot is None:
            raise BundleError(
                f"{self.path}: no member {member!r}, it holds {', '.join(self._slots)}"
            )
        data = os.pread(self._file.fileno(), slot.num_bytes, slot.payload)
        if len(data) != slot.num_bytes:
            raise BundleError(
                f"{self.path}: member {member!r} gave {len(data)} of {slot.num_bytes} bytes",
                _DAMAGED,
            )
        return data

    def weight(self, name: str) -> torch.Tensor:
        """The weight as a contiguous CPU tensor: a view, only to be read."""
        from yggrt.weights import map_file, view

        spec = self.manifest.weights.get(name)
        if spec is None:
            raise BundleError(
                f"{self.path}: no weight {name!r} among the {len(self.manifest.weights)} it holds"
            )
        if self._storage is None:
            storage = map_file(self.path, self.num_bytes)
            # The mapping is made by name: it must be the file that was checked.
            if not _same_file(self.path, self._file):
                raise BundleError(
                    f"{self.path}: was replaced while it was being opened", "open it again"
                )
            self._storage = storage
        return view(self._storage, spec)

    def weight_chunks(self, name: str) -> Iterator[bytes]:
        """The bytes of a weight as they lie in the file, piece by piece."""
        spec = self.manifest.weights[name]
        at, end = spec.offset, spec.offset + spec.num_bytes
        while at < end:
            data = os.pread(self._file.fileno(), min(_CHUNK, end - at), at)
            if not data:
                raise BundleError(f"{self.path}: was cut short while it was being read", _DAMAGED)
            yield data
            at += len(data)

    def weight_sources(self) -> list[WeightSource]:
        """All weights to write again, in the order in which they lie in the file."""
        weights = sorted(self.manifest.weights.items(), key=lambda item: item[1].offset)
        return [
            WeightSource(name, spec.dtype, spec.shape, partial(self.weight_chunks, name))
            for name, spec in weights
        ]

    def member_sources(self) -> dict[str, bytes | Path]:
        """All members but the weights, to write again."""
        return {name: self.read(name) for name in self.manifest.members if name != WEIGHTS_NAME}

    def read_weights(self) -> None:
        """Makes `weight` give views of a copy in this process's own huge pages, which a pass reads
        faster than the mapped file. Costs the size of the file in memory.
        """
        from yggrt.weights import copy_file

        self._storage = copy_file(self._file.fileno(), self.num_bytes)

    def unpack(self, cache: Cache) -> Path:
        """The directory in the cache with the `code/` members, under their names in the bundle."""
        code = {
            name: m for name, m in self.manifest.members.items() if name.startswith(CODE_PREFIX)
        }
        return cache.unpack(self.digest, code, self.read)

    def _check_weight_header(self) -> None:
        slot = self._slots[WEIGHTS_NAME]
        fd = self._file.fileno()
        length = int.from_bytes(os.pread(fd, 8, slot.payload), "little")
        if length > min(MAX_HEADER_BYTES, slot.num_bytes - 8):
            raise BundleError(
                f"{self.path}: header of weights.safetensors has {length} bytes, wanted at most "
                f"{min(MAX_HEADER_BYTES, slot.num_bytes - 8)}",
                _DAMAGED,
            )
        header = os.pread(fd, 8 + length, slot.payload)
        check_header(header, self.manifest.weights, slot.payload, slot.num_bytes, str(self.path))

    def _check_digests(self, full: bool, cache: Cache | None) -> None:
        for name in self.manifest.members:
            if name != WEIGHTS_NAME:
                self._check_digest(name)
        status = os.fstat(self._file.fileno())
        if not full and cache is not None and cache.is_verified(self.digest, status):
            self.verified = "everything but the weights; the weights at an earlier open"
            return
        self._check_digest(WEIGHTS_NAME)
        self.verified = "all bytes"
        if cache is not None:
            cache.mark_verified(self.digest, status)

    def _check_digest(self, name: str) -> None:
        slot = self._slots[name]
        digest = hashlib.sha256()
        buffer = memoryview(bytearray(min(_CHUNK, slot.num_bytes)))
        self._file.seek(slot.payload)
        left = slot.num_bytes
        while left:
            count = self._file.readinto(buffer[:left])  # type: ignore[attr-defined]
            if not count:
                raise BundleError(f"{self.path}: was cut short while it was being read", _DAMAGED)
            digest.update(buffer[:count])
            left -= count
        wanted = self.manifest.members[name].sha256
        if digest.hexdigest() != wanted:
            raise BundleError(
                f"{self.path}: member {name!r} has SHA-256 {digest.hexdigest()}, wanted {wanted}",
                _DAMAGED,
            )


def _open_file(path: Path) -> BinaryIO:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
            raise BundleError(
                f"{path}: is {kind}, wanted a .ygg file",
                "give the path of a file that `yggc build` wrote",
            )
        return path.open("rb", buffering=0)
    except OSError as error:
        raise BundleError(
            f"{path}: cannot be opened: {error.strerror or error}",
            "check the path, or make the file with `yggc build`",
        ) from error


def _read_manifest(file: BinaryIO, path: Path) -> bytes:
    """The bytes of the first member, checked against its CRC-32."""
    num_bytes = os.fstat(file.fileno()).st_size
    try:
        start = os.pread(file.fileno(), 4096, 0)
    except OSError as error:
        raise BundleError(
            f"{path}: cannot be read: {error.strerror or error}",
            "check the disk, or copy it again",
        ) from error
    header = archive.read_local_header(start)
    if header is None:
        found = (
            "is empty" if not num_bytes else f"starts with {start[:4]!r} and has {num_bytes} bytes"
        )
        tip = "give a file that `yggc build` wrote"
        if start[:4] == b"GGUF":
            tip = (
                f"this is a model, not a bundle: run `yggc build --gpu cpu --verifier {path.name}`"
            )
        raise BundleError(
            f"{path}: {found}, wanted a bundle, which starts with {archive.MAGIC!r}", tip
        )
    if header.name != MANIFEST_NAME.encode():
        raise BundleError(
            f"{path}: its first member is {header.name.decode(errors='replace')!r}, wanted "
            f"{MANIFEST_NAME!r}",
            "this is another kind of ZIP file; give one that `yggc build` wrote",
        )
    if header.flags or header.method:
        raise BundleError(
            f"{path}: {MANIFEST_NAME} has ZIP method {header.method} and flags {header.flags:#x}, "
            f"wanted 0 and 0: "
            "members are neither compressed nor encrypted",
            _REPACKED,
        )
    if not start.startswith(archive.local_header(MANIFEST_NAME, header.num_bytes, header.crc)):
        raise BundleError(
            f"{path}: the ZIP header of {MANIFEST_NAME} is not as this format writes it", _REPACKED
        )
    if header.num_bytes > MAX_MANIFEST_BYTES:
        raise BundleError(
            f"{path}: {MANIFEST_NAME} has {header.num_bytes} bytes, at most {MAX_MANIFEST_BYTES} "
            f"are read",
            _DAMAGED,
        )
    payload = archive.header_bytes(MANIFEST_NAME)
    text = os.pread(file.fileno(), header.num_bytes, payload)
    if len(text) != header.num_bytes:
        raise BundleError(
            f"{path}: has {num_bytes} bytes, its manifest alone needs "
            f"{payload + header.num_bytes}: it is truncated",
            _DAMAGED,
        )
    if zlib.crc32(text) != header.crc:
        raise BundleError(
            f"{path}: {MANIFEST_NAME} has CRC-32 {zlib.crc32(text):08x}, wanted {header.crc:08x}",
            _DAMAGED,
        )
    return text


def _check_container(file: BinaryIO, path: Path, slots: Mapping[str, archive.Slot]) -> None:
    """Every byte outside the members must be as this format writes it: no holes, no extras."""
    fd = file.fileno()
    start = max(slot.end for slot in slots.values())
    wanted_bytes = archive.directory_bytes(slots)
    found = os.pread(fd, wanted_bytes + 1, start)
    if os.fstat(fd).st_size != start + wanted_bytes or len(found) != wanted_bytes:
        raise diagnose(file, path, slots, start + wanted_bytes)
    crcs = archive.directory_crcs(found, slots)
    if found != archive.directory(slots, crcs):
        raise diagnose(file, path, slots, start + wanted_bytes)
    for name, slot in slots.items():
        if os.pread(fd, slot.payload - slot.header, slot.header) != archive.local_header(
            name, slot.num_bytes, crcs[name]
        ):
            raise BundleError(
                f"{path}: the header of member {name!r} at byte {slot.header} differs from its "
                f"directory entry",
                _DAMAGED,
            )


def _same_file(path: Path, file: BinaryIO) -> bool:
    here, opened = path.stat(), os.fstat(file.fileno())
    return os.path.samestat(here, opened) and here.st_size == opened.st_size
