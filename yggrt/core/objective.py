"""The one formula of speculation: expected tokens of a pass over the time it takes.

    speedup = N * T(1) / (T_head + (D - 1) * T_draft(W) + T(V) + rest)

N: tokens that the pass is expected to emit, the verifier's own bonus token included; T(V):
verifying V rows; T_head, T_draft(W): the drafter's passes; rest: the host's measured time beside
them. A tree whose nodes have path probabilities v emits N = 1 + sum(v) tokens, and verifying the
best k of them takes V = k + 1 rows (the root has one). docs/objective.md derives it, and both
forms of the choice: the *ratio* N / time of each pass, and the *lagrangian* N - rate * time, whose
rate is that of the whole text. Arithmetic only, so exact numbers (fractions.Fraction) give exact
results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import mul
from typing import Literal

Form = Literal["ratio", "lagrangian"]


@dataclass(frozen=True, slots=True)
class Objective:
    """What a choice within a pass maximises. `rate`: tokens per second of whole texts, for the
    lagrangian; raises ValueError if it is not above 0 there."""

    form: Form = "ratio"
    rate: float = 0.0

    def __post_init__(self) -> None:
        if self.form == "lagrangian" and not self.rate > 0:
            raise ValueError(f"a lagrangian needs a rate above 0, got {self.rate}")

    def value(self, tokens: float, seconds: float) -> float:
        """Larger is better."""
        if self.form == "ratio":
            return tokens / seconds
        return tokens - self.rate * seconds


RATIO = Objective()


def speedup(tokens: float, plain_s: float, pass_s: float) -> float:
    """Over plain decoding, which takes `plain_s` for each token."""
    return tokens * plain_s / pass_s


def draft_seconds(depth: int, head_s: float, step_s: float) -> float:
    """Drafting `depth` levels: the head's pass of one row and `depth - 1` passes of W rows."""
    return head_s + (depth - 1) * step_s if depth else 0 * head_s


def running_tokens(values: Iterable[float]) -> list[float]:
    """Expected tokens of a pass that verifies the first k nodes, k = 0, 1, ...; the bonus token
    included."""
    return list(accumulate(values, initial=1))


def choose_num_rows(
    values: Sequence[float],
    row_counts: Iterable[int],
    seconds_per_rows: Callable[[int], float],
    rest_s: float,
    objective: Objective = RATIO,
) -> int:
    """The row count with the largest objective; the smaller one on a tie. `row_counts` is not
    empty.

    `values` are path probabilities of drafted nodes, largest first. A row count above the tree's
    size is weighed with all its nodes; 1 is plain decoding. `rest_s`: time of the pass beside
    verifying, drafting included.
    """
    tokens = running_tokens(values)

    def value(num_rows: int) -> float:
        expected = tokens[min(num_rows - 1, len(values))]
        return objective.value(expected, rest_s + seconds_per_rows(num_rows))

    return max(sorted(row_counts), key=value)


def least_value(
    seconds: Mapping[int, float], rest_s: float, objective: Objective = RATIO
) -> float:
    """A path probability that the rows of no larger graph pay below, if all theirs are: least mean
    value of the rows from one row count to the next at which the next is the better choice.

    `seconds` of verifying by row count, ascending; `rest_s` as for `choose_num_rows`. 0 where more
    rows cost nothing, above 1 where no tree pays.
    """

    def value(fewer: int, more: int) -> float:
        added_s = seconds[more] - seconds[fewer]
        # Every pass has a token at least, so the ratio is at least that over its time.
        total_s = rest_s + seconds[fewer]
        rate = objective.rate if objective.form == "lagrangian" else 1 / total_s if total_s else 0
        return rate * added_s / (more - fewer)

    return min((value(*pair) for pair in pairwise(seconds)), default=0.0)


def survival(hazards: Iterable[float]) -> list[float]:
    """P(at least d drafted tokens are accepted) for d = 1, 2, ...: running products of the
    hazards."""
    return list(accumulate(hazards, mul))


def choose_depth(
    hazards: Iterable[float],
    seconds_per_depth: Callable[[int], float],
    objective: Objective = RATIO,
    base_tokens: float = 1,
    worth: Iterable[float] | None = None,
) -> int:
    """The depth, 0 to the number of hazards, with the largest objective; the smaller on a tie.

    `base_tokens`: of a pass of depth 0, `worth[d - 1]`: what level d adds where it is reached; 1
    each for a chain that nothing else drafts beside.
    """
    levels = survival(hazards)
    if worth is not None:
        levels = [one * share for one, share in zip(worth, levels, strict=True)]
    tokens = list(accumulate(levels, initial=base_tokens))
    return max(
        range(len(tokens)),
        key=lambda depth: objective.value(tokens[depth], seconds_per_depth(depth)),
    )


def chain_tokens(alpha: float, depth: int) -> float:
    """Expected tokens of a chain of `depth` drafted tokens, each accepted with probability `alpha`
    once reached: the sum of alpha^i, i = 0..depth."""
    return sum(accumulate([alpha] * depth, mul, initial=1))


def chain_speedup(alpha: float, depth: int, cost_ratio: float) -> float:
    """Of that chain when a draft step takes `cost_ratio` of a verify pass and row counts are free
    (Leviathan et al., arXiv 2211.17192, theorem 3.8)."""
    return chain_tokens(alpha, depth) / (depth * cost_ratio + 1)


def chain_operations(alpha: float, depth: int, operations_ratio: float) -> float:
    """Arithmetic of that chain over plain decoding's, a drafted token costing `operations_ratio`
    of a verified one."""
    return (depth * operations_ratio + depth + 1) / chain_tokens(alpha, depth)


def best_chain_depth(alpha: float, cost_ratio: float, max_depth: int) -> int:
    """Depth of the fastest chain, the smaller on a tie; 0 where alpha <= cost_ratio."""
    return max(range(max_depth + 1), key=lambda depth: chain_speedup(alpha, depth, cost_ratio))


def long_run_choices(
    contexts: Sequence[tuple[float, Sequence[tuple[float, float]]]],
) -> tuple[list[int], float]:
    """The choice in each context that makes tokens over seconds of the whole largest, and that
    rate.

    A context is its probability and the (tokens, seconds) of each choice. Maximising
    tokens - rate * seconds in every context at the rate that comes of it is the optimum
    (Dinkelbach, 1967); from any start the rate rises until it is reached. On ties the first.
    """

    def outcome(choices: Sequence[int]) -> float:
        picked = [
            (share, options[choice])
            for (share, options), choice in zip(contexts, choices, strict=True)
        ]
        tokens = sum(share * option[0] for share, option in picked)
        return tokens / sum(share * option[1] for share, option in picked)

    choices = [0] * len(contexts)
    rate = outcome(choices)
    while True:
        choices = [
            max(range(len(options)), key=lambda i: options[i][0] - rate * options[i][1])
            for _, options in contexts
        ]
        better = outcome(choices)
        if better <= rate:
            return choices, rate
        rate = better
