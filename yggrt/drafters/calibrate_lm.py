"""Measures how far to believe a language model that drafts, from texts that the verifier wrote.

The model reads the verifier's text, not its own, so one pass over it has all positions. A drafted
path is only followed while it is right, and stretches where guesses were right are easier than
others: depth d is measured where the d - 1 tokens before were the model's first guesses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from yggrt.core import schema
from yggrt.core.passes import DraftGraphs, prefill_chunks
from yggrt.drafters.calibrate import Recording

# Powers of the square root of two around 1.
TEMPERATURES = tuple(2.0 ** (step / 2) for step in range(-6, 11))
# A depth with fewer positions takes the temperature of the depth above it.
MIN_POSITIONS = 64


class Sample(NamedTuple):
    """What the model thought of one token that the verifier chose.

    logit: the token's. log_sums: of exp(logits / T) for each of TEMPERATURES. streak: tokens right
    before that were the model's first guess. agrees: this one is.
    """

    logit: float
    log_sums: tuple[float, ...]
    streak: int
    agrees: bool


def calibrate_lm(
    graphs: DraftGraphs, recordings: Sequence[Recording], num_ids: int, max_depth: int
) -> schema.LmDrafter:
    """The parameters with measured temperatures for depths up to `max_depth`."""
    samples = [sample for one in recordings for sample in read_samples(graphs, one, num_ids)]
    share = sum(sample.agrees for sample in samples) / len(samples) if samples else 0.0
    return schema.LmDrafter(
        temperatures=fit_temperatures(samples, max_depth),
        agreement=share,
        num_positions=len(samples),
    )


def read_samples(graphs: DraftGraphs, recording: Recording, num_ids: int) -> Iterator[Sample]:
    """One sample for each output token that the model could have drafted."""
    prompt, output, _ = recording
    known = min(num_ids, graphs.vocab_size)
    last_id = graphs.vocab_size - 1
    ids = [min(token, last_id) for token in (*prompt, *output)][: graphs.max_model_len]
    cache, first = graphs.new_cache(), len(prompt) - 1
    for begin, end in prefill_chunks(graphs.prefill_buckets, 0, min(first, len(ids))):
        graphs.prefill(cache, ids[begin:end], begin)
    width, streak = graphs.widths[-1], 0
    for begin in range(first, len(ids) - 1, width):
        tokens = ids[begin : min(begin + width, len(ids) - 1)]
        chain = [range(end) for end in range(1, len(tokens) + 1)]
        logits = graphs.draft(cache, tokens, chain, begin).logits[:, :known]
        sums = torch.stack([torch.logsumexp(logits / t, 1) for t in TEMPERATURES], 1).tolist()
        for row, guess in enumerate(logits.argmax(1).tolist()):
            chosen = output[begin + row - first]
            if chosen < known:
                agrees = guess == chosen
                yield Sample(float(logits[row, chosen]), tuple(sums[row]), streak, agrees)
                streak = streak + 1 if agrees else 0
            else:
                streak = 0


def fit_temperatures(samples: Sequence[Sample], max_depth: int) -> tuple[float, ...]:
    """For each depth the temperature under which the chosen tokens are likeliest; 1 if there is
    nothing to go by.
    """
    return fit_by_depth(
        [[sample for sample in samples if sample.streak >= depth] for depth in range(max_depth)]
    )


def fit_by_depth(samples: Sequence[Sequence[Sample]]) -> tuple[float, ...]:
    """As `fit_temperatures`, of the samples of each depth."""
    temperatures: list[float] = []
    for reached in samples:
        if len(reached) < MIN_POSITIONS and (temperatures or not reached):
            temperatures.append(temperatures[-1] if temperatures else 1.0)
            continue
        losses = [
            sum(one.log_sums[i] - one.logit / t for one in reached)
            for i, t in enumerate(TEMPERATURES)
        ]
        temperatures.append(_lowest(losses))
    return tuple(temperatures)


def _lowest(losses: Sequence[float]) -> float:
    """The temperature at the bottom of the parabola through the least loss and its neighbours."""
    best = min(range(len(losses)), key=losses.__getitem__)
    step = 0.0
    if 0 < best < len(losses) - 1:
        left, middle, right = losses[best - 1 : best + 2]
        bend = left - 2 * middle + right
        step = (left - right) / (2 * bend) if bend > 0 else 0.0
    ratio = TEMPERATURES[1] / TEMPERATURES[0]
    return float(TEMPERATURES[best] * ratio**step)
