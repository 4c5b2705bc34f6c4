"""Plain decoding of a bundle against transformers `generate` eager, float32, same threads,
alternating A B B A.

Also prefill of 512 tokens, and bfloat16 weights against float32. Prints medians of paired ratios;
the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import bundles
from drafting import fill
from prompts import evaluation_ids

from yggrt.loading import load


def paired(
    a: Callable[[], float], b: Callable[[], float], rounds: int
) -> tuple[float, float, float]:
    """Medians of a's and b's seconds, and of a / b over pairs taken as A B B A; one warm-up of
    each.
    """
    a(), b()
    first, second, ratios = [], [], []
    for turn in range(rounds):
        if turn % 2:
            y, x = b(), a()
        else:
            x, y = a(), b()
        first.append(x)
        second.append(y)
        ratios.append(x / y)
    return median(first), median(second), median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--skip-bfloat16", action="store_true")
    options = parser.parse_args()
    session = load(bundles.smol())
    threads = torch.get_num_threads()
    reference: Any = bundles.reference(bundles.smol_gguf())
    assert session.text is not None
    prompt = evaluation_ids(session.text, 1)["HumanEval"][0]
    num = options.tokens

    def reference_s() -> float:
        """Seconds of `generate` per token after the first."""
        return timed_reference(reference, prompt, num)

    def plain_s(of: Any = session) -> float:
        done = of.generate(prompt, max_tokens=num, plain=True, ignore_eos=True)
        return float(done.stats.tpot_ms / 1e3)

    results: dict[str, Any] = {"threads": threads}
    a, b, ratio = paired(reference_s, plain_s, options.rounds)
    results["plain"] = {"transformers_ms": a * 1e3, "plain_ms": b * 1e3, "speedup": ratio}
    print("plain", results["plain"], flush=True)
    long = (prompt * 8)[:512]
    a, b, ratio = paired(
        lambda: timed_reference_prefill(reference, long),
        lambda: timed_prefill(session, long),
        options.rounds,
    )
    results["prefill_512"] = {"transformers_ms": a * 1e3, "ours_ms": b * 1e3, "speedup": ratio}
    print("prefill_512", results["prefill_512"], flush=True)
    if not options.skip_bfloat16:
        narrow = load(bundles.smol("bfloat16"))
        a, b, ratio = paired(plain_s, lambda: plain_s(narrow), options.rounds)
        results["bfloat16"] = {"float32_ms": a * 1e3, "bfloat16_ms": b * 1e3, "speedup": ratio}
        print("bfloat16", results["bfloat16"], flush=True)
    print(json.dumps(results))


def timed_reference(reference: Any, prompt: list[int], num: int) -> float:
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    seconds = []
    with torch.no_grad():
        for tokens in (1, num):
            start = perf_counter()
            reference.generate(
                ids, attention_mask=mask, max_new_tokens=tokens, min_new_tokens=tokens,
                do_sample=False, pad_token_id=0,
            )  # fmt: skip
            seconds.append(perf_counter() - start)
    return (seconds[1] - seconds[0]) / (num - 1)


def timed_reference_prefill(reference: Any, ids: list[int]) -> float:
    tokens = torch.tensor([ids])
    start = perf_counter()
    with torch.no_grad():
        reference(tokens, use_cache=True, logits_to_keep=1)
    return perf_counter() - start


def timed_prefill(session: Any, ids: list[int]) -> float:
    cache = session.graphs.new_cache()
    start = perf_counter()
    fill(session.graphs, cache, ids)
    return perf_counter() - start


if __name__ == "__main__":
    main()
