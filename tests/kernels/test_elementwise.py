"""`silu_mul` against float64, on one thread and on all."""

from __future__ import annotations

import pytest
import torch
from ygg_kernels.ops import Operators


@pytest.mark.parametrize("shape", [(1, 5), (1, 1, 1536), (8, 1536), (3, 4001)])
def test_silu_mul(ops: Operators, shape: tuple[int, ...]) -> None:
    a, b = 10 * torch.randn(shape), torch.randn(shape)
    wanted = torch.nn.functional.silu(a.double()) * b.double()
    found = ops.silu_mul(a, b)
    assert found.shape == a.shape
    assert bool(((found - wanted).abs() <= 3e-7 * wanted.abs()).all())


def test_silu_mul_row_invariance(ops: Operators) -> None:
    a, b = torch.randn(9, 1537), torch.randn(9, 1537)
    together = ops.silu_mul(a, b)
    for row in range(9):
        alone = ops.silu_mul(a[row : row + 1], b[row : row + 1])
        assert torch.equal(together[row : row + 1], alone)


def test_silu_mul_of_views(ops: Operators) -> None:
    joined, row = torch.randn(5, 64), torch.randn(1, 32)
    a, b = joined.chunk(2, dim=-1)
    assert torch.equal(ops.silu_mul(a, b), ops.silu_mul(a.contiguous(), b.contiguous()))
    assert torch.equal(ops.silu_mul(a, row), ops.silu_mul(a, row.expand(5, 32)))


def test_silu_mul_at_the_ends(ops: Operators) -> None:
    ends = torch.tensor([torch.inf, -torch.inf, torch.nan, 200.0, -200.0, 0.0])
    found = ops.silu_mul(ends, torch.ones(6))
    assert torch.equal(found[[0, 3, 4, 5]], torch.tensor([torch.inf, 200.0, 0.0, 0.0]))
    assert found[1:3].isnan().all()


def test_silu_mul_refuses(ops: Operators) -> None:
    with pytest.raises(RuntimeError, match="silu_mul: expected b of the sizes of a or fewer"):
        ops.silu_mul(torch.randn(2, 3), torch.randn(3, 2))
    with pytest.raises(RuntimeError, match="silu_mul: b: expected a float32"):
        ops.silu_mul(torch.randn(2), torch.randn(2).double())
