"""Checks of the command line's values, before anything heavy is imported."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from yggc.compare.protocol import BASELINES, Library
from yggrt.core.errors import RequestError


def check_baselines(names: Sequence[str] | None) -> tuple[Library, ...]:
    """The libraries that are named, all if none is."""
    for name in names or ():
        if name not in BASELINES:
            raise RequestError(
                f"--baseline is {name!r}, wanted one of {', '.join(BASELINES)}",
                "leave it out to compare with all that are installed",
            )
    return tuple(one for one in BASELINES if not names or one in names)


def check_output(path: Path) -> None:
    """Raises RequestError if no page can be written there: before the work, not after it."""
    folder = path.parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise RequestError(
            f"{path}: no page can be written there", "give a file in a folder that exists"
        )
