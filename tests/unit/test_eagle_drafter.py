"""The EAGLE drafter's memory of features, over graphs that only remember what they are given."""

from __future__ import annotations

from typing import Any

import torch

from yggrt.core.passes import DraftOutput
from yggrt.core.schema import EagleDrafter as Parameters
from yggrt.drafters.eagle import EagleDrafter

CONTEXT = 12


class Remembering:
    """Draft graphs of a head with a context of 12 tokens and features of one value."""

    widths, prefill_buckets = (1, 4), (4,)
    max_expanded, max_model_len, vocab_size, feature_size = 8, CONTEXT, 5, 1
    top_shares = None

    def __init__(self) -> None:
        self.given: list[list[float]] = []

    def new_cache(self) -> None:
        return None

    def draft(
        self, cache: Any, tokens: Any, paths: Any, length: int, features: Any
    ) -> DraftOutput:
        self.given.append([float(one) for one in features])
        return DraftOutput(torch.zeros(len(tokens), 5), torch.zeros(len(tokens), 1))


def hidden(first: int, num: int) -> torch.Tensor:
    """The feature of token t is t."""
    return torch.arange(first, first + num).float()[:, None]


def test_a_context_beyond_the_heads_own_is_survived() -> None:
    graphs = Remembering()
    drafter = EagleDrafter(graphs, Parameters(temperatures=(1.0,), coverage=(1.0,)))
    drafter.start([1] * 20)
    for first, num in ((0, 8), (8, 8), (16, 4)):
        drafter.observe(first, hidden(first, num), range(num))
    drafter.commit([1])
    drafter.observe(20, hidden(20, 1), (0,))
    # A chat goes on behind what both have, and back to where the head can draft again.
    drafter.rewind(18)
    drafter.observe(18, hidden(18, 3), range(3))
    drafter.rewind(3)
    drafter.commit([1])
    drafter.observe(3, hidden(3, 1), (0,))
    assert drafter.candidates([()], 2)[0]
    assert graphs.given == [[0.0, 0.0, 1.0, 2.0]]


def test_passes_without_a_draft_are_told_at_the_next_one() -> None:
    graphs = Remembering()
    drafter = EagleDrafter(graphs, Parameters(temperatures=(1.0,), coverage=(1.0,)))
    drafter.start([1, 1])
    drafter.observe(0, hidden(0, 2), range(2))
    drafter.commit([1])
    # Rows of a tree: the root's, then an accepted one's that is not the next.
    drafter.observe(2, torch.tensor([[2.0], [9.0], [3.0]]), (0, 2))
    drafter.commit([1])
    drafter.candidates([()], 2)
    assert graphs.given == [[0.0, 0.0, 1.0, 2.0]]
    drafter.observe(4, hidden(4, 1), (0,))
    drafter.commit([1])
    drafter.candidates([()], 2)
    assert graphs.given[1] == [3.0]
