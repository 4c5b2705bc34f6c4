"""What this machine is, and whether a bundle fits it. Imports no torch: a refusal must not take
seconds.
"""

from __future__ import annotations

import ast
import ctypes
import importlib.util
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path

from yggrt.core.errors import TargetError
from yggrt.core.schema import MustMatch, Target, TunedFor
from yggrt.cores import usable_processors

# Containers and hypervisors take a little of the memory that the device has.
_MEMORY_TOLERANCE = 0.1


def host_target(num_threads: int | None = None) -> Target:
    """This machine as a CPU target; `num_threads` defaults to the cores that this process may use.

    Bandwidth and FLOP/s are 0.0: `yggrt.measure_host` measures them.
    """
    cpu = _cpu_fields()
    torch_version, cuda = _torch_build()
    return Target(
        name="cpu",
        must_match=MustMatch(
            os=platform.system().lower(),
            machine=platform.machine(),
            libc=_libc(),
            isa=tuple(sorted(_usable_flags(cpu.get("flags") or cpu.get("Features") or ""))),
            torch=torch_version,
            cuda=cuda,
            compute_capability="",
        ),
        tuned_for=TunedFor(
            device=cpu.get("model name") or platform.machine(),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            num_cores=os.cpu_count() or 1,
            num_threads=num_threads or usable_processors(),
            read_bandwidth=0.0,
            flops=0.0,
        ),
    )


def check_target(bundle: Target, host: Target) -> list[str]:
    """At most one warning, which lists what the bundle was tuned for and this host is not.

    Raises TargetError with all differences that keep the bundle from running here. A host may have
    more ISA flags and a newer libc than the build machine had; everything else must be equal.
    """
    mismatches = list(_mismatches(bundle.must_match, host.must_match))
    if mismatches:
        problems = "; ".join(problem for problem, _ in mismatches)
        raise TargetError(f"the bundle does not fit this machine: {problems}", mismatches[0][1])
    return _tuning_warnings(bundle.tuned_for, host.tuned_for)


def _mismatches(wanted: MustMatch, found: MustMatch) -> Iterator[tuple[str, str]]:
    """What differs, and what to do about it."""
    rebuild = "build the bundle on this machine with `yggc build`"
    if wanted.os != found.os:
        yield f"operating system is {found.os}, wanted {wanted.os}", rebuild
    if wanted.machine != found.machine:
        yield f"machine is {found.machine}, wanted {wanted.machine}", rebuild
    elif missing := sorted(set(wanted.isa) - set(found.isa)):
        flags = ", ".join(missing)
        yield f"the CPU lacks {flags}, wanted all of {', '.join(wanted.isa)}", rebuild
    if not _libc_fits(wanted.libc, found.libc):
        yield f"libc is {found.libc or 'unknown'}, wanted {wanted.libc} or newer", rebuild
    if wanted.torch != found.torch:
        problem = f"torch is {found.torch or 'not installed'}, wanted {wanted.torch}"
        yield problem, f"install torch=={wanted.torch}, or {rebuild}"
    if wanted.cuda != found.cuda:
        have, want = (
            f"for CUDA {cuda}" if cuda else "for CPUs" for cuda in (found.cuda, wanted.cuda)
        )
        yield (
            f"torch is built {have}, wanted {want}",
            f"install torch {wanted.torch} {want}, or {rebuild}",
        )
    if wanted.compute_capability != found.compute_capability:
        have, want = (m.compute_capability or "none" for m in (found, wanted))
        yield f"compute capability is {have}, wanted {want}", rebuild


def _tuning_warnings(wanted: TunedFor, found: TunedFor) -> list[str]:
    differences = []
    if wanted.device != found.device:
        differences.append(f"device {found.device!r} instead of {wanted.device!r}")
    if abs(found.memory_bytes - wanted.memory_bytes) > _MEMORY_TOLERANCE * wanted.memory_bytes:
        differences.append(
            f"{found.memory_bytes / 2**30:.1f} GiB of memory instead of "
            f"{wanted.memory_bytes / 2**30:.1f}"
        )
    if wanted.num_cores != found.num_cores:
        differences.append(f"{found.num_cores} cores instead of {wanted.num_cores}")
    if wanted.num_threads != found.num_threads:
        differences.append(f"{found.num_threads} threads instead of {wanted.num_threads}")
    if not differences:
        return []
    return [
        f"the bundle was tuned for another machine ({', '.join(differences)}): results are the "
        f"same, "
        "speed may not be; `yggrt bench` measures it"
    ]


def _libc_fits(wanted: str, found: str) -> bool:
    wanted_name, wanted_version = _split_libc(wanted)
    found_name, found_version = _split_libc(found)
    return wanted_name == found_name and found_version >= wanted_version


def _split_libc(libc: str) -> tuple[str, tuple[int, ...]]:
    name, _, version = libc.partition(" ")
    return name, tuple(int(part) for part in re.findall(r"\d+", version))


def _libc() -> str:
    """Name and major.minor, such as "glibc 2.36"; "" where the system has no name for it."""
    name, version = platform.libc_ver()
    return " ".join([name, *re.findall(r"^\d+\.\d+", version)]) if name else ""


def _cpu_fields() -> dict[str, str]:
    """The first processor's fields of /proc/cpuinfo; empty where there is no such file."""
    fields: dict[str, str] = {}
    try:
        text = Path("/proc/cpuinfo").read_text()
    except FileNotFoundError:
        return fields
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    return fields


def _usable_flags(flags: str) -> set[str]:
    """Those of a line of /proc/cpuinfo without AMX where the kernel keeps it from this process:
    Linux gives its registers to those that ask, and a sandbox may refuse."""
    found = set(flags.split())
    if "amx_tile" in found:
        arch_prctl, request_permission, tile_data = 158, 0x1023, 18
        if ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) != 0:
            found -= {flag for flag in found if flag.startswith("amx_")}
    return found


def _torch_build() -> tuple[str, str]:
    """Version of the installed torch, without the local part that names its build, and its CUDA
    version or "".
    """
    # The package's metadata does not say which CUDA it was built for; its version file does.
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "", ""
    values: dict[str, object] = {}
    for node in ast.parse(Path(spec.origin).with_name("version.py").read_text()).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            values[target.id] = value.value
    version = re.sub(r"\+(cpu|cu\d+)$", "", str(values.get("__version__", "")))
    return version, str(values.get("cuda") or "")
