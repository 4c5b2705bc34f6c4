"""Sampling options for tests that compare trees with plain decoding: each alone, and mixes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

TEMPERATURES = (0.0, 0.6, 1.0, 1.5)


def forbid_last(ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    """No token twice in a row."""
    logits[ids[-1]] = -torch.inf
    return logits


def alone(eos_ids: Sequence[int], frequent: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Every option by itself. `frequent`: tokens whose bias is noticed."""
    return {
        "nothing": {},
        "top_k": {"top_k": 8},
        "top_p": {"top_p": 0.85},
        "min_p": {"min_p": 0.05},
        "repetition": {"repetition_penalty": 1.3},
        "presence": {"presence_penalty": 1.5},
        "frequency": {"frequency_penalty": 0.8},
        "bias": {"logit_bias": {token: 2.0 - 3.5 * (i % 2) for i, token in enumerate(frequent)}},
        "min_tokens": {"min_tokens": 16, "logit_bias": dict.fromkeys(eos_ids, 8.0)},
        "processor": {"processors": [forbid_last]},
    }


def mixes(options: dict[str, dict[str, Any]], num: int) -> dict[str, dict[str, Any]]:
    """Random selections of two to six of them."""
    rng = random.Random(8)
    found = {}
    while len(found) < num:
        names = rng.sample(sorted(options), rng.randrange(2, 7))
        mix: dict[str, Any] = {}
        for name in names:
            mix |= options[name]
        found["+".join(names)] = mix
    return found
