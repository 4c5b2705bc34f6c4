"""The one formula of a pass: tokens it is expected to bring, over the time it takes.

Long-run decoding speed is tokens / time. A pass brings one token whatever happens, plus one for
every drafted node that the verifier accepts, so a tree whose nodes have path probabilities v is
worth 1 + sum(v) tokens. Verifying k of them takes T(V) for a graph of V >= k + 1 rows (the root
has one) on top of the host's own time:

    J(k) = (1 + v_1 + ... + v_k) / (rest_s + T(V)),     v sorted, largest first

Arithmetic only, so exact numbers (fractions.Fraction) give exact results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from operator import mul


def running_tokens(values: Iterable[float]) -> list[float]:
    """Expected tokens of a pass that verifies the first k nodes, k = 0, 1, ...; the bonus token
    included."""
    return list(accumulate(values, initial=1))


def choose_num_rows(
    values: Sequence[float],
    row_counts: Iterable[int],
    seconds_per_rows: Callable[[int], float],
    rest_s: float,
) -> int:
    """The row count with the largest J; the smaller one on a tie. `row_counts` is not empty.

    `values` are path probabilities of drafted nodes, largest first. A row count above the tree's
    size is weighed with all its nodes; 1 is plain decoding.
    """
    tokens = running_tokens(values)

    def rate(num_rows: int) -> float:
        return tokens[min(num_rows - 1, len(values))] / (rest_s + seconds_per_rows(num_rows))

    return max(sorted(row_counts), key=rate)


def survival(hazards: Iterable[float]) -> list[float]:
    """P(at least d drafted tokens are accepted) for d = 1, 2, ...: running products of the
    hazards."""
    return list(accumulate(hazards, mul))


def choose_depth(hazards: Iterable[float], seconds_per_depth: Callable[[int], float]) -> int:
    """The depth, 0 to the number of hazards, with the most expected tokens per second; the smaller
    on a tie."""
    tokens = running_tokens(survival(hazards))
    return max(range(len(tokens)), key=lambda depth: tokens[depth] / seconds_per_depth(depth))
