"""From recordings and a latency table to a schedule: replay every tree, then measure the best few
for real. The compiler's search and `yggrt tune` are both this.

A *fold* is a drafter with recordings that it has never seen: what a tree is worth must not come
from a drafter that knows the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TypeAlias

import msgspec
import torch

from yggrt.core.objective import RATIO, Form, Objective
from yggrt.core.passes import Graphs, prefill_chunks
from yggrt.core.schema import (
    UNMEASURED,
    Candidate,
    Golden,
    ModelDrafter,
    RankAcceptance,
    Schedule,
    TreeSpec,
)
from yggrt.core.schema import LookaheadDrafter as LookaheadParameters
from yggrt.core.schema import NgramDrafter as NgramParameters
from yggrt.core.search import (
    PLAIN,
    Replay,
    choose_buckets,
    combine,
    distinct,
    first_trees,
    plain_replay,
    refined_trees,
    search_schedule,
)
from yggrt.core.spec import draft_steps, format_tree_spec, parse_tree_spec, shape_of
from yggrt.core.tree import TokenTree
from yggrt.drafters import UNLIMITED, Drafter
from yggrt.drafters.calibrate import Recording
from yggrt.drafters.rank_acceptance import measure_ranks
from yggrt.engine import Engine, Sampler
from yggrt.gate import OpenGate, RunningGate
from yggrt.plan_costs import plan_candidates
from yggrt.policies import MIDDLING_CONTEXT, Measured, find_shape, resolve
from yggrt.replay import replay

Fold: TypeAlias = tuple[Drafter, Sequence[Recording]]
Latency: TypeAlias = Callable[[int, int], float]

NUM_MEASURED = 5
NUM_REFINED = 4
# Time under a plan over that without it from which on it is worth a place among the measured.
LEAST_PLANNED_GAIN = 0.995
# Tokens of a prompt that the measured runs decode; the recordings say what they will be.
MEASURED_TOKENS = 32


@dataclass(slots=True)
class Run:
    """Decoding added up: tokens after each first one, the seconds they took, the engine's stages
    among them."""

    num_tokens: int = 0
    seconds: float = 0.0
    num_passes: int = 0
    num_tests: int = 0
    accepted: int = 0
    stage_s: dict[str, float] = field(default_factory=dict)

    @property
    def tokens_per_pass(self) -> float:
        """Mean acceptance length; the last pass of an output may bring tokens past its end."""
        return (self.accepted + self.num_passes) / self.num_passes

    @property
    def alpha(self) -> float:
        """Accepts over tests; 0 without a test."""
        return self.accepted / self.num_tests if self.num_tests else 0.0

    @property
    def token_s(self) -> float:
        return self.seconds / self.num_tokens

    @property
    def host_s(self) -> float:
        """Seconds of a pass beside the verify graph."""
        return (self.seconds - self.stage_s["verify"]) / self.num_passes

    def stages_per_pass(self) -> dict[str, float]:
        """Seconds of a pass by stage of the host; `other` is what the stages leave."""
        spent = {name: s for name, s in self.stage_s.items() if name != "verify"}
        other = self.seconds - sum(self.stage_s.values())
        return {name: s / self.num_passes for name, s in (*spent.items(), ("other", other))}

    def add(self, other: Run) -> None:
        self.num_tokens += other.num_tokens
        self.seconds += other.seconds
        self.num_passes += other.num_passes
        self.num_tests += other.num_tests
        self.accepted += other.accepted
        for name, seconds in other.stage_s.items():
            self.stage_s[name] = self.stage_s.get(name, 0.0) + seconds


@dataclass(frozen=True, slots=True)
class Costs:
    """What passes cost here. `latency`: seconds of a verify pass by rows and context; `rest_s`: of
    a pass beside it; `unseen_s`: the part of `rest_s` that replays do not run; `draft_step`: of a
    growth step of a model that drafts, by nodes and context, beside `rest_s`."""

    latency: Latency
    rest_s: float
    unseen_s: float
    draft_step: Latency = lambda num_nodes, context: 0.0

    def draft_s(self, spec: TreeSpec) -> float:
        """Seconds that a model takes to draft a tree, at a middling context."""
        return sum(self.draft_step(num, MIDDLING_CONTEXT) for num in draft_steps(spec))

    def measured(self, ranks: RankAcceptance, graphs: Graphs, folds: Sequence[Fold]) -> Measured:
        """What shapes are chosen by."""
        max_expanded = min((drafter.max_expanded for drafter, _ in folds), default=UNLIMITED)
        return Measured(
            ranks, graphs.row_counts, max_expanded, self.latency, self.rest_s, self.draft_step
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """How much time a search may take. `replay_tokens`: recorded tokens that a tree is replayed
    over, fewer in the first round; no replay begins after `replay_s`, no measured run after
    `measure_s`."""

    replay_tokens: int = 2048
    replay_s: float = 40.0
    measure_s: float = 60.0


def decode(
    engine: Engine,
    prompt: Sequence[int],
    num_tokens: int,
    eos_ids: Collection[int],
    sampler: Sampler | None = None,
) -> tuple[list[int], Run]:
    """At most `num_tokens` ids, EOS the last, and what those after the first took; `sampler` as
    for `Engine.start`."""
    output = [engine.start(prompt, sampler=sampler)]
    start = perf_counter()
    while len(output) < num_tokens and engine.room and output[-1] not in eos_ids:
        for token in engine.step().tokens:
            output.append(token)
            if token in eos_ids or len(output) == num_tokens:
                break
    seconds = perf_counter() - start
    stats = engine.stats
    stages = {str(name): s for name, s in stats.stage_s.items() if name != "prefill"}
    tests, accepted = stats.num_tests, stats.accepted
    return output, Run(len(output) - 1, seconds, stats.num_passes, tests, accepted, stages)


def record_answers(
    graphs: Graphs,
    drafter: Drafter,
    prompts: Iterable[Sequence[int]],
    num_tokens: int,
    eos_ids: Collection[int],
    *,
    budget_s: float = float("inf"),
    on_answer: Callable[[], None] = lambda: None,
    sampler_for: Callable[[int, Sequence[int]], Sampler | None] = lambda number, prompt: None,
) -> tuple[list[Recording], Run]:
    """(prompt, output) ids, until `budget_s` is over, and what decoding them took; `sampler_for`
    gives a prompt's sampler by its number and ids.

    Decodes with a tree, which is faster and emits plain decoding's ids.
    """
    start = perf_counter()
    largest = min(16, graphs.row_counts[-1])
    tree = f"egt:width=4,depth=4,verify={largest}" if largest > 1 else PLAIN
    engine = Engine(
        graphs, graphs.new_cache(), drafter, parse_tree_spec(tree),
        lambda rows, context: 1.0, 0.0, OpenGate(),
    )  # fmt: skip
    recordings: list[Recording] = []
    total = Run()
    for number, prompt in enumerate(prompts):
        if recordings and perf_counter() - start > budget_s:
            break
        output, run = decode(engine, prompt, num_tokens, eos_ids, sampler_for(number, prompt))
        recordings.append(Recording(prompt, output))
        total.add(run)
        on_answer()
    return recordings, total


def with_hidden(graphs: Graphs, recordings: Iterable[Recording]) -> list[Recording]:
    """The recordings with what the verifier's graphs give as hidden of their tokens."""
    cache, found = graphs.new_cache(), []
    for one in recordings:
        ids = [*one.prompt, *one.output][:-1]
        rows = [
            graphs.prefill(cache, ids[start:end], start).hidden
            for start, end in prefill_chunks(graphs.prefill_buckets, 0, len(ids))
        ]
        found.append(one._replace(hidden=torch.cat(rows)))
    return found


