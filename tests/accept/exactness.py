"""Greedy tokens of a bundle against transformers `generate`, and of every tree against plain
decoding.

Prints one line per comparison and, for every difference from transformers, the reference's gap
between its two largest logits there; the last line is JSON. Exit 1 if a tree differs from plain
decoding, if bits of visited rows differ, or if plain decoding differs from transformers where the
gap is above 1e-3.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import bundles
from drafting import RecordedDrafter
from prompts import evaluation_ids

from yggrt.core.passes import PassOutput
from yggrt.core.spec import parse_tree_spec
from yggrt.core.tree import TokenTree
from yggrt.engine import Engine
from yggrt.gate import OpenGate
from yggrt.loading import load
from yggrt.session import Session

TREES = {
    "chain 8": "sequence:depth=8",
    "W4 D4": "egt:width=4,depth=4,children=8,verify=16",
    "W8 D4 pruned to 16": "egt:width=8,depth=4,children=16,verify=16",
}
GAP = 1e-3


class Recorder:
    """Graphs that keep every tree with the logits of its rows."""

    def __init__(self, graphs: Any) -> None:
        self._graphs = graphs
        self.trees: list[tuple[TokenTree, torch.Tensor]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graphs, name)

    def verify(self, cache: Any, tree: TokenTree, length: int) -> PassOutput:
        out: PassOutput = self._graphs.verify(cache, tree, length)
        self.trees.append((tree, out.logits.clone()))
        return out


def decode(
    session: Session, drafter: Any, tree: str, prompt: list[int], num: int
) -> tuple[list[int], list[torch.Tensor], float]:
    """Ids, the logits behind every token after the first, and mean acceptance length."""
    graphs: Any = Recorder(session.graphs)
    engine = Engine(
        graphs, graphs.new_cache(), drafter, parse_tree_spec(tree), lambda rows, context: 1.0, 0.0,
        OpenGate(),
    )  # fmt: skip
    ids = [engine.start(prompt)]
    logits: list[torch.Tensor] = []
    while len(ids) < num and engine.room:
        step = engine.step()
        tokens, found = graphs.trees[-1]
        row = 0
        for token in step.tokens:
            logits.append(found[row])
            row = next((r for r in tokens.children(row) if tokens.tokens[r] == token), -1)
        ids += step.tokens
    return ids[:num], logits[: num - 1], engine.stats.mean_acceptance_length


def first_difference(a: list[int], b: list[int]) -> int | None:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--num-prompts", type=int, default=20, help="of each set")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, help="the same bits with any number")
    parser.add_argument("--no-reference", action="store_true", help="trees against plain only")
    options = parser.parse_args()
    session = load(bundles.smol(options.dtype), num_threads=options.threads)
    assert session.text is not None
    dtype = getattr(torch, options.dtype)
    reference = None if options.no_reference else bundles.reference(bundles.smol_gguf(), dtype)
    vocab = session.graphs.model.vocab_size  # type: ignore[attr-defined]
    totals = {"tokens": 0, "reference_differences": 0, "unexplained": 0}
    trees: dict[str, dict[str, Any]] = {
        f"{name}{kind}": {"differences": 0, "bit_differences": 0, "lengths": []}
        for name in TREES
        for kind in ("", ", full trees")
    }
    for name, prompts in evaluation_ids(session.text, options.num_prompts).items():
        for number, prompt in enumerate(prompts):
            plain, plain_logits, _ = decode(
                session, session._parts.drafter, "plain", prompt, options.max_tokens
            )
            totals["tokens"] += len(plain)
            if reference is not None:
                compare_reference(reference, name, number, prompt, plain, totals)
            for tree, spec in TREES.items():
                for kind, drafter in (
                    ("", session._parts.drafter),
                    (", full trees", RecordedDrafter(prompt, plain, vocab)),
                ):
                    ids, logits, length = decode(session, drafter, spec, prompt, len(plain))
                    result = trees[f"{tree}{kind}"]
                    result["lengths"].append(length)
                    at = first_difference(ids, plain)
                    if at is not None:
                        result["differences"] += 1
                        where = f"{name} {number} {tree}{kind}, token {at}"
                        print(f"{where}: {ids[at]}, plain {plain[at]}")
                    result["bit_differences"] += sum(
                        not torch.equal(a, b) for a, b in zip(logits, plain_logits, strict=True)
                    )
            print(f"{name} {number}: {len(plain)} tokens compared", flush=True)
    for result in trees.values():
        lengths = result.pop("lengths")
        result["mean_acceptance_length"] = round(sum(lengths) / len(lengths), 3)
    for name, result in trees.items():
        print(f"{name}: {result}")
    print(json.dumps({"dtype": options.dtype, **totals, "trees": trees}))
    wrong = sum(r["differences"] + r["bit_differences"] for r in trees.values())
    return int(bool(wrong or totals["unexplained"]))


def compare_reference(
    reference: Any,
    name: str,
    number: int,
    prompt: list[int],
    plain: list[int],
    totals: dict[str, int],
) -> None:
    """Counts a difference from `generate`; one is explained by a gap of at most GAP between the
    top two logits.
    """
    wanted = bundles.greedy_ids(reference, prompt, len(plain))
    at = first_difference(plain, wanted)
    if at is None:
        return
    totals["reference_differences"] += 1
    with torch.no_grad():
        logits = reference(torch.tensor([[*prompt, *wanted[:at]]])).logits[0, -1]
    top = logits.topk(2).values
    gap = float(top[0] - top[1])
    totals["unexplained"] += gap > GAP
    print(f"{name} {number}: token {at} is {plain[at]}, transformers {wanted[at]}, gap {gap:.1e}")


if __name__ == "__main__":
    sys.exit(main())
