"""What acts on the logits before temperature: bias, penalties, a minimum length, callbacks.

They depend on the tokens before, so they see prompt, output and accepted path. Formulas are those
of transformers (repetition penalty, minimum length) and of the OpenAI interface as vLLM computes
it (presence and frequency penalty).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

import torch

from yggrt.core.errors import RequestError
from yggrt.sampling.params import Processor


class TokenCounts:
    """How often each token occurred: `ids` [n] int64, each once, and `counts` [n] float32."""

    def __init__(self, vocab_size: int, tokens: Iterable[int] = ()) -> None:
        self._slots: dict[int, int] = {}
        self._numbers: list[int] = []
        self._ids = torch.empty(vocab_size, dtype=torch.int64)
        self._counts = torch.zeros(vocab_size, dtype=torch.float32)
        tally: dict[int, int] = {}
        for token in tokens:
            tally[token] = tally.get(token, 0) + 1
        for token, num in tally.items():
            self.add(token, num)

    def add(self, token: int, num: int = 1) -> None:
        slot = self._slots.get(token)
        if slot is None:
            slot = self._slots[token] = len(self._slots)
            self._numbers.append(0)
            self._ids[slot] = token
        self._numbers[slot] += num
        self._counts[slot] = self._numbers[slot]

    @property
    def ids(self) -> torch.Tensor:
        return self._ids[: len(self._slots)]

    @property
    def counts(self) -> torch.Tensor:
        return self._counts[: len(self._slots)]


class Bias:
    """Adds a number to the logits of some tokens."""

    def __init__(self, bias: Mapping[int, float]) -> None:
        self._ids = torch.tensor(list(bias), dtype=torch.int64)
        self._values = torch.tensor(list(bias.values()), dtype=torch.float32)

    def apply(self, logits: torch.Tensor) -> None:
        logits[self._ids] += self._values


def penalise_repetition(logits: torch.Tensor, seen: TokenCounts, penalty: float) -> None:
    """Multiplies negative logits of seen tokens by the penalty and divides the others by it
    (Keskar et al., "CTRL", arXiv 1909.05858, as transformers computes it).
    """
    values = logits[seen.ids]
    logits[seen.ids] = torch.where(values < 0, values * penalty, values / penalty)


def penalise_occurrence(
    logits: torch.Tensor, output: TokenCounts, presence: float, frequency: float
) -> None:
    """Takes frequency x count and then presence from the logits of tokens of the output."""
    values = logits[output.ids]
    values -= frequency * output.counts
    values -= presence
    logits[output.ids] = values


def forbid(logits: torch.Tensor, ids: Collection[int]) -> None:
    """Takes tokens out."""
    logits[list(ids)] = -math.inf


def call_processor(processor: Processor, ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    """The user's processor on copies of ids and logits; raises RequestError if it raises or gives
    anything but logits of the same shape.
    """
    name = getattr(processor, "__name__", type(processor).__name__)
    tip = "correct the processor; it is called with (list of ids, logits [vocab] float32)"
    try:
        changed = processor(list(ids), logits.clone())
    except Exception as error:  # whatever the user's code raises ends the request
        raise RequestError(
            f"processor {name!r} raised {type(error).__name__}: {_one_line(error)}", tip
        ) from error
    if not isinstance(changed, torch.Tensor):
        raise RequestError(
            f"processor {name!r} gave {type(changed).__name__}, wanted a tensor of shape "
            f"{list(logits.shape)}",
            tip,
        )
    if changed.shape != logits.shape or not changed.is_floating_point():
        raise RequestError(
            f"processor {name!r} gave {changed.dtype} of shape {list(changed.shape)}, wanted "
            f"floating point of shape {list(logits.shape)}",
            tip,
        )
    if bool(changed.isnan().any()):
        raise RequestError(f"processor {name!r} gave logits that are no numbers (NaN)", tip)
    return changed.detach().to(device=logits.device, dtype=torch.float32)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or "no message"