def with_answer_hidden(graphs: Graphs, recordings: Iterable[Recording]) -> Iterator[Recording]:
    """As `with_hidden`, of the prompt's last token and the answer's alone, by passes that give
    hidden of all their rows, as prefill passes with Medusa heads do not."""
    cache, most = graphs.new_cache(), graphs.row_counts[-1]
    for one in recordings:
        ids, first = [*one.prompt, *one.output][:-1], len(one.prompt) - 1
        for start, end in prefill_chunks(graphs.prefill_buckets, 0, first):
            graphs.prefill(cache, ids[start:end], start)
        rows = []
        for start in range(first, len(ids), most):
            part = tuple(ids[start : start + most])
            chain = TokenTree(part, tuple(range(-1, len(part) - 1)), (1.0,) * len(part))
            rows.append(graphs.verify(cache, chain, start).hidden)
        yield one._replace(hidden=torch.cat(rows))


def measured_costs(latency: Latency, run: Run) -> Costs:
    """Costs with the host's part taken from a run that drafted in every pass."""
    if not run.num_passes:
        return Costs(latency, 0.0, 0.0)
    stages = run.stages_per_pass()
    return Costs(latency, run.host_s, stages["commit"] + max(0.0, stages["other"]))


def model_costs(costs: Costs, run: Run, draft_step: Latency) -> Costs:
    """Costs where a model drafts, from a `run` that drafted with n-grams: what the model takes is
    added by replays and runs."""
    drafting_s = run.stages_per_pass().get("draft", 0.0) if run.num_passes else 0.0
    return replace(costs, rest_s=costs.rest_s - drafting_s, draft_step=draft_step)


