"""`keyed_select`: the tokens that a draw looks at, against the noise that they are hashed from."""

from __future__ import annotations

import math

import pytest
import torch
from ygg_kernels.ops import Operators

from yggrt.sampling.draw import draw
from yggrt.sampling.filters import Kept
from yggrt.sampling.noise import KeyedNoise


def operator(ops: Operators):
    return getattr(torch.ops, ops.namespace).keyed_select


@pytest.mark.parametrize("num", [0, 1, 255, 256, 257, 5000])
@pytest.mark.parametrize("bits", [1, 10, 31])
def test_selected_ids(ops: Operators, num: int, bits: int) -> None:
    scores = torch.randn(num)
    scores[::7] = -math.inf
    noise = KeyedNoise(num + bits, 3, 1.0)
    for bound in (-math.inf, 0.0, 1.5, math.inf):
        wanted = (noise.loud(11, num, bits)[1] | (scores >= bound)).nonzero().squeeze(1)
        found = operator(ops)(scores, bound, noise.key(11), bits)
        assert found.dtype == torch.int64
        assert torch.equal(found, wanted)


def test_draws_are_the_same(ops: Operators) -> None:
    for trial in range(100):
        scores = torch.randn(20_000) * (0.1, 1, 3, 8, 100, 2e4)[trial % 6]
        kept, noise = Kept.all(scores), KeyedNoise(trial, 0, 1.0)
        likely = int(scores.argmax()) if trial % 2 else None
        wanted = draw(kept, noise, trial, likely=likely)
        assert draw(kept, noise, trial, likely=likely, keyed_select=operator(ops)) == wanted


def test_refuses(ops: Operators) -> None:
    for arguments, message in (
        ((torch.zeros(4).double(), 0.0, 1, 10), "float32"),
        ((torch.zeros(4, 2), 0.0, 1, 10), "1 dimensions"),
        ((torch.zeros(8)[::2], 0.0, 1, 10), "contiguous"),
        ((torch.zeros(4), 0.0, 1, 32), r"num_bits is 32, expected 1\.\.31"),
    ):
        with pytest.raises(RuntimeError, match=message):
            operator(ops)(*arguments)
