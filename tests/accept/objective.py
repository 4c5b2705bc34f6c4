"""Whether the objective predicts what decoding does, and what choosing by it brings.

Parts, each at most some two minutes on a quiet machine:

  predict   predicted against measured time per token of random trees under random plans: median
            error, rank correlation; and of all of them the one that the search takes against the
            best
  aal       the tree that is fastest by the objective against the one that accepts most per pass
  forms     the ratio of each pass against the lagrangian, same tree
  never     a drafter that is always wrong, against plain decoding
  host      time of a pass beside the graphs

Everything that is compared takes turns. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]


from yggrt.bundle import Bundle
from yggrt.busy import BusyMeter
from yggrt.cache import open_cache
from yggrt.core.objective import RATIO, Objective
from yggrt.core.plans import DraftKind, plans
from yggrt.core.schema import TreeSpec
from yggrt.core.search import PLAIN, distinct, plain_replay, search_schedule
from yggrt.core.spec import draft_steps, format_tree_spec, parse_tree_spec
from yggrt.drafters import Candidate, Drafter
from yggrt.drafters.calibrate import Recording
from yggrt.engine import Engine
from yggrt.gate import Gate, OpenGate, RunningGate
from yggrt.latency import LatencyTable
from yggrt.loading import load_draft_graphs, load_graphs
from yggrt.measure import Measured, spread_contexts, time_passes, verifier_passes
from yggrt.recordings import bundle_folds
from yggrt.replay import replay
from yggrt.scheduling import (
    Costs,
    Run,
    decode,
    measured_costs,
    model_costs,
    record_answers,
)
from yggrt.tune import verify_rows


@dataclass
class Bench:
    """A bundle's graphs with prompts whose answers are known, and what passes cost here."""

    graphs: Any
    manifest: Any
    drafter: Drafter
    recordings: list[Recording]
    rows: list[int]
    costs: Costs

    def table(self, seconds: float) -> Measured:
        contexts = [c for c in spread_contexts(self.graphs.max_model_len) if c <= 512]
        passes = [one for one in verifier_passes(self.graphs, self.rows) if one.kind == "verify"]
        return time_passes(passes, contexts, 8, budget_s=seconds)

    def engine(
        self,
        tree: str,
        *,
        drafter: Drafter | None = None,
        latency: Callable[[int, int], float] | None = None,
        gate: Gate | None = None,
        objective: Objective = RATIO,
    ) -> Engine:
        return Engine(
            self.graphs,
            self.graphs.new_cache(),
            drafter or self.drafter,
            parse_tree_spec(tree),
            latency or self.costs.latency,
            self.costs.rest_s,
            gate or RunningGate(),
            objective=objective,
            draft_step=self.costs.draft_step,
        )


def prepare(path: Path, num_prompts: int, table_s: float) -> Bench:
    cache = open_cache(None)
    with Bundle.open(path, cache=cache) as bundle:
        manifest = bundle.manifest
        threads = manifest.target.tuned_for.num_threads
        graphs = load_graphs(bundle, cache, num_threads=threads, mapped=False, on_note=print)
        draft = load_draft_graphs(bundle, cache)
        folds = bundle_folds(bundle, graphs, 30.0, draft=draft)
    drafter, recordings = folds[0]
    chosen = [one for one in recordings if len(one[1]) > 16][:num_prompts]
    rows = [r for r in verify_rows(manifest, graphs.row_counts) if r <= 16]
    bench = Bench(graphs, manifest, drafter, chosen, rows, Costs(lambda r, c: 1.0, 0.0, 0.0))
    prompts = [one.prompt for one in chosen[:3]]
    _, run = record_answers(graphs, drafter, prompts, 16, ())
    measured = bench.table(table_s)
    table = LatencyTable.of(measured.points(manifest.graphs), manifest.graphs)
    bench.costs = measured_costs(table, run)
    if draft is not None:
        # The bundle's own times of the model that drafts.
        built = LatencyTable.of(manifest.latency, manifest.graphs)
        bench.costs = model_costs(bench.costs, run, built.draft_step)
    print(
        {rows: round(1e3 * table(rows, 128), 2) for rows in bench.rows},
        "ms at 128 tokens;",
        f"host {1e3 * bench.costs.rest_s:.2f} ms; others {measured.busy_share:.0%}",
        flush=True,
    )
    return bench


