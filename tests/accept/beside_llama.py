"""The README's table: transformers, llama.cpp on the same GGUF file, and bundles of it, in turns
on the bench prompts.

Needs llama-cpp-python, which the project does not install. Every prompt is answered by each in
turn, greedily, with the same threads; the order is reversed for every other prompt. Prints a
Markdown table of medians; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
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
from speed import timed_reference

from yggrt.loading import load
from yggrt.prompts import read_prompts
from yggrt.target import host_target


class LlamaProcess:
    """llama.cpp in a process of its own: two OpenMP runtimes in one process crash."""

    def __init__(self, gguf: Path, threads: int) -> None:
        command = [sys.executable, __file__, "--serve", str(gguf), str(threads)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def seconds(self, ids: list[int], num: int) -> float:
        """Seconds per token after the first."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([ids, num]) + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def serve(gguf: str, threads: str) -> None:
    from llama_cpp import Llama, llama_cpp

    # Its AMX weight buffers crash in virtual machines that announce AMX; these are off here.
    defaults = llama_cpp.llama_model_default_params

    def without_extra_buffers() -> Any:
        parameters = defaults()
        parameters.use_extra_bufts = False
        return parameters

    llama_cpp.llama_model_default_params = without_extra_buffers
    num_threads = int(threads)
    model = Llama(
        gguf, n_threads=num_threads, n_threads_batch=num_threads, n_ctx=1024, verbose=False
    )
    for line in sys.stdin:
        ids, num = json.loads(line)
        model.reset()
        model.eval(ids)
        token = model.sample(temp=0.0)
        start = perf_counter()
        for _ in range(num - 1):
            model.eval([token])
            token = model.sample(temp=0.0)
        print((perf_counter() - start) / (num - 1), flush=True)


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
    llama = LlamaProcess(gguf, threads)
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
        f"llama.cpp ({llama_version}), Q4_1 as stored, no AMX": lambda ids: llama.seconds(
            ids, num
        ),
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
    serve(*sys.argv[2:]) if sys.argv[1:2] == ["--serve"] else main()