def find_schedule(
    graphs: Graphs,
    folds: Sequence[Fold],
    costs: Costs,
    shipped: NgramParameters | ModelDrafter | LookaheadParameters,
    *,
    buckets: Sequence[int],
    trees: Sequence[TreeSpec] | None,
    form: Form,
    eos_ids: Collection[int],
    limits: Limits,
    progress: Callable[[str], None] = lambda text: None,
    ngram: NgramParameters | None = None,
) -> Schedule:
    """The schedule to ship with the drafter `shipped`, and `ngram` beside it: of the best trees by
    prediction the one that short runs measured to be the fastest, or plain decoding.

    `trees` None searches; given ones are all that is looked at, and a single one is taken
    whatever is measured. `buckets`: row counts that a tree may be pruned to.
    """
    progress("acceptance by rank")
    ranks = measure_ranks(folds)
    measured = costs.measured(ranks, graphs, folds)
    if trees is not None and len(trees) > 1:
        trees = [tree for tree in trees if find_shape(tree, measured) is not None]
    search = _Search(graphs, folds, costs, limits, progress, measured)
    # What a window asks the verifier was not recorded: such trees are measured alone.
    windows = [format_tree_spec(tree) for tree in trees or () if tree.policy == "lookahead"]
    if trees is not None:
        search.replay_all([tree for tree in trees if tree.policy != "lookahead"], share=1)
    else:
        search.replay_all(first_trees(buckets), share=4)
        best = [parse_tree_spec(tree) for tree in search.best(NUM_REFINED)]
        search.replay_all([*best, *refined_trees(best, buckets)], share=1)
    candidates = search.candidates()
    objective = RATIO
    if form == "lagrangian":
        # The rate that the choices bring is the rate that they are made at: a fixed point.
        for _ in range(2):
            objective = Objective("lagrangian", 1000 / candidates[0].tpot_ms)
            best = [parse_tree_spec(tree) for tree in search.best(NUM_MEASURED)]
            search.replay_all(best, share=1, objective=objective)
            candidates = search.candidates()
    planned = [] if trees is not None and len(trees) == 1 else search.planned()
    num_scored = len(candidates) + len(planned)
    by_tree = {one.tree: one for one in candidates}
    quicker = [
        one
        for one in planned
        if one.tpot_ms < LEAST_PLANNED_GAIN * by_tree[shape_of(one.tree)].tpot_ms
    ]
    candidates = tuple(sorted((*candidates, *quicker), key=lambda one: one.tpot_ms))
    likely = {*search.best(NUM_MEASURED), *(one.tree for one in quicker)}
    chosen = [one.tree for one in candidates if one.tree in likely][:NUM_MEASURED]
    # Where there is no choice the numbers are for the record.
    measure_s = limits.measure_s / (4 if trees is not None and len(trees) == 1 else 1)
    chosen += windows
    runs = measure_trees(
        graphs, folds, chosen, costs, objective, eos_ids, measure_s, progress, ranks
    )
    candidates += tuple(_measured_alone(tree, runs) for tree in windows if tree in runs)
    candidates = tuple(_with_measured(one, runs) for one in candidates)
    ran = [one for one in candidates if one.measured_tpot_ms is not None]
    winner = min(ran or candidates, key=lambda one: one.measured_tpot_ms or one.tpot_ms)
    tree = format_tree_spec(trees[0]) if trees is not None and len(trees) == 1 else winner.tree
    taken = runs.get(tree)
    shortlist = [one for one in candidates if one.tree in (*chosen, PLAIN)]
    return Schedule(
        tree=tree,
        drafter=shipped,
        ngram=ngram,
        rest_s=_rest_s(taken, costs, resolve(parse_tree_spec(tree), measured)),
        buckets=_buckets_of(tree, search, graphs.row_counts),
        candidates=tuple(sorted(shortlist, key=lambda one: one.measured_tpot_ms or one.tpot_ms)),
        objective=form if objective is not RATIO else "ratio",
        rate=objective.rate,
        stage_s=taken.stages_per_pass() if taken else {},
        recordings=tuple(
            Golden(prompt_ids=tuple(one.prompt), output_ids=tuple(one.output))
            for one in _in_turns(folds)
        ),
        ranks=ranks,
        num_scored=num_scored,
    )


