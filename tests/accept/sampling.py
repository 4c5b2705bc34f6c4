"""Sampling at length. Exit 1 if a check fails; the last line is JSON.

Without a flag: tokens under full trees, and under the bundle's own drafter, against plain
decoding, at each temperature, for each option alone and ten mixes of them.
--law: 200,000 runs of the sampler over three tokens of a scripted model of eight, chi-square over
the 512 cells of their joint law.
--cost: the share of a plain pass that sampling takes, over real prompts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import bundles
from drafting import RecordedDrafter
from prompts import evaluation_ids
from sampling_requests import TEMPERATURES, alone, mixes

from yggrt.core.passes import PassOutput
from yggrt.core.spec import parse_tree_spec
from yggrt.engine import Engine
from yggrt.gate import OpenGate
from yggrt.loading import load
from yggrt.sampling.params import SamplingParams
from yggrt.sampling.sampler import Sampler
from yggrt.session import Session

TREES = (
    "sequence:depth=8",
    "egt:width=4,depth=4,children=8,verify=16",
    "static:parents=0/0/0/1/1/2/4/5/6/7",
)
COSTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "top_k 50": {"top_k": 50},
    "top_p 0.95": {"top_p": 0.95},
    "min_p 0.05": {"min_p": 0.05},
    "penalties": {
        "repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.5
    },
    "top_k, top_p, penalties": {
        "top_k": 50, "top_p": 0.95, "repetition_penalty": 1.1, "presence_penalty": 0.5,
    },
}  # fmt: skip


def prompts_of(session: Session, num: int, max_prompt: int = 64) -> list[list[int]]:
    """Half raw, half chat; random ids where the tokenizer is a toy's."""
    vocab: int = session.graphs.model.vocab_size  # type: ignore[attr-defined]
    if vocab < 1000:
        generator = torch.Generator().manual_seed(0)
        lengths = [1 + 3 * i % 40 for i in range(num)]
        return [torch.randint(3, vocab, (n,), generator=generator).tolist() for n in lengths]
    assert session.text is not None
    sets = evaluation_ids(session.text, (num + 1) // 2, max_prompt)
    return [prompt for pair in zip(*sets.values(), strict=True) for prompt in pair][:num]


def full_tree_ids(
    session: Session, tree: str, prompt: list[int], plain: list[int], options: dict[str, Any]
) -> tuple[list[int], int]:
    """As many tokens as `plain` under trees full of siblings around it; and the passes."""
    graphs: Any = session.graphs
    vocab = graphs.model.vocab_size
    engine = Engine(
        graphs, session._cache, RecordedDrafter(prompt, plain, vocab), parse_tree_spec(tree),
        lambda rows, context: 1.0, 0.0, OpenGate(),
    )  # fmt: skip
    sampler = Sampler(
        SamplingParams(**options), prompt, vocab_size=vocab, seed=options["seed"],
        ending_ids=session._eos_ids,
    )  # fmt: skip
    ids = [engine.start(prompt, sampler=sampler)]
    while len(ids) < len(plain):
        ids += engine.step().tokens
    return ids[: len(plain)], engine.stats.num_passes


def compare(session: Session, num_prompts: int, max_tokens: int, rotate: bool) -> dict[str, Any]:
    """Differences between trees and plain decoding; with `rotate`, one tree per case in turn."""
    prompts = prompts_of(session, num_prompts)
    eos_ids = list(session._eos_ids)
    options = alone(eos_ids, [prompts[0][-1], *range(20, 40)])
    requests = {**options, **mixes(options, 10)}
    result = {"cases": 0, "tokens": 0, "differences": 0, "passes": 0}
    started = time.perf_counter()
    for temperature in TEMPERATURES:
        for place, (name, request) in enumerate(requests.items()):
            for number, prompt in enumerate(prompts):
                asked = {"temperature": temperature, "seed": number, **request}
                plain = session.generate(prompt, max_tokens=max_tokens, plain=True, **asked).ids
                trees = (TREES[(place + number) % 3],) if rotate else TREES
                found = {}
                for tree in trees:
                    found[tree], passes = full_tree_ids(session, tree, prompt, plain, asked)
                    result["passes"] += passes
                drafted = session.generate(prompt, max_tokens=max_tokens, gated=False, **asked)
                found["own drafter"] = drafted.ids
                for tree, ids in found.items():
                    result["cases"] += 1
                    result["tokens"] += len(plain)
                    if ids != plain:
                        result["differences"] += 1
                        print(f"T={temperature} {name}, prompt {number}, {tree}: {ids} {plain}")
        seconds = time.perf_counter() - started
        print(f"T={temperature}: {result}, {seconds:.0f} s", flush=True)
    return result


def joint_law(num: int) -> dict[str, Any]:
    """Chi-square of the real sampler's first three tokens."""
    generator = torch.Generator().manual_seed(2)
    tables = [torch.randn(*[8] * (place + 1), generator=generator) * 1.2 for place in range(3)]
    nothing: Any = None
    counts = torch.zeros(8, 8, 8, dtype=torch.float64)
    params = SamplingParams(temperature=1.0)
    for seed in range(num):
        sampler = Sampler(params, [0], vocab_size=8, seed=seed)
        path: tuple[int, ...] = ()
        for place, table in enumerate(tables):
            logits = table[path][None]
            out = PassOutput([0], logits, nothing, nothing)
            path = (*path, sampler(out)(0, 1 + place))
        counts[path] += 1
    probs = [table.double().softmax(-1) for table in tables]
    expected = num * probs[0][:, None, None] * probs[1][:, :, None] * probs[2]
    rare = expected < 5
    observed = torch.cat([counts[~rare], counts[rare].sum().reshape(1)])
    wanted = torch.cat([expected[~rare], expected[rare].sum().reshape(1)])
    statistic = ((observed - wanted) ** 2 / wanted).sum() / 2
    degrees = torch.tensor((len(wanted) - 1) / 2, dtype=torch.float64)
    p = float(torch.special.gammaincc(degrees, statistic))
    return {"draws": num, "cells": len(wanted), "chi_square": 2 * float(statistic), "p": p}


def cost(session: Session, num_prompts: int, max_tokens: int) -> dict[str, Any]:
    """Milliseconds of sampling and of the verify pass, per plain pass, medians over prompts; all
    variants in turn on each prompt.
    """
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in COSTS}
    for number, prompt in enumerate(prompts_of(session, num_prompts)):
        for name, request in COSTS.items():
            stats = session.generate(
                prompt, max_tokens=max_tokens, plain=True, temperature=1.0, seed=number,
                ignore_eos=True, **request,
            ).stats  # fmt: skip
            if number:  # the first prompt warms up
                stages = stats.stage_ms
                sampling, verify = stages["accept"], stages["verify"]
                found[name].append((sampling / stats.num_passes, verify / stats.num_passes))
    result = {}
    for name, pairs in found.items():
        sampling, verify = (median(values) for values in zip(*pairs, strict=True))
        share = median(a / (a + b) for a, b in pairs)
        result[name] = {
            "sampling_ms": round(sampling, 4), "verify_ms": round(verify, 3),
            "share": round(share, 4),
        }  # fmt: skip
        print(f"{name:26} {1e3 * sampling:6.0f} us of {verify:6.2f} ms: {share:.2%}")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", nargs="?", help="a .ygg, or tiny or smol, which are built")
    parser.add_argument("--num-prompts", type=int, default=20)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, help="the same tokens with any number")
    parser.add_argument("--rotate", action="store_true", help="one tree per case, in turn")
    parser.add_argument("--law", action="store_true")
    parser.add_argument("--cost", action="store_true")
    options = parser.parse_args()
    if options.law:
        law = joint_law(200_000)
        print(json.dumps(law))
        return int(law["p"] < 1e-3)
    if options.bundle is None:
        parser.error("give a bundle, or --law")
    known = {"tiny": lambda: bundles.tiny("static"), "smol": bundles.smol}
    path = known.get(options.bundle, lambda: Path(options.bundle))()
    session = load(path, num_threads=options.threads)
    if options.cost:
        print(json.dumps(cost(session, options.num_prompts, options.max_tokens)))
        return 0
    result = compare(session, options.num_prompts, options.max_tokens, options.rotate)
    print(json.dumps({"bundle": str(options.bundle), **result}))
    return int(bool(result["differences"]))


if __name__ == "__main__":
    sys.exit(main())
