"""A bundle is written whole or not at all, whatever stops the writer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bundle.small import FILES, manifest, sources, write_small

from yggrt.bundle import Bundle, WeightSource, write_bundle
from yggrt.core.errors import YggError

TESTS = Path(__file__).parent.parent


def python(code: str, *arguments: Path) -> subprocess.Popen[str]:
    """A fresh interpreter that runs `code` with the tests' helpers at hand."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_exception_half_way(tmp_path: Path) -> None:
    def fail() -> Iterator[bytes]:
        yield b"1234"
        raise RuntimeError("stop")

    path = tmp_path / "small.ygg"
    path.write_bytes(b"older")
    with pytest.raises(RuntimeError, match="stop"):
        write_bundle(path, manifest(), [*sources(), WeightSource("w", "uint8", (9,), fail)], FILES)
    assert path.read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [path]


def test_interrupt_half_way(tmp_path: Path) -> None:
    def interrupt() -> bytes:
        raise KeyboardInterrupt

    source = WeightSource("w", "uint8", (9,), interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_bundle(tmp_path / "small.ygg", manifest(), [*sources(), source], FILES)
    assert not list(tmp_path.iterdir())


def test_more_bytes_than_the_disk_has(tmp_path: Path) -> None:
    huge = WeightSource("huge", "float32", (1 << 50,), lambda: b"")
    with pytest.raises(YggError, match=r"needs \d{16} bytes, .* has \d+ bytes free"):
        write_bundle(tmp_path / "small.ygg", manifest(), [*sources(), huge], FILES)
    assert not list(tmp_path.iterdir())


def test_file_size_limit(tmp_path: Path) -> None:
    """Named as what it is, and not taken for a full disk."""
    code = """
import resource, sys
from pathlib import Path
from bundle.small import write_small
from yggrt.core.errors import YggError
resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
try:
    write_small(Path(sys.argv[1]))
except YggError as error:
    print(error.message)
    sys.exit(error.exit_code)
"""
    process = python(code, tmp_path / "small.ygg")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2, err
    assert "the bundle needs" in out
    assert "may write files of at most 6000 bytes (ulimit -f)" in out
    assert "free" not in out
    assert not list(tmp_path.iterdir())


def test_kill_half_way(tmp_path: Path) -> None:
    """Nothing under the final name; the next writer removes what was left and succeeds."""
    code = """
import sys, time
from pathlib import Path
from bundle.small import FILES, manifest, sources
from yggrt.bundle import WeightSource, write_bundle
def wait():
    yield b"1234"
    print("half", flush=True)
    time.sleep(60)
write_bundle(Path(sys.argv[1]), manifest(), [*sources(), WeightSource("w", "uint8", (9,), wait)],
FILES)
"""
    path = tmp_path / "small.ygg"
    process = python(code, path)
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    left = list(tmp_path.iterdir())
    assert len(left) == 1
    assert not path.exists()
    write_small(path)
    assert left[0].exists(), "a writer that lives must keep its file"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    write_small(path)
    assert list(tmp_path.iterdir()) == [path]
    Bundle.open(path).close()


def test_replacing_a_bundle_in_use(tmp_path: Path) -> None:
    """An open bundle keeps the file that it opened."""
    path = tmp_path / "small.ygg"
    write_small(path)
    with Bundle.open(path) as bundle:
        weight = bundle.weight("embedding")
        copy = weight.clone()
        write_bundle(path, manifest(), list(reversed(sources())), FILES)
        assert weight.equal(copy)
        assert bundle.read("tokenizer.json") == b"{}"


def test_replaced_before_the_weights_are_mapped(tmp_path: Path) -> None:
    path = tmp_path / "small.ygg"
    write_small(path)
    with Bundle.open(path) as bundle:
        write_small(path)
        with pytest.raises(YggError, match="was replaced"):
            bundle.weight("embedding")


def test_mode_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_small(tmp_path / "small.ygg")
    finally:
        os.umask(before)
    assert (tmp_path / "small.ygg").stat().st_mode & 0o777 == 0o640
