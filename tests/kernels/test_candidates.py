"""`top_shares`: the most likely tokens of a row against a softmax in float64. `argmax`."""

from __future__ import annotations

import pytest
import torch
from ygg_kernels.ops import Operators


def operator(ops: Operators):
    return getattr(torch.ops, ops.namespace).top_shares


@pytest.mark.parametrize("num", [1, 15, 16, 63, 64, 65, 8192, 49_153])
@pytest.mark.parametrize("count", [1, 8, 64])
def test_values(ops: Operators, num: int, count: int) -> None:
    count = min(count, num)
    logits = 5 * torch.randn(3, num)
    temperatures = torch.tensor([0.3, 1.0, 4.0])
    places, shares = operator(ops)(logits, temperatures, count)
    wanted = torch.softmax(logits.double() / temperatures[:, None].double(), 1)
    values, order = wanted.topk(count)
    assert torch.equal(places, order)
    assert torch.allclose(shares.double(), values, rtol=1e-5, atol=1e-9)


def test_equals_stand_in_order(ops: Operators) -> None:
    logits = torch.zeros(2, 1000)
    logits[1, 900] = logits[1, 70] = 1.0
    places, shares = operator(ops)(logits, torch.ones(2), 5)
    assert places.tolist() == [[0, 1, 2, 3, 4], [70, 900, 0, 1, 2]]
    assert torch.allclose(shares[0], torch.full((5,), 0.001), rtol=1e-5)


def test_minus_infinity_has_no_share(ops: Operators) -> None:
    logits = torch.full((1, 200), -torch.inf)
    logits[0, 150] = 2.0
    places, shares = operator(ops)(logits, torch.ones(1), 2)
    assert places[0, 0] == 150
    assert shares.tolist() == [[1.0, 0.0]]


def test_refuses(ops: Operators) -> None:
    logits, ones = torch.zeros(2, 9), torch.ones(2)
    for arguments, message in (
        ((logits.double(), ones, 1), "float32"),
        ((logits[:, ::2], ones, 1), "contiguous"),
        ((logits[0], ones, 1), "2 dimensions"),
        ((logits, torch.ones(3), 1), r"expected \[2\]"),
        ((logits, ones, 10), r"count is 10, expected 1..9"),
        ((logits, ones, 0), "count is 0"),
        ((logits, torch.tensor([1.0, 0.0]), 1), "temperature is 0"),
    ):
        with pytest.raises(RuntimeError, match=message):
            operator(ops)(*arguments)


@pytest.mark.parametrize("num", [1, 63, 64, 65, 49_153])
def test_argmax(ops: Operators, num: int) -> None:
    logits = torch.randn(3, num)
    assert torch.equal(ops.argmax(logits), logits.argmax(-1))
    # The first of equals, whatever stands beside them.
    equal = torch.randint(0, 2, (4, num)).float()
    equal[3] = -torch.inf
    first = [int((row == row.max()).nonzero()[0]) for row in equal]
    assert ops.argmax(equal).tolist() == first


def test_argmax_of_no_numbers(ops: Operators) -> None:
    logits = torch.randn(3, 500)
    logits[0, [300, 400]] = torch.nan
    logits[1, 7], logits[1, 8] = torch.inf, -torch.inf
    logits[2, 70], logits[2, 450] = -torch.inf, torch.inf
    assert ops.argmax(logits).tolist() == [300, 7, 450]


def test_argmax_refuses(ops: Operators) -> None:
    with pytest.raises(RuntimeError, match="argmax: logits: expected a contiguous"):
        ops.argmax(torch.randn(4, 10).t())
    with pytest.raises(RuntimeError, match="argmax: logits have no columns"):
        ops.argmax(torch.empty(2, 0))
