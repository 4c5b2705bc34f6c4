"""What a trained head is worth: tokens per pass on three prompt sets that nobody trained on.

    python tests/accept/drafter.py BUNDLE [--num 20] [--tokens 96] [--threads N]

BUNDLE drafts with a head. The verifier answers each prompt once (greedily); then trees are grown
over the recorded answers by the engine itself, whole and with the gate open: the head alone, the
same with n-grams, n-grams alone. Mean acceptance length counts the bonus token, passes walk as
decoding does. Beside it what the head says of the first token at each root (agreement), and what
a draft step takes. The last line is JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))

from prompts import chat_sets, script_options

from yggrt.bundle import Bundle
from yggrt.cache import open_cache
from yggrt.core.schema import EagleDrafter as Parameters
from yggrt.core.spec import parse_tree_spec
from yggrt.core.tree import TokenTree
from yggrt.drafters import Drafter
from yggrt.drafters.calibrate import Recording
from yggrt.drafters.eagle import EagleDrafter
from yggrt.drafters.joined import JoinedDrafter
from yggrt.drafters.ngram import DEFAULT_PARAMETERS, NgramDrafter
from yggrt.gate import OpenGate
from yggrt.interval import bootstrap_interval
from yggrt.loading import load_draft_graphs, load_graphs, load_text
from yggrt.replay import replay
from yggrt.scheduling import record_answers, with_hidden

# Of the table: 16 nodes of the head's, at most 21 with n-grams, the root beside them.
HEAD = "egt:width=4,depth=4,children=16,verify=17"
JOINED = "egt:width=4,depth=4,children=16,verify=22"
NGRAM = "egt:width=2,depth=8,children=4,verify=22"
CHAIN = "sequence:depth=5"
CONTEXT = 200


def lengths(drafter: Drafter, spec: str, recordings: Sequence[Recording]) -> list[float]:
    """Tokens per pass of each recording."""
    tree = parse_tree_spec(spec)
    row_counts = tuple(range(1, tree.verify + 1))
    found = [
        replay(drafter, tree, [one], row_counts, lambda rows, context: 1.0, 0.0, OpenGate())
        for one in recordings
    ]
    return [one.num_tokens / one.num_passes for one in found if one.num_passes]


def step_ms(graphs: Any, width: int) -> float:
    cache, features = graphs.new_cache(), torch.zeros(width, graphs.feature_size)
    paths = [(0, 1 + i) if width > 1 else (0,) for i in range(width)]
    return timed(lambda: graphs.draft(cache, [0] * width, paths, CONTEXT, features))


def plain_ms(graphs: Any) -> float:
    cache, root = graphs.new_cache(), TokenTree.single(0)
    return timed(lambda: graphs.verify(cache, root, CONTEXT))


def timed(call: Callable[[], object]) -> float:
    """Milliseconds of a call, the median of 50 after 10."""
    taken = []
    for _ in range(60):
        begin = perf_counter()
        call()
        taken.append(perf_counter() - begin)
    return 1e3 * median(taken[10:])


def main() -> None:
    options = script_options(__doc__)
    cache = open_cache(None)
    with Bundle.open(options.bundle, cache=cache) as bundle:
        manifest = bundle.manifest
        threads = options.threads or manifest.target.tuned_for.num_threads
        graphs = load_graphs(bundle, cache, num_threads=threads, mapped=False, on_note=print)
        draft = load_draft_graphs(bundle, cache)
        text = load_text(bundle)
    parameters = manifest.schedule.drafter
    assert isinstance(parameters, Parameters), "the bundle's drafter is no head"
    assert draft is not None
    assert text is not None
    head, ngram = EagleDrafter(draft, parameters), NgramDrafter(DEFAULT_PARAMETERS)
    ways: dict[str, tuple[Drafter, str]] = {
        "chain of 5": (head, CHAIN),
        "head, 16 nodes": (head, HEAD),
        "n-grams, 21": (ngram, NGRAM),
        "both, 21": (JoinedDrafter(head, ngram), JOINED),
    }
    print("| prompts | " + " | ".join(ways) + " |")
    print("|---|" + "---|" * len(ways))
    report: dict[str, Any] = {}
    room = graphs.max_model_len - options.tokens - 1
    for name, prompts in chat_sets(text, options.num, room).items():
        answers, _ = record_answers(
            graphs, NgramDrafter(DEFAULT_PARAMETERS), prompts, options.tokens,
            manifest.model.eos_ids,
        )  # fmt: skip
        recordings = with_hidden(graphs, answers)
        report[name] = {}
        cells = []
        for way, (drafter, spec) in ways.items():
            found = lengths(drafter, spec, recordings)
            interval = bootstrap_interval(found) or (0.0, 0.0)
            report[name][way] = {"mean": fmean(found), "interval": interval}
            cells.append(f"{fmean(found):.2f} [{interval[0]:.2f}, {interval[1]:.2f}]")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    report["step_ms"] = {width: step_ms(draft, width) for width in draft.widths}
    report["plain_pass_ms"] = plain_ms(graphs)
    print(f"draft step {report['step_ms']}, plain pass {report['plain_pass_ms']:.2f} ms")
    report["agreement"] = parameters.agreement
    print(json.dumps(report))


if __name__ == "__main__":
    main()
