"""The decoding loop: draft, verify, accept, commit, emit.

Token ids only; knows nothing of text or of when to stop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple, TypeAlias

from yggrt.core.accept import Accepted, Choose, accept, greedy
from yggrt.core.errors import RequestError
from yggrt.core.objective import RATIO, Objective, choose_num_rows, least_value
from yggrt.core.passes import Graphs, KvCache, PassOutput, prefill_chunks
from yggrt.core.plans import why_not_run
from yggrt.core.schema import TreeSpec
from yggrt.core.spec import draft_steps, format_tree_spec
from yggrt.core.tree import TokenTree, clip_depth, join, prune
from yggrt.depth import DepthChoice
from yggrt.drafters import Drafter
from yggrt.engine_stats import EngineStats, Pass, Stage
from yggrt.gate import Cost, Gate
from yggrt.policies import policy_for
from yggrt.policies.egt import grow as grow_egt

# Turns a pass into the choice of the verifier's token after each row.
Sampler: TypeAlias = Callable[[PassOutput], Choose]
# Latencies are asked for once per so many tokens of context, over which they hardly change.
CONTEXT_BLOCK = 64
# Share of the least value that pays at which nodes are still drafted: what one lacks others of the
# same graph may have to spare, and rows that they leave free cost nothing.
SLACK = 0.5
# What a second drafter brings beside the tree: few ways to go on, each for long.
SECOND = TreeSpec(policy="egt", width=2, depth=8, children=4)


class StepResult(NamedTuple):
    """One pass: its tokens (accepted drafts, then one of the verifier's own), and the rows it
    verified."""

    tokens: tuple[int, ...]
    num_rows: int
    num_accepted: int

    @property
    def plain(self) -> bool:
        return self.num_rows == 1


class Engine:
    """Decodes one sequence at a time on one cache.

    `latency` gives the seconds of a verify pass by row count, one of the graphs', and length of
    the context, `draft_step` those of a growth step by the nodes that a model runs in it and the
    context; `rest_s` is the time of a pass beside both, of which `draft_host_s` is spared where
    nothing is drafted. `objective` says what the choice of rows
    maximises. `depth` chooses each pass's depth, up to that of `spec`; without it all have that.
    Raises RequestError if the graphs cannot hold the spec's verify rows, or the drafter its nodes.
    """

    def __init__(
        self,
        graphs: Graphs,
        cache: KvCache,
        drafter: Drafter,
        spec: TreeSpec,
        latency: Callable[[int, int], float],
        rest_s: float,
        gate: Gate,
        objective: Objective = RATIO,
        draft_step: Callable[[int, int], float] = lambda num_nodes, context: 0.0,
        depth: DepthChoice | None = None,
        draft_host_s: float = 0.0,
    ) -> None:
        largest = graphs.row_counts[-1]
        if spec.verify > largest:
            raise RequestError(
                f"tree {format_tree_spec(spec)} verifies {spec.verify} rows, "
                f"the largest graph holds {largest}",
                f"ask for verify={largest} or less, or build with --max-verify {spec.verify}",
            )
        expanded = sum(draft_steps(spec))
        if expanded > drafter.max_expanded:
            raise RequestError(
                f"tree {format_tree_spec(spec)} runs {expanded} nodes through the drafter, its "
                f"graphs hold {drafter.max_expanded}",
                "ask for less width or depth, or build with larger --drafter-widths",
            )
        _check_plan(spec, drafter)
        self._graphs, self._cache, self._drafter = graphs, cache, drafter
        self._plan = spec.plan
        # Rows that are to move before the next verify pass: the length they hang on, and theirs.
        self._unmoved: tuple[int, Sequence[int]] | None = None
        self._spec, self._grow = spec, policy_for(spec)
        self._gate = gate
        self._sampler: Sampler = greedy
        self._latency, self._rest_s, self._objective = latency, rest_s, objective
        self._draft_step, self._draft_s = draft_step, 0.0
        self._draft_host_s = draft_host_s
        self._depth = depth
        # A tree of any size up to the limit runs in the next larger graph.
        buckets = {
            rows: min(count for count in graphs.row_counts if count >= rows)
            for rows in range(1, spec.verify + 1)
        }
        self._row_choices = {
            rows: buckets[rows]
            for rows in sorted({*buckets.values(), spec.verify} & buckets.keys())
        }
        # The trees that joined into this pass's, for the record of who was right, and this pass's
        # before it was pruned.
        self._grown: tuple[TokenTree, ...] = ()
        self._drafted: TokenTree | None = None
        self._seconds: dict[int, float] = {}
        self._min_value = 0.0
        self._block = -1
        self._ids: list[int] = []
        self._length = 0
        self.stats = EngineStats()
        # Hears of every stage as it ends: its name, start and end in seconds of perf_counter.
        self.on_stage: Callable[[Stage, float, float], None] | None = None
        # Hears of every pass once its tokens are emitted.
        self.on_pass: Callable[[Pass], None] | None = None

    @property
    def ids(self) -> tuple[int, ...]:
        """Prompt and every token emitted since the last start."""
        return tuple(self._ids)

    @property
    def room(self) -> int:
        """Tokens that can still be emitted before the context is full."""
        return self._graphs.max_model_len - len(self._ids)

    def start(
        self, ids: Sequence[int], *, reuse: bool = False, sampler: Sampler | None = None
    ) -> int:
        """Takes a prompt and emits the first token; with `reuse`, keeps the rows of a prefix it
        has in common with the sequence so far. `sampler` chooses the tokens of this sequence, in
        order and each once; without one the most likely token is taken. Raises RequestError for an
        empty prompt or one that leaves no room for a token."""
        limit = self._graphs.max_model_len
        if not ids:
            raise RequestError("the prompt has no tokens", "give at least one token")
        if len(ids) >= limit:
            raise RequestError(
                f"the prompt has {len(ids)} tokens, the context holds {limit} "
                "with at least one of output",
                "shorten the prompt, or build with a larger --max-model-len",
            )
        # The last token always runs: its outputs choose the first new one.
        self._move_rows()
        kept = _common_prefix(ids[:-1], self._ids[: self._length]) if reuse else 0
        if reuse:
            self._drafter.rewind(kept)
            self._drafter.commit(ids[kept:])
        else:
            self._drafter.start(ids)
        self._sampler = sampler or greedy
        self._drafter.couple(getattr(self._sampler, "noise", None))
        self.stats = EngineStats(num_reused=kept)
        self._gate.reset()
        self._ids, self._length = list(ids), kept
        began = perf_counter()
        for start, end in prefill_chunks(self._graphs.prefill_buckets, kept, len(ids)):
            out = self._graphs.prefill(self._cache, ids[start:end], start)
            # Of a prefill the drafter may be told the last tokens alone.
            told = end - start if out.hidden is None else len(out.hidden)
            self._drafter.observe(end - told, out.hidden, range(told))
            self._length = end
        if self._depth is not None:
            self._depth.start()
            self._depth.observe(out.hazards[0])
        self._ended("prefill", began)
        first = self._sampler(out)(0, self._length)
        self._drafter.commit([first])
        self._ids.append(first)
        return first

    def step(self) -> StepResult:
        """One pass: at least one token, as many more as the verifier accepts; never beyond the
        context.

        Raises RequestError if the context is full.
        """
        drafts = self._check_room()
        start = perf_counter()
        tree = self._draft() if drafts else TokenTree.single(self._ids[-1])
        if self._plan.tail == "ahead" and tree.num_nodes > 1:
            self._drafter.run_tail(tree)
        start = self._ended("draft", start)
        if self._unmoved is not None:
            self._move_rows()
            start = self._ended("commit", start)
        out = self._graphs.verify(self._cache, tree, self._length)
        self._drafter.learn(tree, out.ids)
        start = self._ended("verify", start)
        if self._plan.head == "post_verify" and drafts:
            rows = self._plan.head_rows
            self._drafter.run_heads(tree, out.ids, len(out.ids) if rows == "all" else int(rows))
            start = self._ended("draft", start)
        accepted = accept(tree, self._sampler(out), self._length + 1)
        start = self._ended("accept", start)
        self._drafter.observe(self._length, out.hidden, (0, *accepted.path))
        if self._depth is not None:
            self._depth.observe(out.hazards[(0, *accepted.path)[-1]])
        self._commit(accepted)
        self._ended("commit", start)
        if self.on_pass is not None:
            drafted = self._drafted if drafts and self._drafted is not None else tree
            self.on_pass(Pass(drafted, tree, accepted, self._gate.is_open, self._gate.trust))
        self._record(tree, accepted, drafts)
        return StepResult(accepted.tokens, tree.num_nodes, len(accepted.path))

    def _check_room(self) -> bool:
        """Whether the next pass drafts; RequestError if there can be none."""
        assert self._length == len(self._ids) - 1, "a sequence is started before it is continued"
        if self.room < 1:
            raise RequestError(
                f"the context of {self._graphs.max_model_len} tokens is full",
                "start again with a shorter prompt, or build with a larger --max-model-len",
            )
        if self._spec.policy == "plain":
            return False
        if self._gate.is_open and len(self._ids) > self._drafter.max_model_len:
            self.stats.num_beyond += 1
            return False
        # The bonus token needs a place too.
        return self._gate.is_open and self.room > 1

    def _draft(self) -> TokenTree:
        trust, seconds = self._gate.trust, self._seconds_here()
        min_score = self._min_value / trust if trust else 1.0
        spec = self._spec
        if self._depth is not None:
            spec, self._draft_s = self._depth.choose(self._middle_of_block())
            self.stats.depth_histogram[spec.depth] += 1
        tree = self._grow(self._ids[-1], spec, self._drafter, min_score)
        if self._spec.policy == "lookahead":
            # Its rows are there for what they teach, too.
            self._drafted = clip_depth(tree, self.room - 1)
            return self._drafted
        if self._drafter.second is not None:
            beside = grow_egt(self._ids[-1], SECOND, self._drafter.second, min_score)
            self._grown = tree, beside
            tree = join(tree, beside)
        if self.room <= max(self._spec.depth, SECOND.depth):
            tree = clip_depth(tree, self.room - 1)
        self._drafted = tree
        if self._plan.prune == "off":
            return prune(tree, self._spec.verify)
        values = sorted([trust * score for score in tree.scores[1:]], reverse=True)
        num_rows = choose_num_rows(
            values,
            self._row_choices,
            seconds.__getitem__,
            self._rest_s + self._draft_s,
            self._objective,
        )
        return prune(tree, num_rows)

    def _seconds_here(self) -> dict[int, float]:
        """Seconds of a verify pass by the row counts to choose from, at this context."""
        block = self._length // CONTEXT_BLOCK
        if block != self._block:
            context = self._middle_of_block()
            self._block = block
            self._seconds = {
                rows: self._latency(bucket, context) for rows, bucket in self._row_choices.items()
            }
            draft_s = sum(self._draft_step(num, context) for num in draft_steps(self._spec))
            if self._depth is None:
                self._draft_s = draft_s
            self._min_value = SLACK * least_value(
                self._seconds, self._rest_s + draft_s, self._objective
            )
        return self._seconds

    def _middle_of_block(self) -> int:
        return self._length // CONTEXT_BLOCK * CONTEXT_BLOCK + CONTEXT_BLOCK // 2

    def _commit(self, accepted: Accepted) -> None:
        # A chain's rows already lie where they belong.
        if any(row != i for i, row in enumerate(accepted.path, start=1)):
            self._unmoved = self._length, accepted.path
            if self._plan.commit == "now":
                self._move_rows()
        self._drafter.commit(accepted.tokens)
        self._ids.extend(accepted.tokens)
        self._length += len(accepted.tokens)

    def _move_rows(self) -> None:
        if self._unmoved is not None:
            self._graphs.commit(self._cache, *self._unmoved)
            self._unmoved = None

    def _record(self, tree: TokenTree, accepted: Accepted, drafted: bool) -> None:
        expected = sum(tree.scores[1:])
        gated = not self._gate.is_open
        self.stats.record(tree, accepted, expected, drafted, gated, self._grown)
        self._grown = ()
        self._gate.record(expected, len(accepted.path), self._cost(tree, drafted))

    def _cost(self, tree: TokenTree, drafted: bool) -> Cost:
        seconds = self._seconds_here()
        plain_s = self._rest_s - self._draft_host_s + seconds[1]
        if not plain_s:
            return Cost()
        rows = min(rows for rows in seconds if rows >= tree.num_nodes)
        more = (seconds[rows] - seconds[1]) / plain_s
        if self._spec.policy == "lookahead":
            # Nothing is chosen by what it promises, so it is paid like a draft.
            return Cost(0.0, more)
        draft_s = self._draft_s + self._draft_host_s if drafted else 0.0
        return Cost(more, draft_s / plain_s)

    def _ended(self, stage: Stage, start: float) -> float:
        """Counts a stage that began at `start`; gives its end."""
        end = perf_counter()
        self.stats.stage_s[stage] += end - start
        if self.on_stage is not None:
            self.on_stage(stage, start, end)
        return end


def _check_plan(spec: TreeSpec, drafter: Drafter) -> None:
    """Raises RequestError for a plan that this drafter has no use for, or that cannot run here."""
    why = why_not_run(spec, drafter.draft_kind)
    if why is not None:
        raise RequestError(
            f"tree {format_tree_spec(spec)}: its plan cannot be run: {why}",
            "leave it out, or see docs/objective.md for what there is",
        )


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
