"""The cache directory: where it is, whom it trusts, processes at once, what prune removes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bundle import broken
from bundle.small import FILES, write_small

from yggrt.bundle import Bundle
from yggrt.cache import Cache, open_cache
from yggrt.core.errors import BundleError, YggError

TESTS = Path(__file__).parent.parent
CODE = {name: body for name, body in FILES.items() if name.startswith("code/")}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_small(tmp_path / "small.ygg")
    return tmp_path / "small.ygg"


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return open_cache(tmp_path / "cache")


def unpacked(directory: Path) -> dict[str, bytes]:
    files = (file for file in directory.rglob("*") if file.is_file())
    return {str(file.relative_to(directory)): file.read_bytes() for file in files}


def visible(cache: Cache) -> list[str]:
    """Names in the cache, but for those of temporary files and the lock."""
    return [entry.name for entry in cache.root.iterdir() if not entry.name.startswith(".")]


def aged(path: Path) -> None:
    """Waits until the file's time stamp is old enough to be trusted."""
    while time.time_ns() - path.stat().st_ctime_ns < 200_000_000:
        time.sleep(0.01)


def test_unpack(path: Path, cache: Cache) -> None:
    with Bundle.open(path) as bundle:
        directory = bundle.unpack(cache)
        assert directory == cache.root / bundle.digest
        assert unpacked(directory) == CODE
        assert directory.stat().st_mode & 0o777 == 0o700
        assert cache.root.stat().st_mode & 0o777 == 0o700
        assert visible(cache) == [bundle.digest]


def test_unpack_again_writes_nothing(path: Path, cache: Cache) -> None:
    with Bundle.open(path) as bundle:
        inode = (bundle.unpack(cache) / "code/libygg.so").stat().st_ino
        assert (bundle.unpack(cache) / "code/libygg.so").stat().st_ino == inode


@pytest.mark.parametrize("damage", ["changed", "removed", "added"])
def test_damaged_directory_is_written_anew(damage: str, path: Path, cache: Cache) -> None:
    with Bundle.open(path) as bundle:
        library = bundle.unpack(cache) / "code/libygg.so"
        if damage == "changed":
            library.write_bytes(b"other")
        elif damage == "removed":
            library.unlink()
        else:
            library.with_name("extra.so").write_bytes(b"x")
        assert unpacked(bundle.unpack(cache)) == CODE
    assert len(visible(cache)) == 1


def test_many_processes_at_once(path: Path, cache: Cache) -> None:
    code = """
import sys, time
from pathlib import Path
from yggrt.bundle import Bundle
from yggrt.cache import open_cache
cache = open_cache(Path(sys.argv[2]))
bundle = Bundle.open(sys.argv[1], cache=cache)
print("ready", flush=True)
sys.stdin.readline()
for _ in range(20):
    directory = bundle.unpack(cache)
    assert (directory / "code/libygg.so").read_bytes() == bundle.read("code/libygg.so")
"""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, path, cache.root],
            env={**os.environ, "PYTHONPATH": str(TESTS.parent)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert len([name for name in visible(cache) if len(name) == 64]) == 1
    assert not list(cache.root.glob(".new-*")) + list(cache.root.glob(".old-*"))


def test_order_of_choices(tmp_path: Path) -> None:
    environ = {
        "YGG_CACHE": str(tmp_path / "ygg"),
        "XDG_CACHE_HOME": str(tmp_path / "xdg"),
        "HOME": str(tmp_path / "home"),
    }
    assert open_cache(tmp_path / "given", environ).root == tmp_path / "given"
    assert open_cache(None, environ).root == tmp_path / "ygg"
    del environ["YGG_CACHE"]
    assert open_cache(None, environ).root == tmp_path / "xdg" / "yggrt"
    environ["XDG_CACHE_HOME"] = "relative"
    assert open_cache(None, environ).root == tmp_path / "home" / ".cache" / "yggrt"
    assert open_cache(None, environ).notes == ()


def test_no_home() -> None:
    cache = open_cache(None, {})
    assert cache.root.stat().st_mode & 0o777 == 0o700
    assert str(cache.root) in cache.notes[0]
    assert "--cache-dir" in cache.notes[0]


def test_default_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / ".cache").write_text("a file where a directory should be")
    cache = open_cache(None, {"HOME": str(tmp_path)})
    assert f"{tmp_path}/.cache/yggrt (Not a directory)" in cache.notes[0]


