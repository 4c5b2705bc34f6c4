"""Times `linear` in every format on cold weights, against torch's product and ceilings of the same
run, and compares its values with the reference.

Weights are walked through a pool larger than the caches, in huge pages, as a decoding pass walks
through a model. Ceilings: read bandwidth of a reduction over such a pool, and FLOP/s of torch's
1024 x 1024 x 1024 float32 product. "torch" is its float32 product of the same rows with a matrix
of this shape, cold as well. The error is relative to the largest output, in float64 for float32
rows; int8 rows must equal the integer reference. The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from ygg_kernels import reference
from ygg_kernels.build import build_library
from ygg_kernels.formats import FORMAT_NUMBERS, FORMATS
from ygg_kernels.ops import load_library

from yggrt.memory import huge_pages

SHAPES = ((49152, 576), (1536, 576), (576, 1536))
ROWS = (1, 2, 4, 8, 16, 64, 256)
POOL_BYTES = 600_000_000
DEFAULT_OUT = Path(tempfile.gettempdir()) / f"ygg-operators-{os.getuid()}"
# Columns whose values are compared: the reference decodes them all into float64.
CHECKED = 1536


def seconds_per_call(call: Callable[[int], object], num_items: int, num_sweeps: int) -> float:
    """Lower quartile of the times of `call(i)`, which other work on the machine disturbs least."""
    times = []
    for _ in range(num_sweeps):
        for i in range(num_items):
            begin = time.perf_counter()
            call(i)
            times.append(time.perf_counter() - begin)
    return sorted(times)[len(times) // 4]


def make_pool(first: Tensor) -> list[Tensor]:
    """Copies of `first` that fill POOL_BYTES, one behind another in huge pages."""
    step = -(-first.nbytes // 64) * 64
    count = max(1, -(-POOL_BYTES // step))
    memory = huge_pages(count * step)
    pool = []
    for i in range(count):
        raw = torch.frombuffer(memory, dtype=torch.uint8, count=first.nbytes, offset=i * step)
        pool.append(raw.view(first.dtype).view(first.shape).copy_(first))
    return pool


def measure_bandwidth() -> float:
    """Read bandwidth in bytes/s: the better of two reductions over cold tensors of 4 MB."""
    pool = make_pool(torch.ones(1_000_000))
    calls = (lambda i: pool[i].sum(), lambda i: pool[i].dot(pool[i]))
    return pool[0].nbytes / min(seconds_per_call(call, len(pool), 5) for call in calls)


def measure_flops() -> float:
    """float32 FLOP/s of a square product."""
    a = torch.randn(1024, 1024)
    return 2 * 1024**3 / seconds_per_call(lambda i: a @ a, 30, 2)


def random_panels(format: str, num_outputs: int, num_k: int) -> Tensor:
    """Packed weights of some format."""
    info = FORMATS[FORMAT_NUMBERS[format]]
    num_panels = -(-num_outputs // 16)
    if not info.group:
        return torch.randn(num_panels, num_k, 16).to(getattr(torch, format))
    shape = (num_panels, num_k // info.group, info.block_bytes)
    panels = torch.randint(0, 256, shape, dtype=torch.uint8)
    # The first bytes of a block are half floats; 0x2c2c is 0.065.
    panels[..., :64] = 0x2C
    return panels


def error_of(output: Tensor, x: Tensor, panels: Tensor, format: int, integer: bool) -> float:
    """Largest difference from the reference over the largest value, in the first columns."""
    count = min(CHECKED, output.shape[-1])
    rows = x if integer else x.double()
    [wanted] = reference.linear_unbiased(rows, [panels[: count // 16]], [count], [format], integer)
    return float((output[:, :count] - wanted).abs().max() / wanted.abs().max())


def variants(names: list[str]) -> list[tuple[str, bool]]:
    """(format, int8 rows) of each format asked for."""
    return [
        (name, integer)
        for name in names
        for integer in ((False, True) if FORMATS[FORMAT_NUMBERS[name]].group else (False,))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="ygg_kernels.bench", description=__doc__)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder of built libraries")
    parser.add_argument("--isa", default="native")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--sweeps", type=int, default=1)
    parser.add_argument("--formats", nargs="+", default=[format.name for format in FORMATS])
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    built = build_library(options.out, options.isa)
    ops = load_library(built.path, built.namespace)
    bandwidth, flops = measure_bandwidth(), measure_flops()
    print(f"read {bandwidth / 1e9:.1f} GB/s, float32 product {flops / 1e9:.0f} GFLOP/s, "
          f"{options.threads} threads\n")  # fmt: skip
    print("| matrix | format | rows | M | ms | T(M)/T(1) | of bandwidth | of FLOP/s | "
          "against torch | error |")  # fmt: skip
    print("|---" * 10 + "|")
    results = []
    for num_outputs, num_k in SHAPES:
        inputs = {rows: torch.randn(rows, num_k) for rows in options.rows}
        dense = make_pool(torch.randn(num_outputs, num_k))
        in_torch = {
            rows: seconds_per_call(
                lambda i, x=x, dense=dense: torch.nn.functional.linear(x, dense[i]),
                len(dense),
                options.sweeps,
            )
            for rows, x in inputs.items()
        }
        del dense
        for name, integer in variants(options.formats):
            if num_k % max(1, FORMATS[FORMAT_NUMBERS[name]].group):
                continue
            format = FORMAT_NUMBERS[name]
            pool = make_pool(random_panels(name, num_outputs, num_k))
            arguments = ([num_outputs], [format], integer)
            single = 0.0
            for num_rows, x in inputs.items():
                [output] = ops.linear_unbiased(x, pool[:1], *arguments)
                seconds = seconds_per_call(
                    lambda i, x=x, pool=pool, rest=arguments: ops.linear_unbiased(
                        x, [pool[i]], *rest
                    ),
                    len(pool),
                    options.sweeps,
                )
                single = single or seconds
                row = {
                    "shape": [num_outputs, num_k],
                    "format": name,
                    "activations": "int8" if integer else "float32",
                    "rows": num_rows,
                    "ms": seconds * 1e3,
                    "bandwidth_share": pool[0].nbytes / seconds / bandwidth,
                    "flops_share": 2.0 * num_rows * num_outputs * num_k / seconds / flops,
                    "torch_ms": in_torch[num_rows] * 1e3,
                    "error": error_of(output, x, pool[0], format, integer),
                }
                results.append(row)
                print(f"| {num_outputs} x {num_k} | {name} | {row['activations']} | {num_rows} | "
                      f"{row['ms']:.3f} | {seconds / single:.2f} | {row['bandwidth_share']:.0%} | "
                      f"{row['flops_share']:.0%} | {in_torch[num_rows] / seconds:.2f}x | "
                      f"{row['error']:.1e} |", flush=True)  # fmt: skip
    print(json.dumps({"bandwidth_bytes_per_s": bandwidth, "flops": flops, "linear": results}))


if __name__ == "__main__":
    main()
