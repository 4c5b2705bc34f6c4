"""Bytes that the kernels have to read, over time and over the bandwidth of a copy; GPU only.

`python -m ygg_kernels.triton.bandwidth` prints one JSON object a measurement. The GPU's cache is
emptied before every run, as weights are read once a pass.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton.testing
from ygg_kernels.triton import attention, kv, linear, packing, topk

SHAPES = ((4096, 4096), (14336, 4096), (4096, 14336), (128256, 4096))
ROWS = (1, 16, 64)
LENGTHS = (1024, 4096, 32768)
PARTS = ("q8_0", "q4_1")


def _time_ms(function: Callable[..., Any], *arguments: Any) -> float:
    """Median of a captured graph's replays, as a runtime calls it: Python's own time stays out."""
    function(*arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function(*arguments)
    return float(triton.testing.do_bench(graph.replay, warmup=10, rep=40, return_mode="median"))


def _normal(*size: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(size, dtype=dtype, device="cuda")


def copy_bandwidth() -> float:
    """Bytes read and written per second by torch's copy of 1 GiB."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / (_time_ms(target.copy_, source) / 1e3)


def measure() -> Iterator[tuple[str, int, float]]:
    """What was run, the bytes that it must read or write, milliseconds."""
    for num_n, num_k in SHAPES:
        for name in ("bfloat16", *PARTS):
            code = packing.CODES[name]
            if code in packing.DENSE:
                weight = _normal(num_n, num_k)
            else:
                # Random bytes are codes; as scales they may be NaN, which costs the same time.
                size = (num_n, packing.row_bytes(code, num_k))
                weight = torch.randint(0, 255, size, dtype=torch.uint8, device="cuda")
            for rows in ROWS:
                x = _normal(rows, num_k)
                time_ms = _time_ms(linear.linear_unbiased, x, [weight], [num_n], [code], False)
                num_bytes = weight.numel() * weight.element_size() + 2 * rows * (num_k + num_n)
                yield f"linear {name} N={num_n} K={num_k} V={rows}", num_bytes, time_ms
    slots = max(LENGTHS) + max(ROWS)
    caches = [_normal(1, 8, slots, 128) for _ in range(2)]
    for length in LENGTHS:
        for rows in ROWS:
            call = (
                _normal(1, 32, rows, 128), *caches,
                torch.tensor([length], device="cuda"),
                torch.arange(length, length + rows, device="cuda"),
                torch.ones(rows, rows, dtype=torch.bool, device="cuda").tril(),
                128**-0.5, 0, 0.0,
            )  # fmt: skip
            time_ms = _time_ms(attention.tree_attention, *call)
            num_bytes = 2 * 2 * 8 * 128 * (length + rows) + 2 * 2 * 32 * 128 * rows
            yield f"tree_attention 32/8 heads of 128 length={length} V={rows}", num_bytes, time_ms
    for k in (1, 8):
        logits = _normal(16, 128256)
        time_ms = _time_ms(topk.topk_logsumexp, logits, k)
        yield f"topk_logsumexp V=16 vocab=128256 k={k}", 2 * logits.numel(), time_ms
    moves = torch.arange(8, device="cuda")
    time_ms = _time_ms(kv.kv_commit, caches, moves + 9, moves)
    yield "kv_commit 2 caches 8 heads of 128 n=8", 2 * 2 * 2 * 8 * 8 * 128, time_ms


def main() -> int:
    """Prints the measurements."""
    ceiling = copy_bandwidth()
    print(json.dumps({"case": "copy of 1 GiB", "bytes_per_s": ceiling}), flush=True)
    for case, num_bytes, time_ms in measure():
        rate = num_bytes / (time_ms / 1e3)
        line = {"case": case, "time_ms": time_ms, "bytes_per_s": rate, "of_copy": rate / ceiling}
        print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