def test_given_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(YggError, match="Not a directory, wanted a directory that can be written"):
        open_cache(tmp_path / "file" / "cache")


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702])
def test_writable_by_others(mode: int, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(mode)
    with pytest.raises(YggError, match=f"mode {mode:o} lets others write, wanted 700"):
        open_cache(tmp_path / "cache")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_owned_by_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    os.chown(tmp_path / "cache", 12345, 12345)
    with pytest.raises(YggError, match="owned by user 12345, wanted 0"):
        open_cache(tmp_path / "cache")


def in_tmpfs(
    tmp_path: Path, options: str, code: str, path: Path
) -> subprocess.CompletedProcess[str]:
    """Runs `code` with a private file system on `tmp_path/mount`; skips if forbidden."""
    mount = tmp_path / "mount"
    mount.mkdir(mode=0o700)
    mounting = f"mount -t tmpfs -o {options},mode=700 tmpfs {mount} || exit 77"
    command = f'{mounting}; exec {sys.executable} -c "$0" {path} {mount}'
    try:
        done = subprocess.run(
            ["unshare", "-rm", "sh", "-c", command, code],
            env={**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if done.returncode == 77 or "unshare:" in done.stderr:
        pytest.skip("mounting needs rights that this process lacks")
    return done


UNPACK = """
import sys
from pathlib import Path
from yggrt.bundle import Bundle
from yggrt.cache import open_cache
from yggrt.core.errors import YggError
try:
    Bundle.open(sys.argv[1]).unpack(open_cache(Path(sys.argv[2])))
except YggError as error:
    print(error.message, error.tip)
    sys.exit(error.exit_code)
"""


def test_noexec(path: Path, tmp_path: Path) -> None:
    done = in_tmpfs(tmp_path, "noexec", UNPACK, path)
    assert done.returncode == 2, done.stderr
    assert f"{tmp_path}/mount: its file system is mounted noexec" in done.stdout
    assert "--cache-dir" in done.stdout


def test_cache_disk_full(path: Path, tmp_path: Path) -> None:
    done = in_tmpfs(tmp_path, "size=8k", UNPACK, path)
    assert done.returncode == 2, done.stderr
    assert "cannot unpack 319 bytes: No space left on device" in done.stdout


def test_output_disk_full(path: Path, tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from bundle.small import write_small
from yggrt.core.errors import YggError
try:
    write_small(Path(sys.argv[2], "out.ygg"))
except YggError as error:
    print(error.message, list(Path(sys.argv[2]).iterdir()))
    sys.exit(error.exit_code)
"""
    done = in_tmpfs(tmp_path, "size=4k", code, path)
    assert done.returncode == 2, done.stderr
    assert "has 4096 bytes free []" in done.stdout


def test_weights_are_hashed_once(path: Path, cache: Cache) -> None:
    aged(path)
    for words in ("all bytes", "everything but the weights; the weights at an earlier open"):
        with Bundle.open(path, cache=cache) as bundle:
            assert bundle.verified == words
    with Bundle.open(path, full=True, cache=cache) as bundle:
        assert bundle.verified == "all bytes"


def test_a_changed_file_is_hashed_again(path: Path, cache: Cache) -> None:
    aged(path)
    Bundle.open(path, cache=cache).close()
    with path.open("r+b") as file:
        data = file.read()
        file.seek(0)
        file.write(broken.flipped_in(data, "weights.safetensors"))
    with pytest.raises(BundleError, match="SHA-256"):
        Bundle.open(path, cache=cache)


def test_old_time_stamps_do_not_hide_a_change(path: Path, cache: Cache) -> None:
    aged(path)
    Bundle.open(path, cache=cache).close()
    status = path.stat()
    path.write_bytes(broken.flipped_in(path.read_bytes(), "weights.safetensors"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(BundleError, match="SHA-256"):
        Bundle.open(path, cache=cache)


def test_a_file_written_a_moment_ago_is_not_remembered(path: Path, cache: Cache) -> None:
    path.touch()
    Bundle.open(path, cache=cache).close()
    assert not list(cache.root.glob("*.verified"))


def test_prune(path: Path, cache: Cache) -> None:
    aged(path)
    with Bundle.open(path, cache=cache) as bundle:
        directory = bundle.unpack(cache)
    (cache.root / "notes.txt").write_text("not ours")
    assert cache.prune(max_age_s=3600.0) == []
    removed = cache.prune()
    assert {one.path for one in removed} == {
        directory,
        directory.with_name(f"{directory.name}.verified"),
    }
    assert sum(one.num_bytes for one in removed if one.path == directory) == sum(
        map(len, CODE.values())
    )
    assert visible(cache) == ["notes.txt"]


def test_prune_leaves_work_in_progress(cache: Cache) -> None:
    (cache.root / ".new-abcdefgh").mkdir()
    (cache.root / ".old-abcdefgh").mkdir()
    os.utime(cache.root / ".old-abcdefgh", (1.0, 1.0))
    assert [one.path.name for one in cache.prune()] == [".old-abcdefgh"]
