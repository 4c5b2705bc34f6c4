"""What this machine offers a build: disk, folders, its name. Asks the system, keeps nothing,
imports no torch.
"""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

from yggc.errors import RecipeError


def free_disk_bytes(folder: Path) -> int:
    """Free bytes on the file system that holds `folder`, which need not exist yet."""
    return shutil.disk_usage(existing_parent(folder)).free


def existing_parent(folder: Path) -> Path:
    """`folder` or its nearest parent that exists."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return folder


def default_work_dir() -> Path:
    """`yggc` in the user's cache folder (XDG_CACHE_HOME, or ~/.cache)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if base and not Path(base).is_absolute():
        raise RecipeError(
            f"XDG_CACHE_HOME is {base!r}, wanted an absolute path", "or give --work-dir"
        )
    return (Path(base) if base else Path.home() / ".cache") / "yggc"


def cpu_name() -> str:
    """The processor's marketing name, or the machine type."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
