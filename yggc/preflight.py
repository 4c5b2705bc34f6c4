"""What a build needs, checked before anything long starts; each failure names found, wanted and
the next step.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from yggc.config import BuildConfig
from yggc.errors import PreflightError
from yggc.host import existing_parent, free_disk_bytes
from yggrt.core.footprint import Footprint
from yggrt.memory import available_memory_bytes

TORCH_RANGE = ((2, 13), (2, 14))
MIN_GXX = 9
MIN_PYTHON = (3, 11)
# Graphs, operators, tokenizer and tables beside the weights.
OUTPUT_EXTRA_BYTES = 60_000_000
WORK_EXTRA_BYTES = 300_000_000
COMPILE_BYTES = 2 << 30
_PROBE = """
#include <omp.h>
#include <vector>
extern "C" int probe() { return std::vector<int>(omp_get_max_threads()).size(); }
"""


@dataclass(frozen=True, slots=True)
class Check:
    """One need: what was found, what is wanted, and what to do when they differ."""

    name: str
    ok: bool
    found: str
    wanted: str
    tip: str


def preflight(config: BuildConfig, footprint: Footprint | None = None) -> list[Check]:
    """All checks for the target; PreflightError with every failure. Sizes are checked once the
    model is known.
    """
    checks = [*_common_checks(config), *_cpu_checks()]
    if footprint is not None:
        checks += _size_checks(config, footprint)
    failed = [check for check in checks if not check.ok]
    if failed:
        lines = [f"{check.name}: {check.found}, wanted {check.wanted}" for check in failed]
        raise PreflightError(
            "; ".join(lines), "; ".join(dict.fromkeys(check.tip for check in failed))
        )
    return checks


def _common_checks(config: BuildConfig) -> Iterator[Check]:
    python = platform.python_version()
    wanted = ".".join(map(str, MIN_PYTHON))
    yield Check(
        "python",
        sys.version_info >= MIN_PYTHON,
        python,
        f">= {wanted}",
        f"install Python {wanted}",
    )
    yield _torch_check()
    for package in ("transformers", "safetensors", "gguf"):
        version = _version(package)
        tip = "pip install transformers gguf safetensors numpy"
        yield Check(package, version is not None, version or "not installed", "installed", tip)
    output = Path(config.output)
    yield _writable(
        "output directory", output.absolute().parent, must_exist=True, tip="choose another with -o"
    )
    yield Check(
        "output", not output.is_dir(), f"{output} is a directory" if output.is_dir() else "a file "
        "name",
        "a file name", "give a file name to -o",
    )  # fmt: skip
    work = Path(config.work_dir)
    yield _writable("work directory", work, must_exist=False, tip="choose another with --work-dir")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _torch_check() -> Check:
    version = _version("torch")
    low, high = (".".join(map(str, bound)) for bound in TORCH_RANGE)
    numbers = tuple(int(part) for part in (version or "0.0").split("+")[0].split(".")[:2])
    return Check(
        "torch",
        TORCH_RANGE[0] <= numbers < TORCH_RANGE[1],
        version or "not installed",
        f">= {low}, < {high}",
        f"pip install 'torch>={low},<{high}'",
    )


def _writable(name: str, folder: Path, *, must_exist: bool, tip: str) -> Check:
    base = folder if must_exist else existing_parent(folder)
    if not base.is_dir():
        return Check(name, False, f"{folder} does not exist", "an existing folder", tip)
    ok = os.access(base, os.W_OK | os.X_OK)
    return Check(name, ok, f"{base} is {'writable' if ok else 'not writable'}", "writable", tip)


def _cpu_checks() -> Iterator[Check]:
    compiler = os.environ.get("CXX", "g++")
    wanted = f"a C++17 compiler with OpenMP, g++ {MIN_GXX} or newer"
    tip = "install it (Debian, Ubuntu: apt-get install g++), or name one in CXX"
    program = shutil.which(compiler)
    if program is None:
        yield Check("g++", False, f"{compiler} not found", wanted, tip)
        return
    dumped = subprocess.run(
        [program, "-dumpfullversion", "-dumpversion"], capture_output=True, text=True, check=False
    )
    version = dumped.stdout.strip()
    major = re.match(r"\d+", version)
    recent = major is not None and int(major[0]) >= MIN_GXX
    problem = _compile_probe(program)
    yield Check("g++", recent and not problem, f"{program} {version}{problem}", wanted, tip)


def _compile_probe(program: str) -> str:
    """Empty if a tiny library compiles, else the compiler's first line."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cpp")
        source.write_text(_PROBE)
        command = [
            program,
            "-std=c++17",
            "-fopenmp",
            "-fPIC",
            "-shared",
            "-o",
            str(Path(folder, "probe.so")),
            str(source),
        ]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return ""
    lines = result.stderr.strip().splitlines() or [f"exit status {result.returncode}"]
    return f" fails: {lines[0]}"


def _size_checks(config: BuildConfig, footprint: Footprint) -> Iterator[Check]:
    packed = footprint.weights_bytes
    needs = {Path(config.output).absolute().parent: packed + OUTPUT_EXTRA_BYTES}
    needs[Path(config.work_dir)] = needs.get(Path(config.work_dir), 0) + packed + WORK_EXTRA_BYTES
    by_device: dict[int, tuple[Path, int]] = {}
    for folder, wanted in needs.items():
        device = existing_parent(folder).stat().st_dev
        by_device[device] = (folder, wanted + by_device.get(device, (folder, 0))[1])
    for folder, wanted in by_device.values():
        free = free_disk_bytes(folder)
        yield Check(
            "disk", free >= wanted, f"{folder} has {free / 1e9:.1f} GB free",
            f"{wanted / 1e9:.1f} GB",
            "free some, or choose other folders with -o and --work-dir",
        )  # fmt: skip
    memory = available_memory_bytes()
    wanted = footprint.total_bytes + config.jobs * COMPILE_BYTES
    yield Check(
        "memory",
        memory >= wanted,
        f"{memory / 1e9:.1f} GB available",
        f"{wanted / 1e9:.1f} GB ({packed / 1e9:.1f} weights, {footprint.kv_bytes / 1e9:.1f} keys "
        f"and values, {footprint.workspace_bytes / 1e9:.1f} workspace, "
        f"{config.jobs * COMPILE_BYTES / 1e9:.1f} compilers)",
        f"close other programs, use fewer compile processes (--jobs, now {config.jobs}), --quant "
        "int8 or int4, --dtype bfloat16, --kv-dtype int8 or a smaller --max-model-len",
    )