def _nodes(tree: str, shaped: TreeSpec) -> int:
    """Nodes that drafting `tree` runs, whose shape `shaped` has."""
    return sum(draft_steps(msgspec.structs.replace(shaped, plan=parse_tree_spec(tree).plan)))


def _rest_s(taken: Run | None, costs: Costs, spec: TreeSpec) -> float:
    return costs.rest_s if taken is None else max(0.0, taken.host_s - costs.draft_s(spec))


class _Search:
    """Replays of trees over the folds, and what they predict."""

    def __init__(
        self,
        graphs: Graphs,
        folds: Sequence[Fold],
        costs: Costs,
        limits: Limits,
        progress: Callable[[str], None],
        measured: Measured,
    ) -> None:
        total = sum(len(one.output) for _, recordings in folds for one in recordings)
        self._graphs, self._costs, self._progress = graphs, costs, progress
        self._measured = measured
        self._folds = _thinned(folds, max(1, round(total / limits.replay_tokens)))
        self._end_s = perf_counter() + limits.replay_s
        self.replays: dict[str, Replay] = {}
        self._way = (1, RATIO)

    def replay_all(
        self, specs: Iterable[TreeSpec], share: int, objective: Objective = RATIO
    ) -> None:
        """Replays each tree over one in `share` recordings; results on another share or with
        another objective are forgotten, since they do not compare."""
        folds = _thinned(self._folds, share)
        if (share, objective) != self._way:
            self.replays = {}
        self._way = (share, objective)
        self._plain = plain_replay(one for _, recordings in folds for one in recordings)
        for spec in specs:
            tree = format_tree_spec(spec)
            if spec.policy == PLAIN or (self.replays and perf_counter() > self._end_s):
                continue
            self._progress(tree)
            shaped = resolve(spec, self._measured)
            self.replays[tree] = combine(
                replay(
                    drafter, shaped, recordings, self._graphs.row_counts, self._costs.latency,
                    self._costs.rest_s, RunningGate(), objective, self._costs.draft_step,
                )
                for drafter, recordings in folds
            )  # fmt: skip

    def candidates(self) -> tuple[Candidate, ...]:
        costs = self._costs
        if not self._plain.num_tokens:
            # Every recorded answer ended after its first token: there is nothing to draft.
            token_ms = 1000 * (costs.latency(1, 0) + costs.unseen_s)
            return (
                Candidate(tree=PLAIN, mean_acceptance_length=1.0, tpot_ms=token_ms, speedup=1.0),
            )
        return search_schedule(self.replays.values(), self._plain, costs.latency, costs.unseen_s)

    def planned(self) -> list[Candidate]:
        """Every replayed tree under the plans that it was not replayed with and has room for."""
        drafter, costs = self._folds[0][0], self._costs
        return [
            one
            for found in self.candidates()
            if found.tree in self.replays and self.replays[found.tree].num_tokens
            for shaped in [resolve(parse_tree_spec(found.tree), self._measured)]
            for one in plan_candidates(
                found, shaped, self.replays[found.tree], drafter.draft_kind, costs.latency,
                costs.draft_step, costs.unseen_s,
            )
            if _nodes(one.tree, shaped) <= drafter.max_expanded
        ]  # fmt: skip

    def best(self, num: int) -> list[str]:
        return distinct(self.candidates(), self.replays.values(), num)


