"""The builder: names by content, one OpenMP runtime, clear errors; the operators in a graph."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from ygg_kernels import reference
from ygg_kernels.build import ISA_FLAGS, KernelBuildError, build_library, host_cpu_flags
from ygg_kernels.ops import Operators, load_library


def test_built_once(library_dir: Path) -> None:
    first = build_library(library_dir)
    modified = first.path.stat().st_mtime_ns
    second = build_library(library_dir)
    assert second == first
    assert second.path.stat().st_mtime_ns == modified
    assert first.path.name == f"{first.namespace}.so"
    assert host_cpu_flags().issuperset(first.isa_flags)
    assert load_library(first.path, first.namespace) == load_library(first.path, first.namespace)


def test_one_openmp_runtime(library_dir: Path) -> None:
    """The library asks for no OpenMP runtime: torch's is the only one in the process."""
    built = build_library(library_dir)
    dynamic = subprocess.run(
        ["readelf", "-d", str(built.path)], capture_output=True, text=True, check=True
    ).stdout
    needed = [line for line in dynamic.splitlines() if "NEEDED" in line]
    assert needed
    assert not any("omp" in line for line in needed)
    mapped = {
        line.split()[-1]
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        if "libgomp" in line
    }
    assert len(mapped) == 1


def test_missing_compiler(tmp_path: Path) -> None:
    with pytest.raises(KernelBuildError, match="'no-such-compiler' was not found") as caught:
        build_library(tmp_path, cxx="no-such-compiler")
    assert caught.value.tip is not None


def test_compile_error(tmp_path: Path) -> None:
    """A compiler that fails: its output is in the message and nothing is left behind."""
    compiler = tmp_path / "broken-compiler"
    compiler.write_text("#!/bin/sh\necho 'ops.cpp:1: no luck' >&2\nexit 3\n", encoding="utf-8")
    compiler.chmod(0o755)
    with pytest.raises(KernelBuildError, match=r"status 3:\nops.cpp:1: no luck"):
        build_library(tmp_path / "out", cxx=str(compiler))
    assert list((tmp_path / "out").iterdir()) == []


def test_unknown_isa(tmp_path: Path) -> None:
    with pytest.raises(KernelBuildError, match="'sse9' is unknown") as caught:
        build_library(tmp_path, "sse9")  # type: ignore[arg-type]
    assert all(name in str(caught.value.tip) for name in ISA_FLAGS)


class Layer(nn.Module):
    """A layer of every operator that a graph may hold; caches are inputs and mutated."""

    def __init__(self, ops: Operators) -> None:
        super().__init__()
        self.ops = ops
        self.register_buffer("qkv_bias", torch.randn(64))
        self.register_buffer("table", reference.pack_panels(torch.randn(50, 48)))
        for name, size in (("q", 64), ("k", 32), ("v", 32)):
            self.register_buffer(name, reference.pack_panels(torch.randn(size, 48) / 7))

    def forward(
        self,
        ids: Tensor,
        slots: Tensor,
        length: Tensor,
        mask: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
    ) -> Tensor:
        x = self.ops.embedding(ids, self.table, 50, 0)
        num_rows = x.shape[1]
        biases = [self.qkv_bias, self.qkv_bias[:32], self.qkv_bias[32:]]
        q, k, v = self.ops.linear(
            x, [self.q, self.k, self.v], biases, [64, 32, 32], [0, 0, 0], False
        )
        self.ops.kv_write(k_cache, k.view(1, num_rows, 2, 16).transpose(1, 2), slots)
        self.ops.kv_write(v_cache, v.view(1, num_rows, 2, 16).transpose(1, 2), slots)
        rows = self.ops.tree_attention(
            q.view(1, num_rows, 4, 16).transpose(1, 2), k_cache, v_cache, length, slots, mask,
            0.25, 0, 0.0,
        )  # fmt: skip
        (out,) = self.ops.linear_unbiased(rows.reshape(1, num_rows, 64)[..., :48].contiguous(),
                                 [self.table], [50], [0], False)  # fmt: skip
        return out.argmax(-1)


@pytest.mark.tiny
def test_operators_in_a_compiled_graph(ops: Operators, tmp_path: Path) -> None:
    """The graph gives the eager result and writes the caller's caches, for any row count."""
    layer = Layer(ops).eval()

    def inputs(num_rows: int) -> list[Tensor]:
        return [
            torch.randint(0, 50, (1, num_rows)),
            5 + torch.arange(num_rows),
            torch.tensor([5]),
            torch.ones(num_rows, num_rows, dtype=torch.bool).tril(),
            torch.randn(1, 2, 40, 16),
            torch.randn(1, 2, 40, 16),
        ]

    rows = torch.export.Dim("rows", min=2, max=32)
    shapes = ({1: rows}, {0: rows}, None, {0: rows, 1: rows}, None, None)
    with torch.no_grad():
        program = torch.export.export(layer, tuple(inputs(4)), dynamic_shapes=shapes)
        package = torch._inductor.aoti_compile_and_package(
            program,
            package_path=str(tmp_path / "layer.pt2"),
            inductor_configs={"cpp.threads": 1},
        )
        loader = torch._C._aoti.AOTIModelPackageLoader(package, "model", True, 1, -1)
        for num_rows in (2, 4, 19):
            eager = inputs(num_rows)
            compiled = [t.clone() for t in eager]
            wanted = layer(*eager)
            (output,) = loader.run(compiled)
            assert torch.equal(output, wanted)
            assert torch.equal(compiled[4], eager[4])
            assert torch.equal(compiled[5], eager[5])
