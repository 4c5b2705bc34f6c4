"""Broken bundles, a function for each way to be broken: bytes of a good file in, bad ones out."""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Callable, Iterable

import msgspec

from yggrt import archive
from yggrt.bundle_writer import member_slots
from yggrt.core.schema import Manifest, Member, WeightSpec

MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"


def contents(data: bytes) -> dict[str, bytes]:
    """Members by name."""
    with zipfile.ZipFile(io.BytesIO(data)) as reader:
        return {name: reader.read(name) for name in reader.namelist()}


def slots_of(data: bytes) -> dict[str, archive.Slot]:
    """Where the members of a good file lie."""
    sizes = {name: len(body) for name, body in contents(data).items()}
    return member_slots(sizes.pop(MANIFEST), sizes)


def pack(members: dict[str, bytes]) -> bytes:
    """Members laid out and described as this format does it, whatever they hold."""
    slots = archive.place({name: len(body) for name, body in members.items()})
    crcs = {name: zlib.crc32(body) for name, body in members.items()}
    parts = [
        archive.local_header(name, len(body), crcs[name]) + body for name, body in members.items()
    ]
    return b"".join(parts) + archive.directory(slots, crcs)


def with_manifest(data: bytes, change: Callable[[Manifest], Manifest]) -> bytes:
    """The same members under a changed manifest of the same size; every check sum is right."""
    members = contents(data)
    manifest = change(Manifest.from_json(members[MANIFEST], "test"))
    text = manifest.to_json()
    assert len(text) <= len(members[MANIFEST])
    return pack({**members, MANIFEST: text.ljust(len(members[MANIFEST]))})


def with_weight(data: bytes, name: str, **changes: object) -> bytes:
    """One entry of the weight table changed."""

    def change(manifest: Manifest) -> Manifest:
        spec: WeightSpec = msgspec.structs.replace(manifest.weights[name], **changes)
        return msgspec.structs.replace(manifest, weights={**manifest.weights, name: spec})

    return with_manifest(data, change)


def flipped(data: bytes, position: int) -> bytes:
    """One bit of one byte inverted."""
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


def flipped_in(data: bytes, member: str) -> bytes:
    """One byte in the middle of a member flipped."""
    slot = slots_of(data)[member]
    return flipped(data, slot.payload + slot.num_bytes // 2)


def with_member(data: bytes, name: str, body: bytes = b"x") -> bytes:
    """A member that the manifest does not list."""
    return pack({**contents(data), name: body})


def without(data: bytes, name: str) -> bytes:
    """A listed member gone."""
    return pack({key: body for key, body in contents(data).items() if key != name})


def renamed(data: bytes, name: str, new: str) -> bytes:
    """A listed member under another name."""
    return pack({new if key == name else key: body for key, body in contents(data).items()})


def listed_as(data: bytes, name: str, new: str) -> bytes:
    """A member under another name, in the manifest too."""

    def change(manifest: Manifest) -> Manifest:
        members: dict[str, Member] = dict(manifest.members)
        members[new] = members.pop(name)
        return msgspec.structs.replace(manifest, members=members)

    return renamed(with_manifest(data, change), name, new)


def zipped(members: Iterable[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> bytes:
    """An ordinary ZIP of the same members, as other programs would make it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as writer:
        for name, body in members:
            writer.writestr(name, body)
    return buffer.getvalue()


def deflated_behind_manifest(data: bytes) -> bytes:
    """The manifest as it should be, everything else compressed."""
    members = contents(data)
    text = members.pop(MANIFEST)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as writer:
        with writer.open(zipfile.ZipInfo(MANIFEST), "w", force_zip64=True) as member:
            member.write(text)
        for name, body in members.items():
            writer.writestr(name, body)
    return buffer.getvalue()


def encrypted_flag(data: bytes, member: str) -> bytes:
    """A member that claims to be encrypted."""
    position = data.rindex(member.encode()) - 46 + 8
    return data[:position] + b"\x01" + data[position + 1 :]


def twice(data: bytes, name: str) -> bytes:
    """A member twice in the file, once in the manifest."""
    members = list(contents(data).items())
    where = [key for key, _ in members].index(name)
    slots = []
    crcs = []
    parts = []
    position = 0
    for key, body in [*members[: where + 1], *members[where:]]:
        payload = position + archive.header_bytes(key)
        slots.append((key, archive.Slot(position, payload, len(body))))
        crcs.append((key, zlib.crc32(body)))
        parts.append(archive.local_header(key, len(body), crcs[-1][1]) + body)
        position = payload + len(body)
    records = b""
    for (key, slot), (_, crc) in zip(slots, crcs, strict=True):
        alone = archive.directory({key: slot}, {key: crc})
        records += alone[: archive.directory_bytes({key: None}) - archive.directory_bytes({})]
    tail = archive.directory({}, {})
    # The end records of an empty archive, with the counts and positions of this one.
    tail = (
        tail[:24]
        + b"".join(
            number.to_bytes(8, "little")
            for number in (len(slots), len(slots), len(records), position)
        )
        + tail[56:64]
        + (position + len(records)).to_bytes(8, "little")
        + tail[72:]
    )
    return b"".join(parts) + records + tail


def with_hole(data: bytes, name: str) -> bytes:
    """64 bytes that belong to no member, in front of one."""
    members = contents(data)
    slots: dict[str, archive.Slot] = {}
    parts = []
    position = 0
    for key, body in members.items():
        gap = 64 if key == name else 0
        position += gap
        payload = position + archive.header_bytes(key)
        slots[key] = archive.Slot(position, payload, len(body))
        parts.append(bytes(gap) + archive.local_header(key, len(body), zlib.crc32(body)) + body)
        position = payload + len(body)
    crcs = {key: zlib.crc32(body) for key, body in members.items()}
    return b"".join(parts) + archive.directory(slots, crcs)


def overlapping(data: bytes, name: str) -> bytes:
    """A directory in which one member starts inside the one before it."""
    members = contents(data)
    slots = archive.place({key: len(body) for key, body in members.items()})
    crcs = {key: zlib.crc32(body) for key, body in members.items()}
    directory_start = max(slot.end for slot in slots.values())
    slots[name] = archive.Slot(
        slots[name].header - 8, slots[name].payload - 8, slots[name].num_bytes
    )
    return data[:directory_start] + archive.directory(slots, crcs)


def with_weights_header(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """The header of the weights changed, not its size; the manifest has the new digest."""
    members = contents(data)
    body = members[WEIGHTS]
    length = int.from_bytes(body[:8], "little")
    header = change(body[8 : 8 + length])
    assert len(header) <= length
    body = body[:8] + header.ljust(length) + body[8 + length :]
    digest = hashlib.sha256(body).hexdigest()

    def new_digest(manifest: Manifest) -> Manifest:
        listed = {**manifest.members, WEIGHTS: Member(num_bytes=len(body), sha256=digest)}
        return msgspec.structs.replace(manifest, members=listed)

    return with_manifest(pack({**members, WEIGHTS: body}), new_digest)
