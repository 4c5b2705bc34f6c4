"""Times `linear` on cold weights against read bandwidth and MKL of the same run.

Weights are walked through a pool larger than the caches, as a decoding pass walks through a model.
The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from ygg_kernels.build import build_library
from ygg_kernels.ops import load_library

SHAPES = ((49152, 576), (1536, 576), (576, 1536))
ROWS = (1, 4, 8, 16, 64)
POOL_BYTES = 600_000_000


def seconds_per_call(call: Callable[[int], object], num_items: int, num_sweeps: int) -> float:
    """Lower quartile of the times of `call(i)`, which other work on the machine disturbs least."""
    times = []
    for _ in range(num_sweeps):
        for i in range(num_items):
            begin = time.perf_counter()
            call(i)
            times.append(time.perf_counter() - begin)
    return sorted(times)[len(times) // 4]


def measure_bandwidth() -> float:
    """Read bandwidth in bytes/s: the better of two reductions over cold tensors of 4 MB."""
    pool = [torch.ones(1_000_000) for _ in range(POOL_BYTES // 4_000_000)]
    calls = (lambda i: pool[i].sum(), lambda i: pool[i].dot(pool[i]))
    return pool[0].nbytes / min(seconds_per_call(call, len(pool), 5) for call in calls)


def measure_flops() -> float:
    """float32 FLOP/s of a square product."""
    a = torch.randn(768, 768)
    return 2 * 768**3 / seconds_per_call(lambda i: a @ a, 50, 2)


def make_pool(num_outputs: int, num_k: int, dtype: torch.dtype) -> list[Tensor]:
    """Random packed weights that fill POOL_BYTES."""
    first = torch.randn(-(-num_outputs // 16), num_k, 16).to(dtype)
    return [first.clone() for _ in range(max(1, -(-POOL_BYTES // first.nbytes)))]


def main() -> None:
    parser = argparse.ArgumentParser(prog="ygg_kernels.bench", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory of built libraries")
    parser.add_argument("--isa", default="native")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--sweeps", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    built = build_library(options.out, options.isa)
    ops = load_library(built.path, built.namespace)
    bandwidth, flops = measure_bandwidth(), measure_flops()
    print(f"read {bandwidth / 1e9:.1f} GB/s, MKL {flops / 1e9:.0f} GFLOP/s")
    results = []
    for num_outputs, num_k in SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            pool = make_pool(num_outputs, num_k, dtype)
            single = 0.0
            for num_rows in ROWS:
                x = torch.randn(num_rows, num_k)
                ops.linear_unbiased(x, pool[:1], [num_outputs])
                seconds = seconds_per_call(
                    lambda i, x=x, pool=pool, n=num_outputs: ops.linear_unbiased(
                        x, [pool[i]], [n]
                    ),
                    len(pool),
                    options.sweeps,
                )
                single = single or seconds
                rate = pool[0].nbytes / seconds
                compute = 2.0 * num_rows * num_outputs * num_k / seconds
                name = str(dtype).removeprefix("torch.")
                print(
                    f"{num_outputs:6}x{num_k:<5} {name:9} M={num_rows:<3} {seconds * 1e3:8.3f} ms "
                    f"x{seconds / single:5.2f}  {rate / bandwidth:5.0%} of bandwidth  "
                    f"{compute / flops:5.0%} of MKL",
                    flush=True,
                )
                results.append(
                    {"shape": [num_outputs, num_k], "dtype": name, "rows": num_rows,
                     "ms": seconds * 1e3, "bandwidth_share": rate / bandwidth,
                     "flops_share": compute / flops}
                )  # fmt: skip
    print(json.dumps({"bandwidth_bytes_per_s": bandwidth, "flops": flops, "linear": results}))


if __name__ == "__main__":
    main()
