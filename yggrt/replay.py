"""Replay: the engine over recorded outputs in place of a model.

Since trees never change what the verifier emits, its recorded ids tell how a tree would have
fared: same code, same decisions, no forward pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from yggrt.core.accept import Choose, greedy
from yggrt.core.objective import RATIO, Objective
from yggrt.core.passes import KvCache, PassOutput
from yggrt.core.schema import TreeSpec
from yggrt.core.search import Replay
from yggrt.core.spec import format_tree_spec
from yggrt.core.tree import TokenTree
from yggrt.drafters import Drafter, Noise
from yggrt.drafters.calibrate import Recording
from yggrt.engine import Engine
from yggrt.gate import Gate

if TYPE_CHECKING:
    import torch

NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class RecordedGraphs:
    """The Graphs protocol over one sequence that the verifier emitted; needs no cache.

    A row off the recorded sequence answers NO_TOKEN. `logits` and `hazards` are None, and so is
    `hidden` if it was not recorded. `recorded`: hidden of the last tokens but the very last.
    """

    ids: Sequence[int]
    row_counts: tuple[int, ...]
    recorded: torch.Tensor | None = None

    @property
    def prefill_buckets(self) -> tuple[int, ...]:
        return (len(self.ids),)

    @property
    def max_model_len(self) -> int:
        return len(self.ids)

    def new_cache(self) -> KvCache:
        return self

    def verify(self, cache: KvCache, tree: TokenTree, length: int) -> PassOutput:
        position = [length]
        answers = [self.ids[length + 1]]
        for token, parent in zip(tree.tokens[1:], tree.parents[1:], strict=True):
            position.append(position[parent] + 1)
            on_record = token == answers[parent]
            answers.append(self.ids[position[-1] + 1] if on_record else NO_TOKEN)
        return self._answer(answers, position)

    def prefill(self, cache: KvCache, tokens: Sequence[int], length: int) -> PassOutput:
        end = length + len(tokens)
        return self._answer([self.ids[end]], range(length, end))

    def commit(self, cache: KvCache, length: int, path: Sequence[int]) -> None:
        return

    def _answer(self, ids: list[int], positions: Sequence[int]) -> PassOutput:
        nothing: Any = None
        hidden = nothing
        if self.recorded is not None:
            first = len(self.ids) - 1 - len(self.recorded)
            hidden = self.recorded[[at - first for at in positions if at >= first]]
        return PassOutput(ids, nothing, hidden, nothing)


@dataclass(frozen=True, slots=True)
class RecordedSampler:
    """Takes what was recorded, which was chosen with `noise`; None where it was greedy."""

    noise: Noise | None

    def __call__(self, out: PassOutput) -> Choose:
        return greedy(out)


def replay(
    drafter: Drafter,
    spec: TreeSpec,
    recordings: Iterable[Recording],
    row_counts: tuple[int, ...],
    latency: Callable[[int, int], float],
    rest_s: float,
    gate: Gate,
    objective: Objective = RATIO,
    draft_step: Callable[[int, int], float] = lambda num_nodes, context: 0.0,
    noise: Noise | None = None,
) -> Replay:
    """What `spec`, a resolved one, does over recordings; outputs of less than two tokens need no
    pass. `noise`: what their tokens were chosen with, None for greedy ones.

    Drafting and accepting are the engine's own code, so the time they take here is what they take
    in a pass.
    """
    num_tokens = num_full = 0
    host_s = 0.0
    passes: Counter[tuple[int, int]] = Counter()
    for prompt, output, hidden in recordings:
        if len(output) < 2:
            continue
        graphs = RecordedGraphs([*prompt, *output], row_counts, hidden)
        engine = Engine(
            graphs, graphs, drafter, spec, latency, rest_s, gate, objective, draft_step
        )
        engine.start(prompt, sampler=RecordedSampler(noise))
        while engine.room:
            context = len(engine.ids) - 1
            rows = engine.step().num_rows
            passes[min(count for count in row_counts if count >= rows), context] += 1
        num_tokens += engine.stats.num_tokens
        accepted = engine.stats.accepted_histogram
        num_full += sum(num for length, num in accepted.items() if length >= spec.depth)
        stages = engine.stats.stage_s
        host_s += stages["draft"] + stages["accept"]
    return Replay(format_tree_spec(spec), num_tokens, passes, host_s, num_full)
