"""The README's table: transformers, llama.cpp and bundles of the same GGUF file, in turns.

Needs llama-cpp-python, which the project does not install. Every prompt is answered by each in
turn, greedily, with the same threads; the order is reversed for every other prompt. Then prefill
of `--prefill` tokens, in turns as well. Prints Markdown tables of medians; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import bundles
from speed import timed_prefill, timed_reference, timed_reference_prefill

from yggrt.bundle import Bundle
from yggrt.inspect import describe_verifier
from yggrt.loading import load
from yggrt.prompts import read_prompts
from yggrt.target import host_target

Timed = Callable[[list[int], int], float]


class LlamaProcess:
    """llama.cpp in a process of its own: two OpenMP runtimes in one process crash."""

    def __init__(self, gguf: Path, threads: int) -> None:
        command = [sys.executable, __file__, "--serve", str(gguf), str(threads)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def seconds(self, kind: str, ids: list[int], num: int) -> float:
        """`plain` and `lookup`: seconds per token after the first; `prefill`: of all `ids`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([kind, ids, num]) + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def serve(gguf: str, threads: str) -> None:
    from llama_cpp import Llama, llama_cpp
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    # Its AMX weight buffers crash in virtual machines that announce AMX; these are off here.
    defaults = llama_cpp.llama_model_default_params

    def without_extra_buffers() -> Any:
        parameters = defaults()
        parameters.use_extra_bufts = False
        return parameters

    llama_cpp.llama_model_default_params = without_extra_buffers
    count = int(threads)
    common: dict[str, Any] = {
        "n_threads": count, "n_threads_batch": count, "n_ctx": 2304, "verbose": False,
    }  # fmt: skip
    plain = Llama(gguf, **common)
    lookup = Llama(
        gguf, **common, draft_model=LlamaPromptLookupDecoding(num_pred_tokens=5), logits_all=True
    )
    for line in sys.stdin:
        kind, ids, num = json.loads(line)
        if kind == "lookup":
            lookup.reset()
            tokens = lookup.generate(ids, temp=0.0)
            next(tokens)
            start = perf_counter()
            for _ in range(num - 1):
                next(tokens)
        else:
            plain.reset()
            begin = perf_counter()
            plain.eval(ids)
            token = plain.sample(temp=0.0)
            start = perf_counter()
            for _ in range(num - 1):
                plain.eval([token])
                token = plain.sample(temp=0.0)
        taken = start - begin if kind == "prefill" else (perf_counter() - start) / (num - 1)
        print(taken, flush=True)


def take_turns(
    runs: Mapping[str, Timed], prompts: list[list[int]], num: int
) -> dict[str, list[float]]:
    """Seconds of every run on every prompt, forwards and backwards by turns."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number, ids in enumerate(prompts):
        for name in list(runs)[:: -1 if number % 2 else 1]:
            seconds[name].append(runs[name](ids, num))
    return seconds


def print_table(title: str, seconds: Mapping[str, list[float]]) -> None:
    first = median(seconds[next(iter(seconds))])
    print(f"\n| {title} | ms | against the first |\n|---|---|---|")
    for name, taken in seconds.items():
        print(f"| {name} | {1e3 * median(taken):.1f} | {first / median(taken):.2f}x |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", type=Path, nargs="+", help="bundles of the GGUF file")
    parser.add_argument("--gguf", type=Path, help="the file; default: the one the recipe fetched")
    parser.add_argument("--prompts", type=Path, help="JSONL; default: the bench prompts")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--num-prompts", type=int, default=12)
    parser.add_argument("--prefill", type=int, nargs="*", default=[512, 2000])
    parser.add_argument("--rounds", type=int, default=4, help="of prefill")
    options = parser.parse_args()
    num = options.tokens
    sessions = {}
    for path in options.bundles:
        with Bundle.open(path) as opened:
            sessions[describe_verifier(opened.manifest)] = load(path)
    threads = torch.get_num_threads()
    gguf = options.gguf or bundles.smol_gguf()
    reference: Any = bundles.reference(gguf)
    llama = LlamaProcess(gguf, threads)

    def ours(session: Any, plain: bool) -> Timed:
        def seconds(ids: list[int], num: int) -> float:
            done = session.generate(ids, max_tokens=num, plain=plain, ignore_eos=True)
            return float(done.stats.tpot_ms) / 1e3

        return seconds

    runs: dict[str, Timed] = {
        f"transformers {version('transformers')} `generate`, eager, float32": (
            lambda ids, num: timed_reference(reference, ids, num)
        )
    }
    prefills: dict[str, Timed] = {
        next(iter(runs)): lambda ids, num: timed_reference_prefill(reference, ids)
    }
    for name, session in sessions.items():
        runs[f"yggrt, {name}: plain"] = ours(session, True)
        runs[f"yggrt, {name}: tree"] = ours(session, False)
        prefills[f"yggrt, {name}"] = lambda ids, num, session=session: timed_prefill(session, ids)
    name = f"llama.cpp (llama-cpp-python {version('llama-cpp-python')}), as stored, no AMX"
    runs[f"{name}: plain"] = lambda ids, num: llama.seconds("plain", ids, num)
    runs[f"{name}: prompt lookup"] = lambda ids, num: llama.seconds("lookup", ids, num)
    prefills[name] = lambda ids, num: llama.seconds("prefill", ids, 2)

    text = next(iter(sessions.values())).text
    assert text is not None
    source = options.prompts or bundles.ROOT / "artifacts/prompts/bench.jsonl"
    prompts = [one.encode(text) for one in read_prompts(source)[: options.num_prompts]]
    host = host_target().tuned_for
    print(f"{host.device}, {threads} threads, torch {version('torch')}; medians of {len(prompts)} "
          f"prompts x {num} tokens, batch 1, greedy")  # fmt: skip
    result = {"decode": take_turns(runs, prompts, num)}
    print_table("per token", result["decode"])
    for length in options.prefill:
        long = (prompts[0] * (length // len(prompts[0]) + 1))[:length]
        taken = take_turns(prefills, [long] * (options.rounds + 1), num)
        result[f"prefill_{length}"] = {name: times[1:] for name, times in taken.items()}
        print_table(f"prefill of {length} tokens", result[f"prefill_{length}"])
    print(json.dumps(result))


if __name__ == "__main__":
    serve(*sys.argv[2:]) if sys.argv[1:2] == ["--serve"] else main()
