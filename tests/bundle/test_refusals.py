"""Every broken bundle is refused with words that name what is wrong: one case for each way."""

from __future__ import annotations

import errno
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from bundle import broken
from bundle.small import write_small

from yggrt.bundle import Bundle
from yggrt.core.consistency import check_manifest
from yggrt.core.errors import BundleError
from yggrt.core.schema import LmDrafter


@pytest.fixture
def good(tmp_path: Path) -> bytes:
    write_small(tmp_path / "good.ygg")
    return (tmp_path / "good.ygg").read_bytes()


def refusal(tmp_path: Path, data: bytes) -> BundleError:
    """The error that opening these bytes gives."""
    path = tmp_path / "bad.ygg"
    path.write_bytes(data)
    with pytest.raises(BundleError) as caught:
        Bundle.open(path)
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.tip
    return caught.value


def replace_manifest(**changes: object) -> Callable[[bytes], bytes]:
    return lambda data: broken.with_manifest(data, lambda m: msgspec.structs.replace(m, **changes))


CASES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "is empty"),
    "not_a_zip": (lambda data: b"hello, world", "starts with b'hell'"),
    "magic_alone": (lambda data: data[:4], "has 4 bytes"),
    "gguf": (lambda data: b"GGUF" + bytes(60), "starts with b'GGUF'"),
    "other_zip": (lambda data: broken.zipped([("a.txt", b"a")]), "first member is 'a.txt'"),
    "manifest_cut": (lambda data: data[:200], "it is truncated"),
    "weights_cut": (lambda data: data[:-1500], "it is truncated"),
    "last_byte_cut": (lambda data: data[:-1], "it is truncated"),
    "eight_bytes_appended": (lambda data: data + bytes(8), "bytes were added"),
    "zip_appended": (lambda data: data + broken.zipped([("a", b"a")]), "'a'"),
    "prepended": (lambda data: b"#!/bin/sh\n" + data, "starts with b'#!/b'"),
    "manifest_flipped": (lambda data: broken.flipped(data, 200), "manifest.json has CRC-32"),
    "code_flipped": (
        lambda data: broken.flipped_in(data, "code/libygg.so"),
        "'code/libygg.so' has SHA-256",
    ),
    "graph_flipped": (
        lambda data: broken.flipped_in(data, "code/w008/model.json"),
        "'code/w008/model.json' has SHA-256",
    ),
    "weights_flipped": (
        lambda data: broken.flipped_in(data, "weights.safetensors"),
        "'weights.safetensors' has SHA-256",
    ),
    "unlisted_member": (
        lambda data: broken.with_member(data, "x.txt"),
        "'x.txt', which its manifest does not list",
    ),
    "weights_removed": (
        lambda data: broken.without(data, "weights.safetensors"),
        "lists member 'weights.safetensors', which it does not hold",
    ),
    "weights_renamed": (
        lambda data: broken.renamed(data, "weights.safetensors", "weightz.safetensors"),
        "'weightz.safetensors', which its manifest does not list",
    ),
    "member_twice": (
        lambda data: broken.twice(data, "tokenizer.json"),
        "'tokenizer.json' 2 times",
    ),
    "hole": (lambda data: broken.with_hole(data, "tokenizer.json"), "wanted"),
    "overlap": (lambda data: broken.overlapping(data, "tokenizer.json"), "overlap"),
    "path_outside": (
        lambda data: broken.listed_as(data, "bench.jsonl", "../b.jsonl"),
        "member name '../b.jsonl'",
    ),
    "absolute_path": (
        lambda data: broken.listed_as(data, "bench.jsonl", "/b.jsonl"),
        "member name '/b.jsonl'",
    ),
    "backslash": (lambda data: broken.listed_as(data, "bench.jsonl", "..\\b.jsonl"), "backslash"),
    "newer_format": (
        replace_manifest(format_version=7),
        "format version is 7, this runtime reads 1, 2, 3, 4, 5, 6",
    ),
    "no_format": (
        lambda data: broken.pack({**broken.contents(data), "manifest.json": b"{}"}),
        "format version is None",
    ),
    "unknown_field": (
        lambda data: broken.pack(
            {**broken.contents(data), "manifest.json": b'{"format_version": 2, "x": 1}'}
        ),
        "manifest.json is not valid",
    ),
    "not_json": (
        lambda data: broken.pack({**broken.contents(data), "manifest.json": b"{"}),
        "not JSON",
    ),
    "deep_json": (
        lambda data: broken.pack({**broken.contents(data), "manifest.json": b"[" * 100_000}),
        "not JSON",
    ),
    "repacked_compressed": (
        lambda data: broken.zipped(broken.contents(data).items(), zipfile.ZIP_DEFLATED),
        "neither compressed",
    ),
    "members_compressed": (
        broken.deflated_behind_manifest,
        "member 'bench.jsonl' is compressed (ZIP method 8), wanted stored",
    ),
    "repacked_stored": (
        lambda data: broken.zipped(broken.contents(data).items()),
        "header of manifest.json is not as this format writes it",
    ),
    "encrypted": (lambda data: broken.encrypted_flag(data, "tokenizer.json"), "is encrypted"),
    "weight_dtype": (
        lambda data: broken.with_weight(data, "layer.0.index", dtype="float32", shape=(6,)),
        "'layer.0.index': dtype is I64 in weights.safetensors, F32 in the manifest",
    ),
    "weight_shape": (
        lambda data: broken.with_weight(data, "embedding", shape=(16, 11)),
        "'embedding': shape is (11, 16) in weights.safetensors, (16, 11) in the manifest",
    ),
    "weight_offset": (
        lambda data: broken.with_weight(data, "layer.0.index", offset=64),
        "'layer.0.index': offset is",
    ),
    "weight_misaligned": (
        lambda data: broken.with_weight(data, "embedding", offset=72),
        "wanted a multiple of 64",
    ),
    "weight_not_listed": (
        lambda data: broken.with_manifest(
            data,
            lambda m: msgspec.structs.replace(
                m, weights={k: w for k, w in m.weights.items() if k != "layer.0.scalar"}
            ),
        ),
        "'layer.0.scalar' is not in the manifest",
    ),
    "weight_missing": (
        lambda data: broken.with_weights_header(
            data, lambda h: h.replace(b"layer.0.scalar", b"__pad_9")
        ),
        "'layer.0.scalar' is in the manifest and not in weights.safetensors",
    ),
    "weights_not_safetensors": (
        lambda data: broken.with_weights_header(data, lambda h: b"["),
        "header of weights.safetensors is not valid",
    ),
    "weights_hole": (
        lambda data: broken.with_weights_header(
            data, lambda h: h.replace(b'"data_offsets":[0,', b'"data_offsets":[4,')
        ),
        "wanted a start of 0",
    ),
    "graph_without_library": (
        replace_manifest(operators="code/gone.so"),
        "refers to member 'code/gone.so', which it does not list",
    ),
    "code_outside_code": (
        replace_manifest(operators="bench.jsonl"),
        "native code in member 'bench.jsonl'",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_broken(name: str, tmp_path: Path, good: bytes) -> None:
    change, words = CASES[name]
    assert words in refusal(tmp_path, change(good)).message


def test_any_flipped_byte(tmp_path: Path, good: bytes) -> None:
    """No byte of the file is free: every byte of headers and directory, every 13th of members."""
    path = tmp_path / "bad.ygg"
    slots = broken.slots_of(good)
    inside = {p for slot in slots.values() for p in range(slot.payload, slot.end)}
    for position in sorted(set(range(len(good))) - inside | set(range(0, len(good), 13))):
        path.write_bytes(broken.flipped(good, position))
        with pytest.raises(BundleError):
            Bundle.open(path)


def test_truncated_anywhere(tmp_path: Path, good: bytes) -> None:
    path = tmp_path / "bad.ygg"
    for num_bytes in range(0, len(good), 13):
        path.write_bytes(good[:num_bytes])
        with pytest.raises(BundleError):
            Bundle.open(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot be opened: No such file"):
        Bundle.open(tmp_path / "none.ygg")


def test_directory(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="is a directory"):
        Bundle.open(tmp_path)


def test_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(BundleError, match="not a regular file"):
        Bundle.open(tmp_path / "fifo")


def test_manifest_over_the_cap(tmp_path: Path, good: bytes) -> None:
    data = broken.pack({**broken.contents(good), "manifest.json": bytes(65 << 20)})
    assert f"at most {64 << 20} are read" in refusal(tmp_path, data).message


def test_unknown_names(tmp_path: Path, good: bytes) -> None:
    with Bundle.open(tmp_path / "good.ygg") as bundle:
        with pytest.raises(BundleError, match="no weight 'nose'"):
            bundle.weight("nose")
        with pytest.raises(BundleError, match="no member 'nose'"):
            bundle.read("nose")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_slots": 20}, "caches have 20 slots, wanted a context of 32"),
        ({"num_slots": 80}, r"graph 'w001' takes a cache of .*40.*, the model has .*80"),
        ({"kv_dtype": "bfloat16"}, "takes a cache of"),
        ({"max_model_len": 9999}, "wanted a context of 9999"),
        ({"kv_layers": ()}, "takes 2 caches, the model has 0"),
        ({"activations": "int8"}, "activations are int8 and no matrix is quantised"),
    ],
)
def test_model_and_graphs_that_disagree(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    """A graph would read or write beside its caches, since its loader compares nothing."""
    found = write_small(tmp_path / "good.ygg")
    check_manifest(found, "here")
    wrong = msgspec.structs.replace(found, model=msgspec.structs.replace(found.model, **change))
    with pytest.raises(BundleError, match=message):
        check_manifest(wrong, "here")


def test_drafters_that_the_manifest_contradicts(tmp_path: Path) -> None:
    found = write_small(tmp_path / "good.ygg")
    replace = msgspec.structs.replace
    lm = replace(found.schedule, drafter=LmDrafter(temperatures=(1.0,)))
    first = found.graphs[0]
    draft = replace(first, name="draft_001", kind="draft")
    prefill = replace(first, name="draft_prefill_001", kind="draft_prefill")
    wide = replace(draft, name="draft_004", max_rows=4, min_rows=4)
    both = (*found.graphs, draft, prefill)
    good = replace(found, schedule=lm, drafter=found.model, graphs=both)
    check_manifest(good, "here")
    for wrong, message in (
        (replace(good, drafter=None), "the drafter of the schedule is a model"),
        (replace(good, schedule=found.schedule), "the drafter of the schedule is not a model"),
        (replace(good, graphs=found.graphs), "the manifest has no draft graph"),
        (replace(good, graphs=(*found.graphs, draft)), "no draft_prefill graph"),
        (replace(good, graphs=(*found.graphs, wide, prefill)), "none for one"),
        (replace(found, graphs=both), "graphs of a drafter and no drafter"),
    ):
        with pytest.raises(BundleError, match=message):
            check_manifest(wrong, "here")


def test_a_disk_that_fails(tmp_path: Path, good: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.ygg"
    path.write_bytes(good)

    def fail(*arguments: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(BundleError, match="cannot be read: Input/output error"):
        Bundle.open(path)
