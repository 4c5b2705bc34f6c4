"""What is written is what is read, and other programs can read it too."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch
from bundle.small import FILES, manifest, sources, tensors, write_small

from yggrt import archive
from yggrt.bundle import Bundle, WeightSource, write_bundle
from yggrt.core.errors import BundleError, YggError
from yggrt.core.schema import Manifest, WeightSpec
from yggrt.safetensors_layout import check_header, lay_out


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_small(tmp_path / "small.ygg")
    return tmp_path / "small.ygg"


def test_weights_are_equal(path: Path) -> None:
    with Bundle.open(path) as bundle:
        for name, tensor in tensors().items():
            weight = bundle.weight(name)
            assert torch.equal(weight, tensor), name
            assert weight.dtype == tensor.dtype
            assert weight.stride() == tensor.stride()


def test_version_1_is_read() -> None:
    """Its models had no quantised matrices, and no field that says so."""
    plain = json.loads(manifest().to_json())
    plain["format_version"] = 1
    for name in ("quant", "activations"):
        del plain["model"][name]
    read = Manifest.from_json(json.dumps(plain).encode(), "old.ygg")
    assert (read.model.quant, read.model.activations) == ("none", "float32")


def test_weights_share_one_mapping_and_are_aligned(path: Path) -> None:
    with Bundle.open(path) as bundle:
        weights = [bundle.weight(name) for name in tensors()]
        assert len({weight.untyped_storage().data_ptr() for weight in weights}) == 1
        assert all(weight.data_ptr() % 64 == 0 for weight in weights)
        assert all(spec.offset % 64 == 0 for spec in bundle.manifest.weights.values())


def test_weights_outlive_the_bundle(path: Path) -> None:
    with Bundle.open(path) as bundle:
        weight = bundle.weight("embedding")
    assert torch.equal(weight, tensors()["embedding"])


def test_writing_to_a_weight_leaves_the_file_alone(path: Path) -> None:
    before = path.read_bytes()
    with Bundle.open(path) as bundle:
        bundle.weight("embedding").zero_()
    assert path.read_bytes() == before


def test_members_are_equal(path: Path) -> None:
    with Bundle.open(path) as bundle:
        for name, body in FILES.items():
            assert bundle.read(name) == body


def test_manifest_is_what_the_writer_returned(tmp_path: Path) -> None:
    written = write_small(tmp_path / "small.ygg")
    with Bundle.open(tmp_path / "small.ygg", full=True) as bundle:
        assert bundle.manifest == written
        assert bundle.num_bytes == bundle.path.stat().st_size
        assert bundle.verified == "all bytes"


def test_same_inputs_same_bytes(path: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    other = tmp_path / "elsewhere" / "other.ygg"
    write_bundle(other, manifest(), sources(), dict(reversed(FILES.items())))
    assert other.read_bytes() == path.read_bytes()


def test_files_may_be_paths(path: Path, tmp_path: Path) -> None:
    files: dict[str, Path | bytes] = {}
    for index, (name, body) in enumerate(FILES.items()):
        files[name] = tmp_path / str(index)
        assert isinstance(body, bytes)
        (tmp_path / str(index)).write_bytes(body)
    write_bundle(tmp_path / "other.ygg", manifest(), sources(), files)
    assert (tmp_path / "other.ygg").read_bytes() == path.read_bytes()


def test_zipfile_reads_it(path: Path) -> None:
    with zipfile.ZipFile(path) as reader:
        assert reader.testzip() is None
        assert reader.namelist() == ["manifest.json", *sorted([*FILES, "weights.safetensors"])]
        assert reader.read("code/libygg.so") == FILES["code/libygg.so"]


@pytest.mark.skipif(shutil.which("unzip") is None, reason="unzip is not installed")
def test_unzip_reads_it(path: Path) -> None:
    done = subprocess.run(["unzip", "-t", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_safetensors_reads_the_weights(path: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(path) as reader:
        unzipped = reader.extract("weights.safetensors", tmp_path)
    loaded = safetensors.torch.load_file(unzipped)
    assert {name for name in loaded if not name.startswith("__pad_")} == set(tensors())
    for name, tensor in tensors().items():
        assert torch.equal(loaded[name], tensor)


def test_no_weights(tmp_path: Path) -> None:
    bare = tmp_path / "bare.ygg"
    files = {name: body for name, body in FILES.items() if not name.startswith("code/w")}
    import msgspec

    write_bundle(bare, msgspec.structs.replace(manifest(), graphs=()), [], files)
    with Bundle.open(bare) as bundle:
        assert bundle.manifest.weights == {}


def test_layout_beyond_four_gigabytes() -> None:
    """Positions are plain integers and ZIP64 is always written: nothing changes at 4 GB."""
    big = 5 << 30
    slots = archive.place({"manifest.json": 1000, "big": big, "small": 1})
    assert slots["small"].header == slots["big"].payload + big
    text = archive.directory(slots, {"manifest.json": 1, "big": 2, "small": 3})
    assert len(text) == archive.directory_bytes(slots)
    assert archive.directory_crcs(text, slots) == {"manifest.json": 1, "big": 2, "small": 3}
    header = archive.local_header("big", big, 2)
    assert len(header) == archive.header_bytes("big")
    found = archive.read_local_header(header)
    assert found is not None
    assert found.num_bytes == big


def test_zipfile_reads_a_sparse_bundle_of_five_gigabytes(tmp_path: Path) -> None:
    big = 5 << 30
    slots = archive.place({"big": big, "small": 1})
    crcs = {"big": 0, "small": 0xE8B7BE43}
    with (tmp_path / "sparse.zip").open("wb") as file:
        file.write(archive.local_header("big", big, 0))
        file.seek(slots["small"].header)
        file.write(archive.local_header("small", 1, crcs["small"]) + b"a")
        file.write(archive.directory(slots, crcs))
    with zipfile.ZipFile(tmp_path / "sparse.zip") as reader:
        assert reader.getinfo("big").file_size == big
        assert reader.read("small") == b"a"


def test_weight_offsets_beyond_four_gigabytes() -> None:
    layout = lay_out(
        [("a", "bfloat16", (3 << 30, 1)), ("b", "float32", (3,)), ("c", "uint8", (5,))],
        payload=1001,
    )
    start = 1001 + len(layout.header)
    assert start % 64 == 0
    assert layout.offsets == {"a": 0, "b": 6 << 30, "c": (6 << 30) + 64}
    table = {
        "a": WeightSpec(dtype="bfloat16", shape=(3 << 30, 1), offset=start),
        "b": WeightSpec(dtype="float32", shape=(3,), offset=start + layout.offsets["b"]),
        "c": WeightSpec(dtype="uint8", shape=(5,), offset=start + layout.offsets["c"]),
    }
    check_header(layout.header, table, 1001, layout.num_bytes, "test")


@pytest.mark.parametrize("name", ["__pad_3", "__metadata__", "embedding"])
def test_reserved_and_repeated_weight_names(name: str, tmp_path: Path) -> None:
    extra = WeightSource(name, "uint8", (1,), lambda: b"x")
    with pytest.raises(BundleError, match="twice or reserved"):
        write_bundle(tmp_path / "bad.ygg", manifest(), [*sources(), extra], FILES)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name", ["../x", "/x", "a//b", "manifest.json", "weights.safetensors", "a\\b", "é"]
)
def test_member_names_that_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(BundleError):
        write_bundle(tmp_path / "bad.ygg", manifest(), sources(), {**FILES, name: b""})
    assert not list(tmp_path.iterdir())


def test_weight_that_gives_too_few_bytes(tmp_path: Path) -> None:
    short = WeightSource("short", "float32", (4,), lambda: b"123")
    with pytest.raises(BundleError, match=r"'short' gave 3 bytes, float32 \[4\] needs 16"):
        write_bundle(tmp_path / "bad.ygg", manifest(), [*sources(), short], FILES)
    assert not list(tmp_path.iterdir())


def test_manifest_that_refers_to_nothing(tmp_path: Path) -> None:
    files = {name: body for name, body in FILES.items() if name != "code/libygg.so"}
    with pytest.raises(BundleError, match=r"refers to member 'code/libygg.so'"):
        write_bundle(tmp_path / "bad.ygg", manifest(), sources(), files)
    assert not list(tmp_path.iterdir())


def test_output_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(YggError, match="No such file"):
        write_small(tmp_path / "none" / "small.ygg")


def test_output_that_is_a_directory(tmp_path: Path) -> None:
    with pytest.raises(YggError, match="Is a directory"):
        write_small(tmp_path)