def turns(
    ways: dict[str, Engine],
    recordings: Sequence[Recording],
    num_tokens: int,
    rounds: int = 1,
    beyond: bool = False,
) -> list[dict[str, list[Run]]]:
    """Per prompt the runs of every way: all of them forwards, then backwards, `rounds` times.
    `beyond`: `num_tokens` also where the recorded answer is shorter."""
    prompt, output, _ = recordings[0]
    for engine in ways.values():
        decode(engine, prompt, min(8, len(output)), ())
    found = []
    for prompt, output, _ in recordings:
        num = num_tokens if beyond else min(num_tokens, len(output))
        runs: dict[str, list[Run]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name in (*ways, *reversed(ways)):
                ids, run = decode(ways[name], prompt, num, ())
                shared = min(len(ids), len(output))
                assert ids[:shared] == list(output)[:shared], "a way emits other tokens"
                runs[name].append(run)
        found.append(runs)
    return found


def token_ms(found: list[dict[str, list[Run]]], name: str, which: int | None = None) -> float:
    """Time per token over all prompts: of run `which`, or of the quicker one of each prompt."""
    runs = [
        prompt[name][which] if which is not None else min(prompt[name], key=lambda r: r.seconds)
        for prompt in found
    ]
    return 1e3 * sum(r.seconds for r in runs) / sum(r.num_tokens for r in runs)


def ratio(found: list[dict[str, list[Run]]], slow: str, fast: str) -> float:
    """Mean over neighbouring runs of the time of `slow` over that of `fast`."""
    return fmean(
        a.seconds / b.seconds
        for prompt in found
        for a, b in zip(prompt[slow], prompt[fast], strict=True)
    )


def ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    return [float(order.index(i)) for i in range(len(values))]


def correlation(a: Sequence[float], b: Sequence[float]) -> float:
    x, y = ranks(a), ranks(b)
    mx, my = fmean(x), fmean(y)
    top = sum((p - mx) * (q - my) for p, q in zip(x, y, strict=True))
    return float(top / (sum((p - mx) ** 2 for p in x) * sum((q - my) ** 2 for q in y)) ** 0.5)


def random_trees(num: int, largest: int, kind: DraftKind, max_expanded: int) -> list[str]:
    """Trees of random shapes under random plans."""
    rng = random.Random(0)
    possible = plans(kind, "cpu")
    trees: dict[str, None] = {}
    while len(trees) < num:
        width, depth = rng.choice((1, 2, 3, 4, 6, 8)), rng.randrange(1, 9)
        verify = rng.randrange(2, min(largest, 1 + width * depth) + 1)
        frontier = rng.choice(("global", "level"))
        spec = TreeSpec(
            policy="egt", width=width, depth=depth, children=2 * width, verify=verify,
            frontier=frontier, plan=rng.choice(possible),
        )  # fmt: skip
        if sum(draft_steps(spec)) <= max_expanded:
            trees[format_tree_spec(spec)] = None
    return list(trees)


def predict(bench: Bench, num_trees: int, num_tokens: int) -> dict[str, Any]:
    drafter = bench.drafter
    kind, most = drafter.draft_kind, drafter.max_expanded
    trees = random_trees(num_trees, bench.rows[-1], kind, most)
    recordings = [one._replace(output=list(one.output)[:num_tokens]) for one in bench.recordings]
    costs = bench.costs
    # Gates that stay open on half of the trees: large trees in every pass stretch the range.
    gates: dict[str, type[Gate]] = {
        tree: OpenGate if i % 2 else RunningGate for i, tree in enumerate(trees)
    }
    full: dict[str, Callable[[int, int], float] | None] = {
        tree: (lambda rows, context: 1.0) if i % 2 else None for i, tree in enumerate(trees)
    }
    replays = [
        replay(
            bench.drafter, parse_tree_spec(tree), recordings, bench.graphs.row_counts,
            full[tree] or costs.latency, costs.rest_s, gates[tree](), RATIO, costs.draft_step,
        )
        for tree in trees
    ]  # fmt: skip
    ways = {PLAIN: bench.engine(PLAIN)} | {
        tree: bench.engine(tree, gate=gates[tree](), latency=full[tree]) for tree in trees
    }
    found = turns(ways, recordings, num_tokens)
    # The machine drifts: the table is the mean of one before and one after.
    after = LatencyTable.of(bench.table(8.0).points(bench.manifest.graphs), bench.manifest.graphs)

    def latency(rows: int, context: int) -> float:
        return (costs.latency(rows, context) + after(rows, context)) / 2

    plain = plain_replay(recordings)
    candidates = search_schedule(replays, plain, latency, costs.unseen_s)
    predicted = {one.tree: one.tpot_ms for one in candidates}
    names = [PLAIN, *trees]
    measured = {name: token_ms(found, name) for name in names}
    errors = {name: abs(predicted[name] / measured[name] - 1) for name in names}
    for name in sorted(names, key=measured.__getitem__):
        print(
            f"  {measured[name]:7.2f} measured {predicted[name]:7.2f} predicted  {name}"
            f"{'' if name == PLAIN or not full[name] else '  (every pass full)'}"
        )
    # What the search would pack: the best by one run of the five best by prediction.
    top = [PLAIN, *distinct(candidates, replays, 5)]
    packed = min(top, key=lambda name: token_ms(found, name, 0))
    best = min(names, key=lambda name: token_ms(found, name, 0))
    return {
        "num_trees": len(trees),
        "median_error": median(errors.values()),
        "largest_error": max(errors.values()),
        "signed_error": fmean(predicted[n] / measured[n] - 1 for n in names),
        "rank_correlation": correlation(
            [predicted[n] for n in names], [measured[n] for n in names]
        ),
        "packed": packed,
        # On the second run, which chose neither.
        "packed_over_best": token_ms(found, packed, 1) / token_ms(found, best, 1),
    }


def grid(bench: Bench, num_tokens: int) -> dict[str, Any]:
    """The packed schedule against every tree of a small grid, measured."""
    trees = [
        f"egt:width={w},depth={d},children={2 * w},verify={v},frontier=global"
        for w in (1, 2, 4) for d in (2, 4, 8) for v in (4, 8, 16)
        if v in bench.rows and v <= w * d + 1
    ]  # fmt: skip
    recordings = [one._replace(output=list(one.output)[:num_tokens]) for one in bench.recordings]
    costs = bench.costs
    replays = [
        replay(
            bench.drafter, parse_tree_spec(tree), recordings, bench.graphs.row_counts,
            costs.latency, costs.rest_s, RunningGate(),
        )
        for tree in trees
    ]  # fmt: skip
    candidates = search_schedule(replays, plain_replay(recordings), costs.latency, costs.unseen_s)
    found = turns({tree: bench.engine(tree) for tree in (PLAIN, *trees)}, recordings, num_tokens)
    top = [PLAIN, *distinct(candidates, replays, 5)]
    packed = min(top, key=lambda name: token_ms(found, name, 0))
    best = min((PLAIN, *trees), key=lambda name: token_ms(found, name, 0))
    for name in sorted((PLAIN, *trees), key=lambda name: token_ms(found, name)):
        print(f"  {token_ms(found, name):7.2f} ms/token  {name}")
    return {
        "num_trees": len(trees),
        "packed": packed,
        "best": best,
        "packed_over_best": token_ms(found, packed, 1) / token_ms(found, best, 1),
        "spread_of_one_tree": fmean(
            abs(token_ms(found, t, 0) / token_ms(found, t, 1) - 1) for t in trees
        ),
    }


def aal(bench: Bench, num_tokens: int) -> dict[str, Any]:
    """Both at most 16 rows. The fastest by replay, rows chosen pass by pass, against the one that
    accepts most, every pass full."""
    recordings = [one._replace(output=list(one.output)[:num_tokens]) for one in bench.recordings]
    specs = [
        f"egt:width={w},depth={d},children={2 * w},verify={min(16, w * d + 1)}"
        for w in (1, 2, 4, 8) for d in (2, 4, 6, 8)
    ]  # fmt: skip
    costs, rows = bench.costs, bench.graphs.row_counts

    def replayed(tree: str, latency: Callable[[int, int], float], gate: Gate) -> Any:
        spec = parse_tree_spec(tree)
        return replay(bench.drafter, spec, recordings, rows, latency, costs.rest_s, gate)

    by_speed = [replayed(tree, costs.latency, RunningGate()) for tree in specs]
    plain = plain_replay(recordings)
    fastest = search_schedule(by_speed, plain, costs.latency, costs.unseen_s)[0].tree
    longest = max(
        (replayed(tree, lambda rows, context: 1.0, OpenGate()) for tree in specs),
        key=lambda one: one.mean_acceptance_length,
    )
    ways = {
        "objective": bench.engine(fastest),
        "aal": bench.engine(longest.tree, latency=lambda rows, context: 1.0, gate=OpenGate()),
        PLAIN: bench.engine(PLAIN),
    }
    found = turns(ways, recordings, num_tokens, rounds=2)
    runs = {name: [run for prompt in found for run in prompt[name]] for name in ways}
    return {
        "objective": fastest,
        "aal": longest.tree,
        "tokens_per_pass": {n: fmean(r.tokens_per_pass for r in runs[n]) for n in ways},
        "ms_per_token": {name: token_ms(found, name) for name in ways},
        "gain": ratio(found, "aal", "objective"),
        "over_plain": ratio(found, PLAIN, "objective"),
    }


def forms(bench: Bench, num_tokens: int, tree: str) -> dict[str, Any]:
    """Same tree, rows chosen by each pass's ratio and by the lagrangian at the rate it brings."""
    recordings = [one._replace(output=list(one.output)[:num_tokens]) for one in bench.recordings]
    costs, spec = bench.costs, parse_tree_spec(tree)
    objective = RATIO
    rates = []
    for _ in range(4):
        one = replay(
            bench.drafter, spec, recordings, bench.graphs.row_counts, costs.latency,
            costs.rest_s, RunningGate(), objective,
        )  # fmt: skip
        rates.append(one.num_tokens / one.seconds(costs.latency, costs.unseen_s))
        objective = Objective("lagrangian", rates[-1])
    ways = {
        "ratio": bench.engine(tree),
        "lagrangian": bench.engine(tree, objective=objective),
        PLAIN: bench.engine(PLAIN),
    }
    found = turns(ways, recordings, num_tokens, rounds=3)
    return {
        "tree": tree,
        "predicted_rates": rates,
        "predicted_gain": max(rates[1:]) / rates[0],
        "ms_per_token": {name: token_ms(found, name) for name in ways},
        "measured_gain": ratio(found, "ratio", "lagrangian"),
    }


class NeverRight:
    """Sure of a token that the verifier does not emit."""

    def __init__(self, drafter: Drafter, wrong: int) -> None:
        self._drafter, self._wrong = drafter, wrong

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def candidates(self, paths: Sequence[Sequence[int]], num: int) -> list[list[Candidate]]:
        wrong = [(self._wrong + i, 0.9 / (i + 1) ** 4) for i in range(min(num, 4))]
        return [wrong for _ in paths]


def never(bench: Bench, num_tokens: int, tree: str) -> dict[str, Any]:
    said = {token for _, output in bench.recordings for token in output}
    wrong = next(i for i in range(5, 40000) if not said & set(range(i, i + 4)))
    drafter: Any = NeverRight(bench.drafter, wrong)
    ways = {PLAIN: bench.engine(PLAIN), "never": bench.engine(tree, drafter=drafter)}
    found = turns(ways, bench.recordings, num_tokens, rounds=2, beyond=True)
    runs = [run for prompt in found for run in prompt["never"]]
    assert all(run.accepted <= 2 for run in runs), "the drafter was right"
    return {
        "num_tokens": num_tokens,
        "ms_per_token": {name: token_ms(found, name) for name in ways},
        "speed": ratio(found, PLAIN, "never"),
    }


def host(bench: Bench, num_tokens: int, tree: str) -> dict[str, Any]:
    recordings = [one._replace(output=list(one.output)[:num_tokens]) for one in bench.recordings]
    ways = {PLAIN: bench.engine(PLAIN), "tree": bench.engine(tree)}
    found = turns(ways, recordings, num_tokens, rounds=2)
    result: dict[str, Any] = {"tree": tree}
    for name in ways:
        total = Run()
        for prompt in found:
            for run in prompt[name]:
                total.add(run)
        result[name] = {
            "pass_ms": 1e3 * total.seconds / total.num_passes,
            "host_us": 1e6 * total.host_s,
            "share": total.host_s * total.num_passes / total.seconds,
            "stages_us": {k: 1e6 * s for k, s in total.stages_per_pass().items()},
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("part", choices=["predict", "grid", "aal", "forms", "never", "host"])
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--trees", type=int, default=30)
    parser.add_argument("--table-s", type=float, default=12.0)
    parser.add_argument("--tree", default="egt:width=4,depth=6,children=8,verify=16")
    options = parser.parse_args()
    start = perf_counter()
    bench = prepare(options.bundle, options.prompts, options.table_s)
    busy = BusyMeter()
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "predict": lambda: predict(bench, options.trees, options.tokens),
        "grid": lambda: grid(bench, options.tokens),
        "aal": lambda: aal(bench, options.tokens),
        "forms": lambda: forms(bench, options.tokens, options.tree),
        "never": lambda: never(bench, options.tokens, options.tree),
        "host": lambda: host(bench, options.tokens, options.tree),
    }
    found = parts[options.part]()
    found |= {"busy_share": busy.share(), "seconds": perf_counter() - start}
    print(json.dumps({"bundle": options.bundle.name, "part": options.part, **found}))


if __name__ == "__main__":
    main()
