"""The README's table: transformers, llama.cpp on the same GGUF file, and bundles of it, in turns
on the bench prompts.

Needs llama-cpp-python, which the project does not install. Every prompt is answered by each in
turn, greedily, with the same threads; the order is reversed for every other prompt. Prints a
Markdown table of medians; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import bundles
from llama_cpp import Llama
from speed import timed_reference

from yggrt.loading import load
from yggrt.prompts import read_prompts
from yggrt.target import host_target


def llama_s(model: Llama, ids: list[int], num: int) -> float:
    """Seconds per token after the first."""
    model.reset()
    model.eval(ids)
    token = model.sample(temp=0.0)
    start = perf_counter()
    for _ in range(num - 1):
        model.eval([token])
        token = model.sample(temp=0.0)
    return (perf_counter() - start) / (num - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("float32", type=Path, help="SmolLM2 bundle")
    parser.add_argument("bfloat16", type=Path, help="the same with --dtype bfloat16")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--num-prompts", type=int, default=12)
    options = parser.parse_args()
    num = options.tokens
    full, narrow = load(options.float32), load(options.bfloat16)
    threads = torch.get_num_threads()
    gguf = bundles.smol_gguf()
    reference: Any = bundles.reference(gguf)
    llama = Llama(str(gguf), n_threads=threads, n_threads_batch=threads, n_ctx=1024, verbose=False)
    text = full.text
    assert text is not None

    def ours(session: Any, plain: bool) -> Callable[[list[int]], float]:
        def seconds(ids: list[int]) -> float:
            done = session.generate(ids, max_tokens=num, plain=plain, ignore_eos=True)
            return float(done.stats.tpot_ms) / 1e3

        return seconds

    llama_version = "llama-cpp-python " + version("llama-cpp-python")
    runs: dict[str, Callable[[list[int]], float]] = {
        f"transformers {version('transformers')} `generate`, eager, float32": lambda ids: (
            timed_reference(reference, ids, num)
        ),
        "yggrt float32, plain": ours(full, True),
        "yggrt float32, tree": ours(full, False),
        "yggrt bfloat16 weights, plain": ours(narrow, True),
        "yggrt bfloat16 weights, tree": ours(narrow, False),
        f"llama.cpp ({llama_version}), Q4_1 as stored": lambda ids: llama_s(llama, ids, num),
    }
    prompts = read_prompts(bundles.ROOT / "artifacts/prompts/bench.jsonl")[: options.num_prompts]
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number, prompt in enumerate(prompts):
        ids = prompt.encode(text)
        for name in list(runs)[:: -1 if number % 2 else 1]:
            seconds[name].append(runs[name](ids))
    first = median(seconds[next(iter(runs))])
    host = host_target().tuned_for
    print(f"{host.device}, {threads} threads, torch {version('torch')}; medians of {len(prompts)} "
          f"prompts x {num} tokens, batch 1, greedy\n")  # fmt: skip
    print("| | ms/token | against transformers |\n|---|---|---|")
    for name, taken in seconds.items():
        print(f"| {name} | {1e3 * median(taken):.1f} | {first / median(taken):.2f}x |")
    print(json.dumps({name: [1e3 * one for one in taken] for name, taken in seconds.items()}))


if __name__ == "__main__":
    main()
