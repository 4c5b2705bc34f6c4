"""Operators inside an AOTInductor package and inside a CUDA graph; GPU only.

`python -m ygg_kernels.triton.embed_check` prints one JSON object a result.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from ygg_kernels.triton import accept, attention, kv, linear, packing, topk
from ygg_kernels.triton.cases import Result, equal

SIZE, HEADS, ROWS, SLOTS, VOCAB = 64, 4, 8, 700, 5000


class Pass(torch.nn.Module):
    """One of each operator, in the order of a decoding pass."""

    def __init__(self) -> None:
        super().__init__()
        inner = SIZE * HEADS
        weight = torch.randn(inner, inner) / inner**0.5
        self.register_buffer("dense", weight.bfloat16())
        self.register_buffer("coded", packing.quantize(weight, packing.Q4_1))
        self.register_buffer("head", (torch.randn(VOCAB, inner) / inner**0.5).bfloat16())

    def forward(
        self, x: Tensor, k_cache: Tensor, v_cache: Tensor, length: Tensor, positions: Tensor,
        mask: Tensor, tokens: Tensor, parents: Tensor, sources: Tensor, targets: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """x [ROWS, inner]; the results of every operator, and the caches after the commit."""
        inner = SIZE * HEADS
        formats = [packing.CODES["bfloat16"], packing.Q4_1]
        first, second = linear.linear_unbiased(
            x, [self.dense, self.coded], [inner, inner], formats, False
        )
        q = (first + second).view(1, ROWS, HEADS, SIZE).transpose(1, 2)
        attended = attention.tree_attention(
            q, k_cache, v_cache, length, positions, mask, SIZE**-0.5, 0, 0.0
        )
        (logits,) = linear.linear_unbiased(
            attended.view(ROWS, inner), [self.head], [VOCAB], [formats[0]], False
        )
        scores, ids, sums = topk.topk_logsumexp(logits, 4)
        path, count, bonus = accept.accept(ids.select(1, 0).contiguous(), tokens, parents)
        kv.kv_commit([k_cache, v_cache], sources, targets)
        return attended, scores, ids, sums, path, count, bonus


def example_inputs() -> list[Tensor]:
    """Arguments of `Pass.forward`, on the CPU."""
    generator = torch.Generator().manual_seed(0)
    inner = SIZE * HEADS
    caches = [torch.randn(1, 2, SLOTS, SIZE, generator=generator).bfloat16() for _ in range(2)]
    parents = torch.tensor([-1, 0, 0, 1, 1, 2, 3, 3])
    mask = torch.eye(ROWS, dtype=torch.bool)
    for row in range(1, ROWS):
        mask[row] |= mask[parents[row]]
    length = torch.tensor([600])
    return [
        torch.randn(ROWS, inner, generator=generator).bfloat16(), *caches, length,
        length + mask.sum(dim=1) - 1, mask, torch.randint(0, VOCAB, (ROWS,), generator=generator),
        parents, torch.tensor([601, 603, -1]), torch.tensor([600, 601, -1]),
    ]  # fmt: skip


def _run(function: Callable[..., Any], inputs: list[Tensor]) -> list[Tensor]:
    """Results, then the caches, which the call changes."""
    copies = [tensor.clone() for tensor in inputs]
    return [*function(*copies), copies[1], copies[2]]


def check_package(module: Pass, inputs: list[Tensor]) -> Iterator[Result]:
    """A package gives the bits of eager calls."""
    wanted = _run(module, inputs)
    program = torch.export.export(module, tuple(inputs))
    with tempfile.TemporaryDirectory() as scratch:
        path = str(Path(scratch) / "pass.pt2")
        torch._inductor.aoti_compile_and_package(program, package_path=path)
        package = torch._inductor.aoti_load_package(path)
        found = _run(package, inputs)
    for place, (a, b) in enumerate(zip(found, wanted, strict=True)):
        yield equal("package", f"result {place}", a, b)


def check_graph(module: Pass, inputs: list[Tensor]) -> Iterator[Result]:
    """One captured graph serves other lengths: `length` and `positions` are read on the device."""
    static = [tensor.clone() for tensor in inputs]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        module(*static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = module(*static)
    for length in (600, 0, 1, 63, 511, 690):
        other = [tensor.clone() for tensor in inputs]
        other[4] += length - int(other[3])
        other[3].fill_(length)
        wanted = _run(module, other)
        for target, source in zip(static, other, strict=True):
            target.copy_(source)
        graph.replay()
        for place, (a, b) in enumerate(zip([*results, static[1], static[2]], wanted, strict=True)):
            yield equal("graph", f"length {length} result {place}", a, b)


def main() -> int:
    """Exits 1 where a result differs."""
    module = Pass().cuda()
    inputs = [tensor.cuda() for tensor in example_inputs()]
    failed = False
    for check in (check_graph, check_package):
        for result in check(module, inputs):
            print(json.dumps(asdict(result) | {"passed": result.passed}), flush=True)
            failed = failed or not result.passed
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
