"""What a host may and may not differ in, and that asking needs no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from bundle.small import manifest, write_small

from yggrt import target
from yggrt.core.errors import TargetError
from yggrt.core.schema import Target
from yggrt.target import check_target, host_target

BUNDLE = manifest().target


def host(**changes: object) -> Target:
    """The build machine with some must-match values changed."""
    must_match = msgspec.structs.replace(BUNDLE.must_match, **changes)
    return msgspec.structs.replace(BUNDLE, must_match=must_match)


def other_device(**changes: object) -> Target:
    """The build machine with some tuned-for values changed."""
    tuned_for = msgspec.structs.replace(BUNDLE.tuned_for, **changes)
    return msgspec.structs.replace(BUNDLE, tuned_for=tuned_for)


def test_same_machine() -> None:
    assert check_target(BUNDLE, BUNDLE) == []


def test_this_machine_fits_itself() -> None:
    here = host_target()
    assert check_target(here, here) == []
    assert here.must_match.torch
    assert "+" not in here.must_match.torch


@pytest.mark.parametrize(
    "changes",
    [{"isa": ("avx2", "avx512f", "fma")}, {"libc": "glibc 2.39"}, {"libc": "glibc 3.0"}],
    ids=str,
)
def test_more_than_wanted(changes: dict[str, object]) -> None:
    assert check_target(BUNDLE, host(**changes)) == []


@pytest.mark.parametrize(
    ("changes", "words", "step"),
    [
        ({"isa": ("sse4_2", "fma")}, "the CPU lacks avx2, wanted all of avx2, fma", "yggc build"),
        ({"isa": ()}, "the CPU lacks avx2, fma", "yggc build"),
        ({"os": "darwin"}, "operating system is darwin, wanted linux", "yggc build"),
        ({"machine": "aarch64", "isa": ()}, "machine is aarch64, wanted x86_64", "yggc build"),
        ({"libc": "glibc 2.9"}, "libc is glibc 2.9, wanted glibc 2.36 or newer", "yggc build"),
        ({"libc": "musl 2.40"}, "libc is musl 2.40, wanted glibc 2.36 or newer", "yggc build"),
        ({"libc": ""}, "libc is unknown", "yggc build"),
        ({"torch": "2.12.1"}, "torch is 2.12.1, wanted 2.13.0", "install torch==2.13.0"),
        ({"torch": ""}, "torch is not installed", "install torch==2.13.0"),
        (
            {"cuda": "13.0"},
            "torch is built for CUDA 13.0, wanted for CPUs",
            "install torch 2.13.0",
        ),
        ({"compute_capability": "9.0"}, "compute capability is 9.0, wanted none", "yggc build"),
    ],
    ids=str,
)
def test_refusals(changes: dict[str, object], words: str, step: str) -> None:
    with pytest.raises(TargetError) as caught:
        check_target(BUNDLE, host(**changes))
    assert words in caught.value.message
    assert caught.value.tip is not None
    assert step in caught.value.tip
    assert caught.value.exit_code == 2


def test_every_difference_is_named() -> None:
    with pytest.raises(TargetError, match=r"lacks avx2.*torch is 2\.12\.1"):
        check_target(BUNDLE, host(isa=("fma",), torch="2.12.1"))


def test_another_machine_is_not_blamed_for_its_flags() -> None:
    with pytest.raises(TargetError) as caught:
        check_target(BUNDLE, host(machine="aarch64", isa=("asimd",)))
    assert "lacks" not in caught.value.message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"device": "Other CPU"}, "device 'Other CPU' instead of 'Example CPU'"),
        ({"num_cores": 8}, "8 cores instead of 2"),
        ({"num_threads": 1}, "1 threads instead of 2"),
        ({"memory_bytes": 32 << 30}, "32.0 GiB of memory instead of 16.0"),
    ],
    ids=str,
)
def test_one_warning(changes: dict[str, object], words: str) -> None:
    (warning,) = check_target(BUNDLE, other_device(**changes))
    assert words in warning


def test_measured_values_and_a_little_memory_are_no_difference() -> None:
    near = other_device(memory_bytes=15 << 30, read_bandwidth=0.0, flops=0.0)
    assert check_target(BUNDLE, near) == []


def test_no_torch_is_imported(tmp_path: Path) -> None:
    write_small(tmp_path / "small.ygg")
    code = """
import sys
from pathlib import Path
import yggrt.target, yggrt.inspect
yggrt.target.host_target()
yggrt.inspect.inspect_bundle(Path(sys.argv[1]), full=True)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code, tmp_path / "small.ygg"], check=True)


def test_amx_counts_only_where_the_kernel_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def syscall(self, *arguments: int) -> int:
            return -1

    monkeypatch.setattr(target.ctypes, "CDLL", lambda name: Refusing())
    assert target._usable_flags("avx2 amx_tile amx_bf16") == {"avx2"}
    assert target._usable_flags("avx2 fma") == {"avx2", "fma"}
