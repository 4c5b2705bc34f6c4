"""Whether a drafter that shares the verifier's noise is right more often than one that ranks by
probability, at temperature 1, on bundles whose drafter is a model near the verifier.

Same prompts, same seeds, same trees; both emit the same tokens, or the script fails. Prints tokens
per pass of both and the interval of their difference by prompt; exit 1 if it is not above 0. The
last line is JSON.

--variation moves the drafter's logits by normal noise until its distributions differ from the
verifier's by that much in total variation: for a verifier that drafts for itself.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from sampling import prompts_of

from yggrt.bundle import Bundle
from yggrt.cache import open_cache
from yggrt.core.passes import DraftOutput, PassOutput
from yggrt.core.spec import parse_tree_spec
from yggrt.core.tree import TokenTree
from yggrt.drafters.lm import LmDrafter
from yggrt.engine import Engine
from yggrt.gate import OpenGate
from yggrt.graphs import AotDraftGraphs
from yggrt.interval import bootstrap_interval
from yggrt.loading import load, load_graphs
from yggrt.sampling.params import SamplingParams
from yggrt.sampling.sampler import Sampler


class Moved:
    """Draft graphs whose logits are off by normal noise of deviation `sigma`, always the same for
    the same call."""

    def __init__(self, graphs: Any, sigma: float) -> None:
        self._graphs, self._sigma = graphs, sigma

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graphs, name)

    def draft(self, cache: Any, tokens: Any, paths: Any, length: int) -> DraftOutput:
        out = self._graphs.draft(cache, tokens, paths, length)
        return out._replace(logits=self._moved(out.logits, (tuple(tokens), length)))

    def prefill(self, cache: Any, tokens: Any, length: int) -> PassOutput:
        out = self._graphs.prefill(cache, tokens, length)
        return out._replace(logits=self._moved(out.logits, (tuple(tokens), length)))

    def _moved(self, logits: torch.Tensor, call: Any) -> torch.Tensor:
        generator = torch.Generator().manual_seed(hash(call) % 2**31)
        return logits + self._sigma * torch.randn(logits.shape, generator=generator)


class Uncoupled(LmDrafter):
    """Ranks by probability, whatever noise the verifier adds."""

    def couple(self, noise: Any) -> None:
        super().couple(None)


def deviation_for(logits: torch.Tensor, variation: float) -> float:
    """The deviation of noise that moves softmaxes of logits [n, vocab] by `variation` on
    average."""
    noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0))
    low, high = 0.0, 16.0
    for _ in range(30):
        sigma = (low + high) / 2
        moved = (logits + sigma * noise).softmax(1)
        if (moved - logits.softmax(1)).abs().sum(1).mean() / 2 < variation:
            low = sigma
        else:
            high = sigma
    return low


def logits_of(graphs: Any, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
    """The verifier's logits after the prompts' last tokens."""
    rows = []
    for prompt in prompts:
        cache = graphs.new_cache()
        for i, token in enumerate(prompt[-8:]):
            rows.append(graphs.verify(cache, TokenTree.single(token), i).logits[0])
    return torch.stack(rows)


def tokens_per_pass(engine: Engine, prompt: list[int], seed: int, num: int, vocab: int) -> Any:
    sampler = Sampler(SamplingParams(temperature=1.0), prompt, vocab_size=vocab, seed=seed)
    output = [engine.start(prompt, sampler=sampler)]
    while len(output) < num:
        output.extend(engine.step().tokens)
    return engine.stats.mean_acceptance_length, output[:num]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--tree", default="egt:width=2,depth=3,children=4,verify=4")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--variation", type=float)
    options = parser.parse_args()
    prompts = prompts_of(load(options.bundle), options.prompts)
    cache = open_cache(None)
    with Bundle.open(options.bundle, cache=cache) as bundle:
        manifest = bundle.manifest
        threads = manifest.target.tuned_for.num_threads
        graphs = load_graphs(bundle, cache, num_threads=threads, mapped=False, on_note=print)
        draft: Any = AotDraftGraphs.from_bundle(bundle, bundle.unpack(cache))
    vocab = manifest.model.vocab_size
    if options.variation is not None:
        draft = Moved(draft, deviation_for(logits_of(graphs, prompts), options.variation))
    parameters: Any = manifest.schedule.drafter
    engines = [
        Engine(
            graphs, graphs.new_cache(), kind(draft, parameters, vocab),
            parse_tree_spec(options.tree), lambda rows, context: 1.0, 0.0, OpenGate(),
        )
        for kind in (LmDrafter, Uncoupled)
    ]  # fmt: skip
    found = []
    for prompt in prompts:
        pairs = []
        for seed in range(options.seeds):
            runs = [
                tokens_per_pass(engine, prompt, seed, options.tokens, vocab) for engine in engines
            ]
            assert runs[0][1] == runs[1][1], "the two emit different tokens"
            pairs.append((runs[0][0], runs[1][0]))
        found.append((fmean(a for a, _ in pairs), fmean(b for _, b in pairs)))
    gains = [a - b for a, b in found]
    interval = bootstrap_interval(gains)
    result = {
        "tree": options.tree,
        "num_prompts": len(found),
        "tokens_per_pass": {
            "coupled": fmean(a for a, _ in found),
            "ranked": fmean(b for _, b in found),
        },
        "gain": fmean(gains),
        "gain_interval": interval,
    }
    print(json.dumps(result))
    assert interval is not None
    sys.exit(0 if interval[0] > 0 else 1)


if __name__ == "__main__":
    main()
