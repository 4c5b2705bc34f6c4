"""Measures how far to believe Medusa heads, from texts that the verifier wrote.

A head says the same whatever the path, so one row of logits has all depths. A depth is measured
where the tokens above it were among the first few guesses, as they are in a tree.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from yggrt.core import schema
from yggrt.drafters.calibrate import Recording
from yggrt.drafters.calibrate_eagle import coverage_by_depth
from yggrt.drafters.calibrate_lm import TEMPERATURES, Sample, fit_by_depth

# A deeper token is looked at while those above it are among so many first guesses.
WIDTH = 4


def calibrate_medusa(
    recordings: Iterable[Recording], num_heads: int, token_ids: tuple[int, ...]
) -> schema.MedusaDrafter:
    """The parameters with what was measured of each head; all recordings have what the graphs gave
    of the prompt's last token and the answer's as hidden. `token_ids` as in the parameters.
    """
    columns = {token: i for i, token in enumerate(token_ids)} if token_ids else None
    samples: list[list[Sample]] = [[] for _ in range(num_heads)]
    covered, reached = [0] * num_heads, [0] * num_heads
    for _, output, hidden in recordings:
        assert hidden is not None
        for root, row in enumerate(hidden[: len(output) - 1]):
            logits = row.view(num_heads, -1)
            for depth, token in enumerate(output[root + 1 : root + 1 + num_heads]):
                column = token if columns is None else columns.get(token)
                reached[depth] += 1
                if column is None:
                    break
                covered[depth] += 1
                own = logits[depth, column]
                rank = int((logits[depth] > own).sum())
                sums = tuple(float(torch.logsumexp(logits[depth] / t, 0)) for t in TEMPERATURES)
                samples[depth].append(Sample(float(own), sums, depth, rank == 0))
                if rank >= WIDTH:
                    break
    return schema.MedusaDrafter(
        temperatures=fit_by_depth(samples),
        coverage=coverage_by_depth(covered, reached),
        token_ids=token_ids,
        agreement=sum(one.agrees for one in samples[0]) / reached[0] if reached[0] else 0.0,
        num_positions=reached[0],
    )
