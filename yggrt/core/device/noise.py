"""Keyed noise of many positions at once, keys and positions read on the device.

The generator is that of `yggrt.sampling.noise`, which says what it is: here its words are tensors
from the seed on. int64 holds a word; products and sums wrap, as its arithmetic wants.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MULTIPLIERS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)


class Draw(NamedTuple):
    """What a sampled request chooses by. key [2] int64: the seed's 64 bits and the choice index,
    as `ygg_cuda::keyed_topk` takes them. temperature [1] float64, above 0."""

    key: Tensor
    temperature: Tensor


def stream_keys(key: Tensor, positions: Tensor) -> Tensor:
    """The states [n] of the streams at positions [n] int64 of prompt and output."""
    seed, choice = key[:1], key[1:]
    stream = _mix(_mix(seed + _GOLDEN) + (choice + 1) * _GOLDEN)
    return _mix(stream + (positions + 1) * _GOLDEN)


def uniform(streams: Tensor, token_ids: Tensor) -> Tensor:
    """x of tokens int64, each from the stream it is broadcast with: float64 in (0, 1)."""
    words = _mix(streams + (token_ids + 1) * _GOLDEN)
    return (words >> 12).to(torch.float64) * 2.0**-52 + (0.5 + 2.0**-53)


def _mix(words: Tensor) -> Tensor:
    """SplitMix64's finalizer."""
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        words = _xor_shifted(words, shift) * multiplier
    return _xor_shifted(words, 31)


def _xor_shifted(words: Tensor, shift: int) -> Tensor:
    # The mask makes an arithmetic shift a logical one.
    return words ^ (words >> shift & ((1 << (64 - shift)) - 1))
