"""What a predictor brings on the machine at hand: decoding held-out prompts with it and with fixed
depths, in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean
from time import perf_counter

from yggrt.core.errors import CheckFailed
from yggrt.core.objective import Objective
from yggrt.core.passes import Graphs
from yggrt.core.schema import DepthPredictor, TreeSpec
from yggrt.depth import DepthChoice
from yggrt.drafters import Drafter
from yggrt.engine import Engine, Sampler
from yggrt.gate import RunningGate
from yggrt.interval import bootstrap_interval
from yggrt.scheduling import Costs, Run, decode
from yggrt.verify import first_difference

# The way that is no fixed tree.
PREDICTED = "predicted depth"


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt to decode, with a drafter that does not know it; `sampler` makes a new one."""

    prompt: Sequence[int]
    drafter: Drafter
    sampler: Callable[[], Sampler | None]


@dataclass(frozen=True, slots=True)
class Gain:
    """`ratios`: by prompt, time per token with the best fixed tree `against` over that with the
    predictor; `token_ms` of every way over all prompts."""

    against: str
    ratios: tuple[float, ...]
    token_ms: dict[str, float]

    @property
    def mean(self) -> float:
        """Geometric, so that noise alone favours neither; 1 without a prompt."""
        return exp(fmean(map(log, self.ratios))) if self.ratios else 1.0

    @property
    def interval(self) -> tuple[float, float]:
        """95 %, over prompts; from 0 where there are fewer than two, which show nothing."""
        found = bootstrap_interval([log(one) for one in self.ratios])
        return (exp(found[0]), exp(found[1])) if found else (0.0, self.mean)


def measure_gain(
    graphs: Graphs,
    predictor: DepthPredictor,
    fixed: Sequence[str],
    tasks: Sequence[Task],
    costs: Costs,
    objective: Objective,
    *,
    num_tokens: int,
    eos_ids: Collection[int],
    budget_s: float,
    shape: Callable[[str], TreeSpec],
    on_prompt: Callable[[], None] = lambda: None,
) -> Gain:
    """Decodes each task with every fixed tree and with the predictor, whose constants the graphs
    hold, forwards and backwards; of two runs the quicker counts, since disturbances only add. The
    tree that took the least time over all prompts is what the predictor is measured against.
    `shape` gives a tree the shape that the bundle's recordings give it.

    No prompt begins after `budget_s`. Raises CheckFailed if two ways emit different tokens.
    """
    start, cache = perf_counter(), graphs.new_cache()
    ways = (*dict.fromkeys(fixed), PREDICTED)
    engines: dict[tuple[str, int], Engine] = {}

    def engine(way: str, drafter: Drafter) -> Engine:
        key = way, id(drafter)
        if key not in engines:
            depth = None
            if way == PREDICTED:
                depth = DepthChoice(
                    predictor, costs.latency, costs.draft_step, costs.rest_s, objective
                )
            engines[key] = Engine(
                graphs, cache, drafter, depth.spec if depth else shape(way),
                costs.latency, costs.rest_s, RunningGate(), objective, costs.draft_step, depth,
            )  # fmt: skip
        return engines[key]

    rows: list[dict[str, Run]] = []
    for number, task in enumerate(tasks):
        if number and perf_counter() - start > budget_s:
            break
        runs: dict[str, Run] = {}
        wanted: list[int] | None = None
        # A way's first run of all finds code and caches cold.
        order = (*(ways if not number else ()), *ways, *reversed(ways))
        for turn, way in enumerate(order):
            ids, run = decode(
                engine(way, task.drafter), task.prompt, num_tokens, eos_ids, task.sampler()
            )
            wanted = ids if wanted is None else wanted
            at = first_difference(wanted, ids)
            if at is not None:
                raise CheckFailed(
                    f"prompt {number + 1}: token {at} is {ids[at : at + 1]} with {way}, "
                    f"{wanted[at : at + 1]} with {ways[0]}",
                    "this is a bug: `yggrt verify` shows whether the bundle is exact",
                )
            is_warm = number or turn >= len(ways)
            if is_warm and (way not in runs or run.seconds < runs[way].seconds):
                runs[way] = run
        if all(run.num_tokens for run in runs.values()):
            rows.append(runs)
        on_prompt()
    return _compared(rows, ways)


def _compared(rows: Sequence[dict[str, Run]], ways: Sequence[str]) -> Gain:
    total = {way: Run() for way in ways}
    for runs in rows:
        for way, run in runs.items():
            total[way].add(run)
    token_ms = {way: 1e3 * run.token_s for way, run in total.items() if run.num_tokens}
    against = min(ways[:-1], key=lambda way: token_ms.get(way, 0.0))
    ratios = tuple(runs[against].token_s / runs[PREDICTED].token_s for runs in rows)
    return Gain(against, ratios, token_ms)
