"""`kv_write` and `kv_commit` against their definitions, overlapping moves included."""

from __future__ import annotations

import pytest
import torch
from ygg_kernels import reference
from ygg_kernels.ops import Operators


def test_write(ops: Operators) -> None:
    cache = torch.randn(1, 3, 20, 8)
    rows = torch.randn(1, 4, 3, 8).transpose(1, 2)
    slots = torch.tensor([7, 8, 19, 0])
    wanted = cache.clone()
    reference.kv_write(wanted, rows, slots)
    ops.kv_write(cache, rows, slots)
    assert torch.equal(cache, wanted)
    with pytest.raises(RuntimeError, match=r"slots\[1\] is 20"):
        ops.kv_write(cache, rows[:, :, :2], torch.tensor([0, 20]))
    with pytest.raises(RuntimeError, match="do not fit cache"):
        ops.kv_write(cache, rows, slots[:3])
    assert torch.equal(cache, wanted)


@pytest.mark.parametrize("moves", [{}, {9: 8}, {5: 4, 6: 5, 7: 6, 8: 7}, {4: 5, 5: 4, 9: 6}])
def test_commit(ops: Operators, moves: dict[int, int]) -> None:
    """Every source is read before any target is written."""
    caches = [torch.randn(1, 3, 20, 8), torch.randn(1, 2, 20, 5)]
    sources = torch.tensor(list(moves), dtype=torch.int64)
    targets = torch.tensor(list(moves.values()), dtype=torch.int64)
    wanted = [cache.clone() for cache in caches]
    reference.kv_commit(wanted, sources, targets)
    ops.kv_commit(caches, sources, targets)
    for cache, expected in zip(caches, wanted, strict=True):
        assert torch.equal(cache, expected)


def test_commit_refuses(ops: Operators) -> None:
    caches = [torch.randn(1, 3, 20, 8), torch.randn(1, 3, 10, 8)]
    before = [cache.clone() for cache in caches]
    index = torch.tensor([12])
    for arguments, message in (
        ((caches, index, index), r"sources\[0\] is 12, expected 0 <= value < 10"),
        ((caches, index - 13, index), r"sources\[0\] is -1"),
        ((caches, index[:0], index), "0 sources and 1 targets"),
        ((caches, index.int(), index), "int64"),
    ):
        with pytest.raises(RuntimeError, match=message):
            ops.kv_commit(*arguments)
    assert all(torch.equal(a, b) for a, b in zip(caches, before, strict=True))
