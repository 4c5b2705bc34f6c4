"""What a pass over V rows costs in every given bundle, against ceilings of the same run.

Bundles and row counts take turns. Ceilings: read bandwidth (bytes of the matrices that a pass
reads, over its time) and torch's 1024 x 1024 x 1024 float32 product. The attention share is the
time of the layers' attention calls at the long context, on caches of their own walked in turn,
over the time of the pass there. Prints a Markdown table; the last line is JSON.
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
from yggrt.measure_host import measure_flops, measure_read_bandwidth

SHORT, LONG = 64, 2000


def chain(rows: int) -> TokenTree:
    return TokenTree(tuple(range(5, 5 + rows)), tuple(range(-1, rows - 1)), (1.0,) * rows)


def attention_of(session: Any, manifest: Manifest, rows: int, length: int) -> Callable[[], object]:
    """The attention calls of one pass of a model with full attention."""
    model = manifest.model
    operators = getattr(torch.ops, manifest.operator_namespace)
    cache = session.graphs.new_cache().tensors
    for tensor in cache:
        if tensor.dtype != torch.uint8:
            tensor.normal_()
    heads = model.hidden_size // model.kv_layers[0].key_dim
    query = torch.randn(1, heads, rows, model.kv_layers[0].key_dim)
    mask = torch.ones(rows, rows, dtype=torch.bool).tril()
    positions = torch.arange(length, length + rows)

    def call() -> None:
        for keys, values in zip(cache[::2], cache[1::2], strict=True):
            operators.tree_attention(
                query, keys, values, torch.tensor([length]), positions, mask, 0.125, 0, 0.0
            )

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    sessions = [load(path) for path in options.bundles]
    manifests = []
    for path in options.bundles:
        with Bundle.open(path) as opened:
            manifests.append(opened.manifest)
    threads = torch.get_num_threads()
    bandwidth, flops = measure_read_bandwidth(threads), measure_flops(threads)
    calls: dict[tuple[int, str], Callable[[], object]] = {}
    for number, session in enumerate(sessions):
        cache = session.graphs.new_cache()
        counts = [rows for rows in (1, 4, 8, 16) if rows in session.graphs.row_counts]
        for rows in counts:
            calls[number, f"short {rows}"] = partial(
                session.graphs.verify, cache, chain(rows), SHORT
            )
        calls[number, "long 8"] = partial(session.graphs.verify, cache, chain(8), LONG)
        calls[number, "attention"] = attention_of(session, manifests[number], 8, LONG)
    seconds: dict[tuple[int, str], list[float]] = {key: [] for key in calls}
    for turn in range(options.rounds + 1):
        for key, call in calls.items():
            start = perf_counter()
            call()
            if turn:
                seconds[key].append(perf_counter() - start)
    print(f"read {bandwidth / 1e9:.1f} GB/s, float32 product {flops / 1e9:.0f} GFLOP/s\n")
    print("| verifier | V=1 ms | of bandwidth | T(4)/T(1) | T(8)/T(1) | T(16)/T(1) |"
          " FLOP/s at 8 | at 16 | attention at 2,000 |")  # fmt: skip
    print("|---" * 9 + "|")
    result = []
    for number, manifest in enumerate(manifests):
        times = {
            name: median(taken) for (which, name), taken in seconds.items() if which == number
        }
        one = times["short 1"]
        weights = manifest.weights.values()
        num_bytes = sum(spec.num_bytes for spec in weights if len(spec.shape) == 3)
        rate = {
            rows: 2 * manifest.model.num_parameters * rows / times[f"short {rows}"] / flops
            for rows in (8, 16)
        }
        row = {
            "verifier": describe_verifier(manifest),
            "times_ms": {name: 1e3 * value for name, value in times.items()},
            "bandwidth_share": num_bytes / one / bandwidth,
            "flops_share": rate,
            "attention_share": times["attention"] / times["long 8"],
        }
        result.append(row)
        ratios = " | ".join(f"{times[f'short {rows}'] / one:.2f}" for rows in (4, 8, 16))
        print(f"| {row['verifier']} | {1e3 * one:.1f} | {row['bandwidth_share']:.0%} | {ratios} | "
              f"{rate[8]:.0%} | {rate[16]:.0%} | {row['attention_share']:.0%} |")  # fmt: skip
    print(json.dumps({"bandwidth": bandwidth, "flops": flops, "bundles": result}))


if __name__ == "__main__":
    main()
