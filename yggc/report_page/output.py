"""Where a page goes: checked before the work."""

from __future__ import annotations

import os
from pathlib import Path

from yggrt.core.errors import RequestError

_START = "<!DOCTYPE html>"


def check_output(path: Path) -> None:
    """Raises RequestError if no page can be written there: before the work, not after it."""
    folder = path.absolute().parent
    special = path.exists() and not path.is_file()
    if special or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise RequestError(
            f"{path}: no report can be written there", "give a file in a folder that exists"
        )
    if path.exists() and not _is_page(path):
        raise RequestError(
            f"{path}: exists and is no page, so it is not overwritten",
            "give a new file, or that of an earlier report",
        )


def _is_page(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_START)) in (_START.encode(), b"")
    except OSError:
        return False
