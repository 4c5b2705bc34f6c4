"""Log-probabilities of emitted tokens, for who asked for them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of probabilities at one place of the output.

    raw: in the verifier's own distribution, before anything the request asks for. processed: in
    the distribution that the token was drawn from; at temperature 0 that of the processed logits.
    top_raw, top_processed: the most likely tokens and theirs, best first, the lower id on ties;
    tokens that are out are left out.
    """

    token_id: int
    raw: float
    processed: float
    top_raw: tuple[tuple[int, float], ...]
    top_processed: tuple[tuple[int, float], ...]

    def to_json(self) -> dict[str, Any]:
        def listed(top: tuple[tuple[int, float], ...]) -> list[dict[str, Any]]:
            return [{"id": token_id, "logprob": value} for token_id, value in top]

        return {
            "id": self.token_id,
            "raw": self.raw,
            "processed": self.processed,
            "top_raw": listed(self.top_raw),
            "top_processed": listed(self.top_processed),
        }


def token_logprobs(
    token_id: int, logits: torch.Tensor, scores: torch.Tensor, num: int
) -> TokenLogprobs:
    """Of the chosen token and the `num` likeliest; raw logits and processed scores [vocab]."""
    raw = logits.to(torch.float64).log_softmax(0)
    processed = scores.to(torch.float64).log_softmax(0)
    return TokenLogprobs(
        token_id=token_id,
        raw=float(raw[token_id]),
        processed=float(processed[token_id]),
        top_raw=_top(raw, num),
        top_processed=_top(processed, num),
    )


def _top(values: torch.Tensor, num: int) -> tuple[tuple[int, float], ...]:
    num = min(num, len(values))
    if num == 0:
        return ()
    ids = (values >= values.topk(num).values[-1]).logical_and_(values > -math.inf).nonzero()
    pairs = [(int(i), float(values[i])) for i in ids.squeeze(1)]
    return tuple(sorted(pairs, key=lambda pair: -pair[1])[:num])
