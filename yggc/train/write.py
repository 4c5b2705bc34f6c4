"""A verifier writes many answers at once; a slot whose answer has ended takes the next prompt."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from yggc.train.slots import Engine

# Prompts that are read together: a few more rows make faster products, and slots wait for it.
REFILL = 4


@dataclass(frozen=True, slots=True)
class Request:
    """`temperature` 0 takes the likeliest token; else `seed` fixes what is drawn."""

    ids: tuple[int, ...]
    temperature: float
    seed: str
    key: Any = None  # comes back with the answer


@dataclass(frozen=True, slots=True)
class Answer:
    """What was written for a request, with the token that ended it."""

    request: Request
    ids: tuple[int, ...]
    finish: Literal["eos", "length"]


def write_answers(
    engine: Engine, requests: Iterable[Request], eos_ids: Iterable[int], max_tokens: int
) -> Iterator[Answer]:
    """Answers as they end, in no order; each is what its request alone would give, up to the
    rounding of `engine`'s arithmetic.

    `requests` is asked for the next ones when slots are free, and may end early.
    """
    ends = frozenset(eos_ids)
    pending = iter(requests)
    more = True
    slots: list[_Row | None] = [None] * engine.num_slots
    while True:
        free = [index for index, slot in enumerate(slots) if slot is None]
        while more and (len(free) >= REFILL or len(free) == engine.num_slots):
            batch = [
                _Row(request) for request in itertools.islice(pending, min(REFILL, len(free)))
            ]
            more = bool(batch)
            if not batch:
                break
            taken, free = free[: len(batch)], free[len(batch) :]
            logits = engine.prefill(taken, [row.request.ids for row in batch])
            for index, row, token in zip(taken, batch, _choose(logits, batch), strict=True):
                row.ids.append(token)
                slots[index] = row
            yield from _finished(slots, taken, ends, max_tokens)
            free += [index for index in taken if slots[index] is None]
        if not any(slots):
            return
        # A slot without a row computes something that nobody reads.
        logits = engine.decode(
            [row.ids[-1] if row else 0 for row in slots],
            [len(row.request.ids) + len(row.ids) - 1 if row else 0 for row in slots],
        )
        for slot, token in zip(slots, _choose(logits, slots), strict=True):
            if slot is not None:
                slot.ids.append(token)
        yield from _finished(slots, range(len(slots)), ends, max_tokens)


def _finished(
    slots: list[_Row | None], among: Iterable[int], ends: frozenset[int], max_tokens: int
) -> Iterator[Answer]:
    """Takes the rows that have ended out of their slots."""
    for index in among:
        row = slots[index]
        if row is None or (row.ids[-1] not in ends and len(row.ids) < max_tokens):
            continue
        slots[index] = None
        finish: Literal["eos", "length"] = "eos" if row.ids[-1] in ends else "length"
        yield Answer(row.request, tuple(row.ids), finish)


@dataclass
class _Row:
    request: Request
    ids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.request.seed)


@torch.inference_mode()
def _choose(logits: torch.Tensor, rows: Sequence[_Row | None]) -> list[int]:
    """The next token of every row; anything for no row."""
    tokens: list[int] = logits.argmax(-1).tolist()
    sampled = [i for i, row in enumerate(rows) if row is not None and row.request.temperature > 0]
    if not sampled:
        return tokens
    chosen = [row for row in (rows[i] for i in sampled) if row is not None]
    temperatures = torch.tensor([row.request.temperature for row in chosen], device=logits.device)
    picked = logits if len(sampled) == len(rows) else logits[sampled]
    sums = picked.div_(temperatures[:, None]).softmax(-1).cumsum_(-1)
    draws = torch.tensor([row.chance.random() for row in chosen], device=logits.device)
    # The last sum may fall short of 1 by rounding.
    found = torch.searchsorted(sums, (draws * sums[:, -1])[:, None], right=True)[:, 0]
    for index, token in zip(sampled, found.clamp(max=logits.shape[-1] - 1).tolist(), strict=True):
        tokens[index] = token
    return tokens
