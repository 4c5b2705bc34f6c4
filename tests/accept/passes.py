"""What a pass over V rows costs in a bundle, against ceilings that take turns with it.

One bundle after another; within one, row counts, attention and ceilings take turns, since shared
machines change speed from minute to minute. Ceilings: reading 256 MB in huge pages, and torch's
1024 x 1024 x 1024 float32 product. The attention share is the time of the layers' attention calls
at 2,000 tokens, on caches that are walked in turn, over the time of the pass there. Prints a
Markdown table; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from yggrt.bundle import Bundle
from yggrt.core.schema import Manifest
from yggrt.core.tree import TokenTree
from yggrt.inspect import describe_verifier
from yggrt.loading import load
from yggrt.memory import huge_pages

ROWS = (1, 4, 8, 16)
SHORT, LONG = 64, 2000
READ_FLOATS = 64 << 20
PRODUCT = 1024


def chain(rows: int) -> TokenTree:
    return TokenTree(tuple(range(5, 5 + rows)), tuple(range(-1, rows - 1)), (1.0,) * rows)


def attention_of(graphs: Any, manifest: Manifest, rows: int, length: int) -> Callable[[], object]:
    """The attention calls of one pass of a model with full attention."""
    model = manifest.model
    operators = getattr(torch.ops, manifest.operator_namespace)
    cache = graphs.new_cache().tensors
    for tensor in cache:
        if tensor.dtype != torch.uint8:
            tensor.normal_()
    heads = model.hidden_size // model.kv_layers[0].key_dim
    query = torch.randn(1, heads, rows, model.kv_layers[0].key_dim)
    rest = (
        torch.tensor([length]),
        torch.arange(length, length + rows),
        torch.ones(rows, rows, dtype=torch.bool).tril(),
    )

    def call() -> None:
        for keys, values in zip(cache[::2], cache[1::2], strict=True):
            operators.tree_attention(query, keys, values, *rest, 0.125, 0, 0.0)

    return call


def measure(path: Path, rounds: int) -> dict[str, Any]:
    """Median seconds of every call, by name, and what a pass is."""
    with Bundle.open(path) as opened:
        manifest = opened.manifest
    graphs = load(path).graphs
    cache = graphs.new_cache()
    calls: dict[str, Callable[[], object]] = {
        f"V={rows}": partial(graphs.verify, cache, chain(rows), SHORT)
        for rows in ROWS
        if rows in graphs.row_counts
    }
    calls["V=8 long"] = partial(graphs.verify, cache, chain(8), LONG)
    calls["attention"] = attention_of(graphs, manifest, 8, LONG)
    data = torch.frombuffer(huge_pages(4 * READ_FLOATS), dtype=torch.float32).fill_(1.0)
    square = torch.rand(PRODUCT, PRODUCT)
    calls["read"] = data.sum
    calls["product"] = lambda: square @ square
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            start = perf_counter()
            call()
            if turn:
                seconds[name].append(perf_counter() - start)
    times = {name: median(taken) for name, taken in seconds.items()}
    bandwidth, flops = 4 * READ_FLOATS / times["read"], 2 * PRODUCT**3 / times["product"]
    # Packed matrices have three dimensions.
    weights = [spec for spec in manifest.weights.values() if len(spec.shape) == 3]
    rates = {
        rows: 2 * manifest.model.num_parameters * rows / times[f"V={rows}"] / flops
        for rows in (8, 16)
    }
    return {
        "verifier": describe_verifier(manifest),
        "times_ms": {name: 1e3 * value for name, value in times.items()},
        "bandwidth": bandwidth,
        "flops": flops,
        "bandwidth_share": sum(spec.num_bytes for spec in weights) / times["V=1"] / bandwidth,
        "flops_share": rates,
        "attention_share": times["attention"] / times["V=8 long"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    print("| verifier | GB/s, GFLOP/s | V=1 ms | of bandwidth | T(4)/T(1) | T(8)/T(1) | T(16)/T(1)"
          " | of FLOP/s at 8, 16 | attention at 2,000 |")  # fmt: skip
    print("|---" * 9 + "|")
    results = []
    for path in options.bundles:
        found = measure(path, options.rounds)
        results.append(found)
        times, rates = found["times_ms"], found["flops_share"]
        one = times["V=1"]
        ratios = " | ".join(f"{times[f'V={rows}'] / one:.2f}" for rows in (4, 8, 16))
        print(f"| {found['verifier']} | {found['bandwidth'] / 1e9:.1f}, "
              f"{found['flops'] / 1e9:.0f} | {one:.1f} | {found['bandwidth_share']:.0%} | "
              f"{ratios} | {rates[8]:.0%}, {rates[16]:.0%} | {found['attention_share']:.0%} |",
              flush=True)  # fmt: skip
    print(json.dumps(results))


if __name__ == "__main__":
    main()