def measure_trees(
    graphs: Graphs,
    folds: Sequence[Fold],
    trees: Sequence[str],
    costs: Costs,
    objective: Objective,
    eos_ids: Collection[int],
    budget_s: float,
    progress: Callable[[str], None] = lambda text: None,
    ranks: RankAcceptance = UNMEASURED,
) -> dict[str, Run]:
    """Short runs of recorded prompts with each tree and with plain decoding, in turns: plain, the
    trees, the trees backwards, plain. Of the two runs of a prompt the quicker counts, since
    disturbances only add. No prompt begins after `budget_s`, but for the first. `ranks`: what
    shapes are chosen by.
    """
    start, cache = perf_counter(), graphs.new_cache()
    measured = costs.measured(ranks, graphs, folds)
    ways = [PLAIN, *trees]
    total = {way: Run() for way in ways}
    engines: dict[tuple[str, int], Engine] = {}

    def engine(way: str, fold: int) -> Engine:
        if (way, fold) not in engines:
            engines[way, fold] = Engine(
                graphs, cache, folds[fold][0], resolve(parse_tree_spec(way), measured),
                costs.latency, costs.rest_s, RunningGate(), objective=objective,
                draft_step=costs.draft_step,
            )  # fmt: skip
        return engines[way, fold]

    turns = [
        (fold, recording)
        for turn in range(max((len(recordings) for _, recordings in folds), default=0))
        for fold, (_, recordings) in enumerate(folds)
        for recording in recordings[turn : turn + 1]
        if len(recording.output) > 1
    ]
    for number, (fold, (prompt, output, _)) in enumerate(turns):
        if number and perf_counter() - start > budget_s:
            break
        progress(f"measure prompt {number + 1}")
        num = min(MEASURED_TOKENS, len(output))
        if not number:
            for way in ways:
                decode(engine(way, fold), prompt, num, eos_ids)
        runs: dict[str, Run] = {}
        for way in (*ways, *reversed(ways)):
            run = decode(engine(way, fold), prompt, num, eos_ids)[1]
            if way not in runs or run.seconds < runs[way].seconds:
                runs[way] = run
        for way, run in runs.items():
            total[way].add(run)
    return {way: run for way, run in total.items() if run.num_passes}


def _measured_alone(tree: str, runs: dict[str, Run]) -> Candidate:
    run = runs[tree]
    return Candidate(
        tree=tree,
        mean_acceptance_length=run.tokens_per_pass,
        tpot_ms=1000 * run.token_s,
        speedup=runs[PLAIN].token_s / run.token_s,
    )


def _buckets_of(tree: str, search: _Search, row_counts: Sequence[int]) -> tuple[int, ...]:
    if shape_of(tree) in search.replays:
        return choose_buckets(search.replays[shape_of(tree)])
    rows = parse_tree_spec(tree).verify
    return tuple(sorted({1, min(count for count in row_counts if count >= rows)}))


def _with_measured(candidate: Candidate, runs: dict[str, Run]) -> Candidate:
    if candidate.tree not in runs:
        return candidate
    token_s = runs[candidate.tree].token_s
    return msgspec.structs.replace(
        candidate,
        measured_tpot_ms=1000 * token_s,
        measured_speedup=runs[PLAIN].token_s / token_s,
    )


def _thinned(folds: Sequence[Fold], every: int) -> list[Fold]:
    """Every `every`-th recording of each fold, at least one."""
    return [(drafter, recordings[::every]) for drafter, recordings in folds]


def _in_turns(folds: Sequence[Fold]) -> list[Recording]:
    """The recordings in the order in which `held_out` dealt them."""
    longest = max((len(recordings) for _, recordings in folds), default=0)
    return [
        one for i in range(longest) for _, recordings in folds for one in recordings[i : i + 1]
    ]
