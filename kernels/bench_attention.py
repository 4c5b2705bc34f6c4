"""Times `tree_attention` over cold caches against torch's attention and the machine's ceilings.

A chain of rows over a prefix, with the heads of a small model. The caches of several layers are
walked in turn, as a pass walks through a model. Torch's scaled_dot_product_attention gets float32
keys and values that are already expanded to all query heads and a float mask, and its best time
counts. The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from ygg_kernels.bench import DEFAULT_OUT, measure_bandwidth, measure_flops, seconds_per_call
from ygg_kernels.build import build_library
from ygg_kernels.ops import Operators, load_library

NUM_HEADS, NUM_KV_HEADS, HEAD_SIZE, NUM_LAYERS = 9, 3, 64, 30
ROWS = (1, 8, 64, 256)
LENGTHS = (64, 512, 2000)
KV_TYPES = ("float32", "bfloat16", "int8")


def make_caches(ops: Operators, kind: str, num_slots: int) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of every layer, random."""
    dtype = torch.uint8 if kind == "int8" else getattr(torch, kind)
    size = HEAD_SIZE + 4 if kind == "int8" else HEAD_SIZE
    layers = []
    for _ in range(NUM_LAYERS):
        caches = [torch.zeros(1, NUM_KV_HEADS, num_slots, size, dtype=dtype) for _ in range(2)]
        for cache in caches:
            rows = torch.randn(1, NUM_KV_HEADS, num_slots, HEAD_SIZE)
            ops.kv_write(cache, rows, torch.arange(num_slots))
        layers.append((caches[0], caches[1]))
    return layers


def time_ours(
    ops: Operators, layers: list[tuple[Tensor, Tensor]], num_rows: int, length: int, sweeps: int
) -> float:
    q = torch.randn(1, num_rows, NUM_HEADS, HEAD_SIZE).transpose(1, 2)
    mask = torch.ones(num_rows, num_rows, dtype=torch.bool).tril()
    positions = torch.arange(length, length + num_rows)
    start = torch.tensor([length])

    def call(i: int) -> Tensor:
        return ops.tree_attention(q, *layers[i], start, positions, mask, HEAD_SIZE**-0.5, 0, 0.0)

    return seconds_per_call(call, NUM_LAYERS, sweeps)


def time_torch(num_rows: int, length: int, sweeps: int) -> float:
    q = torch.randn(1, NUM_HEADS, num_rows, HEAD_SIZE)
    shape = (1, NUM_HEADS, length + num_rows, HEAD_SIZE)
    layers = [(torch.randn(shape), torch.randn(shape)) for _ in range(NUM_LAYERS // NUM_KV_HEADS)]
    mask = torch.zeros(num_rows, length + num_rows)
    mask[:, length:].masked_fill_(
        ~torch.ones(num_rows, num_rows, dtype=torch.bool).tril(), float("-inf")
    )

    def call(i: int) -> Tensor:
        keys, values = layers[i]
        return functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)

    return seconds_per_call(call, len(layers), sweeps)


def main() -> None:
    parser = argparse.ArgumentParser(prog="ygg_kernels.bench_attention", description=__doc__)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder of built libraries")
    parser.add_argument("--isa", default="native")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--sweeps", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    built = build_library(options.out, options.isa)
    ops = load_library(built.path, built.namespace)
    bandwidth, flops = measure_bandwidth(), measure_flops()
    print(f"read {bandwidth / 1e9:.1f} GB/s, MKL {flops / 1e9:.0f} GFLOP/s")
    caches = {kind: make_caches(ops, kind, max(LENGTHS) + max(ROWS)) for kind in KV_TYPES}
    results = []
    for num_rows in ROWS:
        for length in LENGTHS:
            torch_seconds = time_torch(num_rows, length, options.sweeps)
            num_products = NUM_HEADS * num_rows * (length + (num_rows + 1) / 2)
            for kind, layers in caches.items():
                seconds = time_ours(ops, layers, num_rows, length, options.sweeps)
                row_bytes = layers[0][0].shape[3] * layers[0][0].element_size()
                num_bytes = 2 * NUM_KV_HEADS * (length + num_rows) * row_bytes
                result = {
                    "rows": num_rows, "length": length, "kv": kind, "ms": seconds * 1e3,
                    "torch_ms": torch_seconds * 1e3,
                    "bandwidth_share": num_bytes / seconds / bandwidth,
                    "flops_share": 4 * HEAD_SIZE * num_products / seconds / flops,
                }  # fmt: skip
                print(
                    f"V={num_rows:<4} length={length:<5} {kind:9} {seconds * 1e3:8.3f} ms  "
                    f"torch {torch_seconds * 1e3:8.3f} ms  "
                    f"{result['bandwidth_share']:5.0%} of bandwidth  "
                    f"{result['flops_share']:5.0%} of MKL",
                    flush=True,
                )
                results.append(result)
    print(json.dumps({"bandwidth_bytes_per_s": bandwidth, "flops": flops, "attention": results}))


if __name__ == "__main__":
    main()
