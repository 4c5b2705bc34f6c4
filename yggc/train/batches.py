"""The order of the training rows, and rows made into batches.

The order depends on the seed and the epoch alone, so a run that goes on after an interruption sees
what it would have seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from yggc.train.features import Features
from yggc.train.texts import Row

# Rows of similar length share a batch; they are sorted within pools of so many batches.
POOL_BATCHES = 64
# Response tokens that one thread passes through at a time; a batch is so many of these.
MICRO_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Batch:
    """B rows of text, their prompts ending in the same column.

    Columns 0 .. C-1 are the tokens but the last. The last R columns are the queries: column
    C - R is the prompt's last token, which predicts the response's first. Padding stands before a
    prompt and behind a response.

    ids: int64 [B, C]; next_ids: int64 [B, R], the token behind each query's
    positions: int64 [B, C], negative before the prompt
    features: [B, C, hidden] of each token; given: [B, C, size] of the token before, zero for
    token 0: its feature, or what the tapped layers are given there
    valid: bool [B, R], queries with a token behind them
    """

    ids: torch.Tensor
    next_ids: torch.Tensor
    positions: torch.Tensor
    features: torch.Tensor
    given: torch.Tensor
    valid: torch.Tensor

    @property
    def num_queries(self) -> int:
        return self.valid.shape[1]

    @property
    def first_query(self) -> int:
        return self.ids.shape[1] - self.num_queries

    def with_given(self, given: torch.Tensor) -> Batch:
        return replace(self, given=given)

    def valid_at(self, step: int) -> torch.Tensor:
        """Queries [B, R] that a draft can reach in `step`: it begins at a query."""
        reached = self.valid.clone()
        reached[:, :step] = False
        return reached


def epoch_batches(
    rows: Sequence[Row], batch_tokens: int, seed: int, epoch: int
) -> list[list[Row]]:
    """Every row once, in batches of at most `batch_tokens` padded response tokens (one row at
    least).
    """
    order = np.random.default_rng((seed, epoch)).permutation(len(rows))
    mean = sum(row.num_response for row in rows) / len(rows)
    pool_rows = max(1, int(POOL_BATCHES * batch_tokens / mean))
    batches: list[list[Row]] = []
    for start in range(0, len(order), pool_rows):
        pool = [rows[index] for index in order[start : start + pool_rows]]
        batches += pack(sorted(pool, key=lambda row: row.num_response), batch_tokens)
    shuffled = np.random.default_rng((seed, epoch, 1)).permutation(len(batches))
    return [batches[index] for index in shuffled]


def pack(rows: Sequence[Row], batch_tokens: int) -> list[list[Row]]:
    """Rows in the given order, shorter responses first, cut into batches."""
    batches: list[list[Row]] = []
    for row in rows:
        if not batches or (len(batches[-1]) + 1) * row.num_response > batch_tokens:
            batches.append([])
        batches[-1].append(row)
    return batches


def first_batches(rows: Sequence[Row], num_tokens: int) -> list[list[Row]]:
    """Micro-batches of the first rows with so many response tokens, of one row at least."""
    chosen: list[Row] = []
    for row in rows:
        if chosen and num_tokens < row.num_response:
            break
        num_tokens -= row.num_response
        chosen.append(row)
    return pack(sorted(chosen, key=lambda row: row.num_response), MICRO_TOKENS)


def collate(rows: Sequence[Row], features: Features, device: torch.device) -> Batch:
    """The batch of these rows, on `device`."""
    found = features.get(rows)
    hidden = found[0].shape[1] // (1 + features.num_taps)
    # What a head is given: the taps where there are some.
    first = hidden if features.num_taps else 0
    before = max(row.num_prompt for row in rows) - 1
    num = max(row.num_response for row in rows)
    size, width = len(rows), before + num
    ids = torch.zeros(size, width + 1, dtype=torch.int64)
    stored = torch.zeros(size, width + 1, hidden, dtype=torch.bfloat16)
    given = torch.zeros(size, width, found[0].shape[1] - first, dtype=torch.bfloat16)
    valid = torch.zeros(size, num, dtype=torch.bool)
    positions = torch.arange(width).repeat(size, 1)
    for index, (row, own) in enumerate(zip(rows, found, strict=True)):
        start = before + 1 - row.num_prompt
        end = start + len(row.ids)
        ids[index, start:end] = torch.from_numpy(row.ids)
        stored[index, start:end] = own[:, :hidden]
        given[index, start + 1 : min(end, width)] = own[: min(end, width) - start - 1, first:]
        valid[index, : row.num_response] = True
        positions[index] -= start
    parts = (ids[:, :-1], ids[:, -num:], positions, stored[:, :-1], given, valid)
    return Batch(*(part.to(device) for part in parts))
