"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from yggrt.core.errors import RequestError


def write_whole(path: Path, data: bytes) -> None:
    """RequestError if it cannot be written; then `path` is as it was."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    except OSError as error:
        raise RequestError(
            f"{path}: cannot be written: {error.strerror or error}",
            "free some space or choose another file",
        ) from error
    finally:
        partial.unlink(missing_ok=True)
