"""Compiles the CPU operators into one shared library, cached by content.

Also runs the checks that need a compiler. `ygg_kernels.ops` loads what is built here. Flags are
explicit per instruction set, never `-march=native`, so that the flags recorded with a library are
the ones its code needs.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from yggrt.core.errors import YggError

Isa = Literal["native", "avx512_amx", "avx512_vnni", "avx512", "avx2", "neon"]

SOURCE_DIR = Path(__file__).parent / "cpu"
HEADERS = (
    "vec.h", "memory.h", "formats.h", "tile.h", "integer.h", "amx.h", "amx_integer.h", "linear.h",
    "embedding.h", "attention.h", "kv.h", "noise.h", "candidates.h", "elementwise.h",
)  # fmt: skip
# All that the operators' library is compiled from, and where those for GPUs are.
OPERATOR_SOURCES = tuple(SOURCE_DIR / name for name in (*HEADERS, "ops.cpp"))
TRITON_DIR = Path(__file__).parent / "triton"
BASE_FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fopenmp", "-fPIC", "-DNDEBUG")
# Two libraries in one process must not share inline functions: they may be for different machines.
LIBRARY_FLAGS = ("-fvisibility=hidden", "-fvisibility-inlines-hidden", "-fno-gnu-unique")
# Errors name the file that they come from: by these names, wherever it lies.
PLACES = ("-ffile-prefix-map={torch}=torch", "-ffile-prefix-map={sources}=ygg_kernels")
# Loaded for all to see, so nothing but the C functions that graphs call may be seen.
EXPORTS = "{{ global: {namespace}_*; local: *; }};"
# GCC 12 takes the undefined operands of its own AVX-512 headers for a mistake.
WARNING_FLAGS = ("-Wall", "-Wextra", "-Werror", "-Wno-uninitialized", "-Wno-maybe-uninitialized")
AVX2_FLAGS = ("-mavx2", "-mfma", "-mf16c")
AVX512_FLAGS = (*AVX2_FLAGS, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
AVX512_NAMES = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl")
# Compiler flags, and the names of what they need as /proc/cpuinfo spells them.
ISA_FLAGS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "avx512_amx": (
        (*AVX512_FLAGS, "-mavx512vnni", "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
        (*AVX512_NAMES, "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8"),
    ),
    "avx512_vnni": ((*AVX512_FLAGS, "-mavx512vnni"), (*AVX512_NAMES, "avx512_vnni")),
    "avx512": (AVX512_FLAGS, AVX512_NAMES),
    "avx2": (AVX2_FLAGS, ("avx2", "fma", "f16c")),
    "neon": ((), ("asimd",)),
}


class KernelBuildError(YggError):
    """The operators could not be compiled: no compiler, an error of it, no instruction set."""


@dataclass(frozen=True, slots=True)
class BuiltLibrary:
    """A compiled library, the torch namespace of its operators, the CPU flags its code needs."""

    path: Path
    namespace: str
    isa_flags: tuple[str, ...]


def host_cpu_flags() -> frozenset[str]:
    """The flags of the first processor as /proc/cpuinfo names them; empty without such a file."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def kernel_allows_tiles() -> bool:
    """Whether this process may use AMX: Linux keeps its registers for those that asked, and a
    sandbox may refuse."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        return False
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return bool(ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0)


def resolve_isa(isa: Isa) -> str:
    """The instruction set that `isa` names; `native` is the best one that this machine has."""
    if isa != "native":
        if isa not in ISA_FLAGS:
            raise KernelBuildError(
                f"instruction set {isa!r} is unknown",
                f"use one of: native, {', '.join(ISA_FLAGS)}",
            )
        return isa
    flags = host_cpu_flags()
    for name, (_, needed) in ISA_FLAGS.items():
        if flags.issuperset(needed) and ("amx_tile" not in needed or kernel_allows_tiles()):
            return name
    raise KernelBuildError(
        f"this {platform.machine()} CPU has none of AVX-512, AVX2 with FMA, or NEON",
        "build on a machine that has one of them",
    )


def find_compiler(cxx: str) -> str:
    """The path of the C++ compiler."""
    found = shutil.which(cxx)
    if found is None:
        raise KernelBuildError(
            f"C++ compiler {cxx!r} was not found on PATH",
            "install it (Debian/Ubuntu: apt install g++) or name another one",
        )
    return found


def _run(command: list[str], what: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        tail = "\n".join((result.stderr or result.stdout).strip().splitlines()[-20:])
        raise KernelBuildError(
            f"{what} failed with status {result.returncode}:\n{tail}",
            f"the command was: {' '.join(command)}",
        )


def build_library(out_dir: Path, isa: Isa = "native", cxx: str = "g++") -> BuiltLibrary:
    """Compiles the operators into `out_dir`, or finds them there already.

    The namespace is `ygg_cpu_` and 12 hex digits of the SHA-256 of sources, flags, compiler and
    torch version. Raises KernelBuildError.
    """
    import torch
    from torch.utils import cpp_extension

    name = resolve_isa(isa)
    isa_compile, isa_needed = ISA_FLAGS[name]
    compiler = find_compiler(cxx)
    version = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, check=False
    ).stdout.partition("\n")[0]
    flags = (*BASE_FLAGS, *LIBRARY_FLAGS, *isa_compile)
    digest = hashlib.sha256()
    for item in (*flags, *PLACES, EXPORTS, version, torch.__version__):
        digest.update(item.encode() + b"\0")
    for path in OPERATOR_SOURCES:
        digest.update(path.read_bytes() + b"\0")
    namespace = f"ygg_cpu_{digest.hexdigest()[:12]}"
    out_dir.mkdir(parents=True, exist_ok=True)
    target = out_dir / f"{namespace}.so"
    built = BuiltLibrary(target, namespace, isa_needed)
    if target.exists():
        return built

    includes = [f"-isystem{path}" for path in cpp_extension.include_paths()]
    libraries = Path(torch.__file__).parent / "lib"
    with tempfile.TemporaryDirectory(dir=out_dir) as scratch:
        compiled = Path(scratch) / "ops.o"
        linked = Path(scratch) / target.name
        exports = Path(scratch) / "exports.map"
        exports.write_text(EXPORTS.format(namespace=namespace), encoding="utf-8")
        abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
        places = [
            place.format(torch=Path(torch.__file__).parent, sources=SOURCE_DIR) for place in PLACES
        ]
        _run(
            [compiler, *flags, *places, abi, f"-DYGG_NAMESPACE={namespace}", *includes,
             "-c", str(SOURCE_DIR / "ops.cpp"), "-o", str(compiled)],
            "compiling the CPU operators",
        )  # fmt: skip
        # Linked without -fopenmp: the functions come from the OpenMP runtime that torch has
        # loaded, so that there is one pool of threads and torch.set_num_threads governs it.
        _run(
            [compiler, "-shared", str(compiled), "-o", str(linked),
             f"-Wl,--version-script={exports}", f"-L{libraries}", "-ltorch_cpu", "-lc10"],
            "linking the CPU operators",
        )  # fmt: skip
        os.replace(linked, target)
    return built


def check_sanitizers(cxx: str = "g++", isa: Isa = "native") -> None:
    """Runs the self-test under address and undefined-behaviour sanitizers, 1, 2 and 8 threads."""
    name = resolve_isa(isa)
    with tempfile.TemporaryDirectory() as scratch:
        program = str(Path(scratch) / "selftest")
        _run(
            [find_compiler(cxx), "-std=c++17", "-O1", "-g", "-ffp-contract=off", "-fopenmp",
             "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
             "-fno-omit-frame-pointer", *WARNING_FLAGS, *ISA_FLAGS[name][0],
             str(SOURCE_DIR / "selftest.cpp"), "-o", program],
            "compiling the self-test",
        )  # fmt: skip
        for threads in ("1", "2", "8"):
            _run([program, threads], f"the self-test with {threads} threads ({name})")


def check_neon(cxx: str = "aarch64-linux-gnu-g++") -> None:
    """Compiles the kernels and their self-test for aarch64; nothing is run."""
    with tempfile.TemporaryDirectory() as scratch:
        _run(
            [find_compiler(cxx), "-std=c++17", "-O3", "-ffp-contract=off", "-fopenmp",
             *WARNING_FLAGS, "-c", str(SOURCE_DIR / "selftest.cpp"),
             "-o", str(Path(scratch) / "selftest.o")],
            "compiling for NEON",
        )  # fmt: skip


def main() -> int:
    """`python -m ygg_kernels.build`: build into a directory, or run the compiler checks."""
    parser = argparse.ArgumentParser(prog="ygg_kernels.build", description=__doc__)
    parser.add_argument("--out", type=Path, help="build the library into this directory")
    parser.add_argument("--isa", default="native", choices=["native", *ISA_FLAGS])
    parser.add_argument("--check-sanitizers", action="store_true")
    parser.add_argument("--check-neon", action="store_true")
    options = parser.parse_args()
    try:
        if options.out is not None:
            built = build_library(options.out, options.isa)
            print(f"{built.path} ({' '.join(built.isa_flags)})")
        if options.check_sanitizers:
            check_sanitizers(isa=options.isa)
            print("sanitizers: the self-test passes with 1, 2 and 8 threads")
        if options.check_neon:
            check_neon()
            print("neon: the kernels compile")
    except YggError as error:
        print(f"ERROR {error.message}", file=sys.stderr)
        if error.tip is not None:
            print(f"TIP {error.tip}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
