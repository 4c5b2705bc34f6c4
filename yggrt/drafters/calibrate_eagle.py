"""Measures how far to believe a head, from texts that the verifier wrote.

At every token the head guesses on from the verifier's features as it would for a tree: a depth is
measured where its own first guesses were right down to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from yggrt.core import schema
from yggrt.core.passes import DraftGraphs
from yggrt.drafters.calibrate import Recording
from yggrt.drafters.calibrate_lm import TEMPERATURES, Sample, fit_by_depth
from yggrt.drafters.eagle import EagleDrafter

# A depth's coverage starts from that of the depth above it, worth this many positions.
PRIOR_WEIGHT = 16.0


def calibrate_eagle(
    graphs: DraftGraphs,
    recordings: Sequence[Recording],
    token_ids: tuple[int, ...],
    max_depth: int,
) -> schema.EagleDrafter:
    """The parameters with measured temperatures and coverage for depths up to `max_depth`; all
    recordings have their hidden states. `token_ids` as in the parameters.
    """
    blank = schema.EagleDrafter(temperatures=(1.0,), coverage=(1.0,), token_ids=token_ids)
    drafter = EagleDrafter(graphs, blank)
    columns = {token: i for i, token in enumerate(token_ids)} if token_ids else None
    samples: list[list[Sample]] = [[] for _ in range(max_depth)]
    covered, reached = [0] * max_depth, [0] * max_depth
    for prompt, output, hidden in recordings:
        assert hidden is not None
        drafter.start(prompt)
        drafter.observe(0, hidden, range(len(hidden)))
        for place in range(len(output)):
            for depth in range(min(max_depth, len(output) - place)):
                path = tuple(output[place : place + depth])
                if len(prompt) + place + depth >= drafter.max_model_len:
                    break
                [logits] = drafter.logits([path])
                token = output[place + depth]
                column = token if columns is None else columns.get(token)
                reached[depth] += 1
                if column is None:
                    break
                covered[depth] += 1
                agrees = int(logits.argmax()) == column
                sums = tuple(float(torch.logsumexp(logits / t, 0)) for t in TEMPERATURES)
                samples[depth].append(Sample(float(logits[column]), sums, depth, agrees))
                if not agrees:
                    break
            drafter.commit(output[place : place + 1])
    first = samples[0]
    return schema.EagleDrafter(
        temperatures=fit_by_depth(samples),
        coverage=coverage_by_depth(covered, reached),
        token_ids=token_ids,
        agreement=sum(one.agrees for one in first) / reached[0] if reached[0] else 0.0,
        num_positions=reached[0],
    )


def coverage_by_depth(covered: Sequence[int], reached: Sequence[int]) -> tuple[float, ...]:
    """Of the positions that were reached at each depth the share that was covered."""
    shares: list[float] = []
    before = 1.0
    for num_covered, num_reached in zip(covered, reached, strict=True):
        before = (num_covered + PRIOR_WEIGHT * before) / (num_reached + PRIOR_WEIGHT)
        shares.append(before)
    return tuple(shares)
