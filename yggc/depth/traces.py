"""Traces: what each pass of the compiled pair drafted at full depth, and how much of it was right.

The drafter drafts over recorded answers with the gate open, as the engine would. The rows that an
equal-growth tree or a chain has after d steps are the tree of depth d, so one pass says what each
depth would have brought and cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate

import msgspec
import torch

from yggc.depth.rows import Rows
from yggrt.core.objective import Objective, choose_num_rows
from yggrt.core.schema import TreeSpec
from yggrt.core.spec import draft_steps
from yggrt.core.tree import TokenTree, followed, join, prune
from yggrt.drafters import Candidate, Drafter, Noise
from yggrt.engine import CONTEXT_BLOCK, SECOND
from yggrt.policies import policy_for
from yggrt.policies.egt import grow as grow_egt
from yggrt.scheduling import Costs


@dataclass(frozen=True, slots=True)
class Traces:
    """n passes. inputs [n, d] float32: what hazards are made of; entropy [n] float32 of the
    verifier there; before [n] int64: tokens that the pass before accepted.

    lengths [n] int64: L, the tokens of the first drafter's tree that were right; known [n] int64:
    levels that were drafted and recorded. tokens, rows [n, D + 1] int64: what a pass of each depth
    from 0 on emits and verifies, seconds [n, D + 1] float64 what it takes, and context [n] int64
    the length that it is timed at. prompt [n] int64: which prompt it belongs to.
    """

    inputs: torch.Tensor
    entropy: torch.Tensor
    before: torch.Tensor
    lengths: torch.Tensor
    known: torch.Tensor
    tokens: torch.Tensor
    rows: torch.Tensor
    seconds: torch.Tensor
    context: torch.Tensor
    prompt: torch.Tensor

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def depth(self) -> int:
        """The most levels that were drafted."""
        return self.tokens.shape[1] - 1

    def take(self, which: torch.Tensor) -> Traces:
        """The passes of a mask or of indices."""
        return Traces(*(getattr(self, one.name)[which] for one in fields(self)))

    def of_prompts(self, prompts: Sequence[int]) -> Traces:
        return self.take(torch.isin(self.prompt, torch.tensor(prompts)))


class _Pass(msgspec.Struct):
    """One pass, before passes are stacked."""

    before: int
    lengths: int
    known: int
    tokens: list[int]
    rows: list[int]
    seconds: list[float]
    context: int
    prompt: int


class Tracer:
    """Drafts `spec`, of an equal-growth tree or a chain, at full depth over recordings.

    `row_counts`: of the verify graphs. Depths are pruned to the rows that pay by `costs` and
    `objective`, as the engine prunes.
    """

    def __init__(
        self, spec: TreeSpec, row_counts: Sequence[int], costs: Costs, objective: Objective
    ) -> None:
        self._spec, self._grow = spec, policy_for(spec)
        self._costs, self._objective = costs, objective
        self._buckets = {
            rows: min(count for count in row_counts if count >= rows)
            for rows in range(1, spec.verify + 1)
        }
        # The engine's row choices; its tree of a depth is the first rows of the deepest.
        self._choices = sorted({*self._buckets.values(), spec.verify} & self._buckets.keys())

    def run(
        self,
        traced: Sequence[tuple[int, Drafter, Rows, Noise | None]],
        on_prompt: Callable[[], None] = lambda: None,
    ) -> Traces:
        """All passes of (prompt's number, drafter, rows, noise its tokens were drawn with)."""
        found: list[_Pass] = []
        inputs: list[torch.Tensor] = []
        entropy_at: list[torch.Tensor] = []
        for number, drafter, rows, noise in traced:
            for at, one in self._passes(number, drafter, rows, noise):
                found.append(one)
                inputs.append(rows.inputs[at])
                entropy_at.append(rows.entropy[at])
            on_prompt()
        size = inputs[0].shape if inputs else (0,)

        def stacked(name: str, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.tensor([getattr(one, name) for one in found], dtype=dtype)

        return Traces(
            inputs=torch.stack(inputs) if inputs else torch.zeros(0, *size),
            entropy=torch.stack(entropy_at) if inputs else torch.zeros(0),
            seconds=stacked("seconds", torch.float64),
            **{
                name: stacked(name)
                for name in ("before", "lengths", "known", "tokens", "rows", "context", "prompt")
            },
        )

    def _passes(
        self, number: int, drafter: Drafter, rows: Rows, noise: Noise | None
    ) -> Iterator[tuple[int, _Pass]]:
        """Each pass, and which of `rows` its root was chosen from."""
        prompt, output, hidden = rows.recording
        assert hidden is not None
        ids = [*prompt, *output]
        drafter.start(prompt)
        drafter.couple(noise)
        drafter.observe(0, hidden, range(len(prompt)))
        drafter.commit(output[:1])
        root, before = len(prompt), 0
        # The last token's own pass is not recorded.
        while root + 1 < len(ids) and root < drafter.max_model_len:
            coming = ids[root + 1 :]
            one, num = self._pass(number, drafter, ids[root], coming, root, before)
            yield root - len(prompt), one
            drafter.observe(root, hidden[root : root + num], range(min(num, len(hidden) - root)))
            drafter.commit(coming[:num])
            root, before = root + num, num - 1

    def _pass(
        self,
        number: int,
        drafter: Drafter,
        root: int,
        coming: Sequence[int],
        length: int,
        before: int,
    ) -> tuple[_Pass, int]:
        """The pass, and the tokens that it emits at full depth where rows cost nothing."""
        spec, costs = self._spec, self._costs
        context = length // CONTEXT_BLOCK * CONTEXT_BLOCK + CONTEXT_BLOCK // 2
        counted = _Counted(drafter)
        # What is asked of the drafter is `candidates` alone.
        first = self._grow(root, spec, counted, 0.0)  # type: ignore[arg-type]
        sizes = [*counted.sizes(), *[first.num_nodes] * (spec.depth + 1)]
        beside = None
        if drafter.second is not None:
            beside = grow_egt(root, SECOND, drafter.second, 0.0)
        tokens, rows, seconds = [], [], []
        draft_s = 0.0
        steps = (0, *draft_steps(spec))
        for depth in range(spec.depth + 1):
            draft_s += costs.draft_step(steps[depth], context) if depth else 0.0
            tree = first.keep(list(range(sizes[depth])))
            tree = tree if beside is None else join(tree, beside)
            full = min(followed(prune(tree, spec.verify), coming) + 1, len(coming))
            tree = prune(tree, self._num_rows(tree, context, draft_s))
            bucket = self._buckets[tree.num_nodes]
            tokens.append(min(followed(tree, coming) + 1, len(coming)))
            rows.append(bucket)
            seconds.append(costs.rest_s + draft_s + costs.latency(bucket, context))
        lengths = followed(prune(first, spec.verify), coming[: spec.depth])
        known = min(spec.depth, len(coming))
        return _Pass(before, lengths, known, tokens, rows, seconds, context, number), full

    def _num_rows(self, tree: TokenTree, context: int, draft_s: float) -> int:
        values = sorted(tree.scores[1:], reverse=True)
        return choose_num_rows(
            values,
            self._choices,
            lambda rows: self._costs.latency(self._buckets[rows], context),
            self._costs.rest_s + draft_s,
            self._objective,
        )


class _Counted:
    """A drafter that counts the nodes it is asked about: those that the step before added."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._asked: list[int] = []

    def candidates(self, paths: Sequence[Sequence[int]], num: int) -> list[list[Candidate]]:
        self._asked.append(len(paths))
        return self._drafter.candidates(paths, num)

    def sizes(self) -> list[int]:
        """Rows of the tree after 0, 1, ... steps, but for the last step."""
        return list(accumulate(self._asked))
