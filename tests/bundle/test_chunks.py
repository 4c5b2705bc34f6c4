"""Bytes of weights in pieces: a file's are those asked for, and a short file is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from yggrt.weights import file_chunks


def test_file_chunks(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(range(100)))
    assert list(file_chunks(path, 10, 25, 10)) == [
        bytes(range(10, 20)), bytes(range(20, 30)), bytes(range(30, 35)),
    ]  # fmt: skip
    assert list(file_chunks(path, 100, 0)) == []
    with pytest.raises(ValueError, match="ends 5 bytes too soon"):
        list(file_chunks(path, 95, 10))
