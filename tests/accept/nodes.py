"""Logits of nodes in random trees against plain decoding of the same paths, bit for bit; with
`--gguf`, also logits of 2,000 positions against transformers on the dequantised file.

A case: a random prefix, a random tree that fills a random bucket, one of its nodes. Prints a line
per bundle; the last line is JSON. Exit 1 if any bit differs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import bundles
from drafting import fill, random_tree
from prompts import rows

from yggrt.bundle import Bundle
from yggrt.core.tree import TokenTree
from yggrt.inspect import describe_verifier
from yggrt.loading import load

NUM_POSITIONS = 2000
MAX_PREFIX = 400


def compare_nodes(graphs: Any, vocab: int, num_cases: int) -> dict[str, int]:
    """Cases, rows compared and rows whose logits differ in any bit."""
    rng = random.Random(7)
    counts = {"cases": num_cases, "rows": 0, "different": 0}
    buckets = graphs.row_counts
    for case in range(num_cases):
        length = rng.randrange(min(MAX_PREFIX, graphs.max_model_len - max(buckets)))
        prefix = [rng.randrange(vocab) for _ in range(length)]
        tree = random_tree(rng, buckets[case % len(buckets)], vocab, max_depth=12)
        cache = graphs.new_cache()
        fill(graphs, cache, prefix)
        out = graphs.verify(cache, tree, length)
        # Plain decoding writes over the rows that the tree left.
        for depth, node in enumerate(tree.path(rng.randrange(tree.num_nodes))):
            single = graphs.verify(cache, TokenTree.single(tree.tokens[node]), length + depth)
            counts["rows"] += 1
            counts["different"] += not torch.equal(single.logits[0], out.logits[node])
    return counts


def compare_reference(session: Any, reference: Any) -> dict[str, float]:
    """Lowest cosine of logits, and the share of positions with the same most likely token."""
    graphs = session.graphs
    texts = iter(rows("humaneval.jsonl"))
    width = graphs.row_counts[-1]
    cosines, same = [], []
    while len(cosines) < NUM_POSITIONS:
        row = next(texts)
        ids = session.text.encode(row["prompt"] + row["canonical_solution"])[:256]
        with torch.no_grad():
            wanted = reference(torch.tensor([ids])).logits[0]
        cache = graphs.new_cache()
        for start in range(0, len(ids) - width + 1, width):
            chain = TokenTree(
                tuple(ids[start : start + width]), tuple(range(-1, width - 1)), (1.0,) * width
            )
            found = graphs.verify(cache, chain, start).logits
            there = wanted[start : start + width]
            cosines += torch.nn.functional.cosine_similarity(found, there).tolist()
            same += (found.argmax(-1) == there.argmax(-1)).tolist()
    return {
        "positions": len(cosines),
        "lowest_cosine": min(cosines),
        "mean_cosine": sum(cosines) / len(cosines),
        "same_argmax": sum(same) / len(same),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--gguf", type=Path, help="the file that the bundles were built from")
    options = parser.parse_args()
    reference: Any = None if options.gguf is None else bundles.reference(options.gguf)
    results = []
    for path in options.bundles:
        with Bundle.open(path) as opened:
            manifest = opened.manifest
        session: Any = load(path)
        result: dict[str, Any] = {"bundle": path.stem, "verifier": describe_verifier(manifest)}
        result["buckets"] = list(session.graphs.row_counts)
        result |= compare_nodes(session.graphs, manifest.model.vocab_size, options.cases)
        if reference is not None:
            result |= compare_reference(session, reference)
        print(result, flush=True)
        results.append(result)
    print(json.dumps(results))
    return int(any(result["different"] for result in results))


if __name__ == "__main__":
    sys.exit(main())
