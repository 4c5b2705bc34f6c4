"""Times `linear` in every format on cold weights, against ceilings of the same run.

Weights are walked through a pool larger than the caches, as a decoding pass walks through a model.
Ceilings: read bandwidth of a reduction, and FLOP/s of torch's 1024 x 1024 x 1024 float32 product.
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
from ygg_kernels.formats import FORMAT_NUMBERS, FORMATS
from ygg_kernels.ops import load_library

SHAPES = ((49152, 576), (1536, 576), (576, 1536))
ROWS = (1, 2, 4, 8, 16, 64)
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
    a = torch.randn(1024, 1024)
    return 2 * 1024**3 / seconds_per_call(lambda i: a @ a, 30, 2)


def random_panels(format: str, num_outputs: int, num_k: int) -> Tensor:
    """Packed weights of some format; half floats of random bits may be anything but are harmless
    here: time does not depend on values.
    """
    info = FORMATS[FORMAT_NUMBERS[format]]
    num_panels = -(-num_outputs // 16)
    if not info.group:
        return torch.randn(num_panels, num_k, 16).to(getattr(torch, format))
    shape = (num_panels, num_k // info.group, info.block_bytes)
    panels = torch.randint(0, 256, shape, dtype=torch.uint8)
    # The first bytes of a block are half floats; 0x2c2c is 0.065.
    panels[..., :64] = 0x2C
    return panels


def make_pool(format: str, num_outputs: int, num_k: int) -> list[Tensor]:
    """Random packed weights that fill POOL_BYTES."""
    first = random_panels(format, num_outputs, num_k)
    return [first.clone() for _ in range(max(1, -(-POOL_BYTES // first.nbytes)))]


def variants(names: list[str]) -> list[tuple[str, bool]]:
    """(format, int8 rows) of each format asked for."""
    return [
        (name, integer)
        for name in names
        for integer in ((False, True) if FORMATS[FORMAT_NUMBERS[name]].group else (False,))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="ygg_kernels.bench", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory of built libraries")
    parser.add_argument("--isa", default="native")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--sweeps", type=int, default=3)
    parser.add_argument("--formats", nargs="+", default=[format.name for format in FORMATS])
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    built = build_library(options.out, options.isa)
    ops = load_library(built.path, built.namespace)
    bandwidth, flops = measure_bandwidth(), measure_flops()
    print(f"read {bandwidth / 1e9:.1f} GB/s, float32 product {flops / 1e9:.0f} GFLOP/s")
    results = []
    for num_outputs, num_k in SHAPES:
        for name, integer in variants(options.formats):
            if num_k % max(1, FORMATS[FORMAT_NUMBERS[name]].group):
                continue
            pool = make_pool(name, num_outputs, num_k)
            arguments = ([num_outputs], [FORMAT_NUMBERS[name]], integer)
            single = 0.0
            for num_rows in options.rows:
                x = torch.randn(num_rows, num_k)
                ops.linear_unbiased(x, pool[:1], *arguments)
                seconds = seconds_per_call(
                    lambda i, x=x, pool=pool, rest=arguments: ops.linear_unbiased(
                        x, [pool[i]], *rest
                    ),
                    len(pool),
                    options.sweeps,
                )
                single = single or seconds
                rate = pool[0].nbytes / seconds
                compute = 2.0 * num_rows * num_outputs * num_k / seconds
                rows = "int8" if integer else "float32"
                print(
                    f"{num_outputs:6}x{num_k:<5} {name:9} {rows:8} M={num_rows:<3} "
                    f"{seconds * 1e3:8.3f} ms x{seconds / single:5.2f}  "
                    f"{rate / bandwidth:5.0%} of bandwidth {compute / flops:5.0%} of FLOP/s",
                    flush=True,
                )
                results.append(
                    {"shape": [num_outputs, num_k], "format": name, "activations": rows,
                     "rows": num_rows, "ms": seconds * 1e3, "bandwidth_share": rate / bandwidth,
                     "flops_share": compute / flops}
                )  # fmt: skip
    print(json.dumps({"bandwidth_bytes_per_s": bandwidth, "flops": flops, "linear": results}))


if __name__ == "__main__":
    main()
