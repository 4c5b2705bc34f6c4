"""The operator libraries that these tests share, compiled once per state of the sources."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from ygg_kernels.build import ISA_FLAGS, build_library, host_cpu_flags
from ygg_kernels.ops import Operators, load_library


@pytest.fixture(scope="session")
def library_dir() -> Path:
    """A directory that outlives the run, so that only a change of the sources compiles again."""
    return Path(tempfile.gettempdir()) / f"ygg-kernel-tests-{os.getuid()}"


@pytest.fixture(scope="session")
def ops(library_dir: Path) -> Operators:
    """The operators for the best instruction set of this machine."""
    built = build_library(library_dir)
    return load_library(built.path, built.namespace)


@pytest.fixture(scope="session")
def avx_pair(library_dir: Path, ops: Operators) -> tuple[Operators, Operators]:
    """The AVX2 build beside that for the best instruction set, in this process."""
    if not host_cpu_flags().issuperset(ISA_FLAGS["avx512"][1]):
        pytest.skip("this CPU has no AVX-512")
    narrow = build_library(library_dir, "avx2")
    return load_library(narrow.path, narrow.namespace), ops


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    """A fixed seed, and the thread count restored."""
    num_threads = torch.get_num_threads()
    torch.manual_seed(0)
    yield
    torch.set_num_threads(num_threads)
