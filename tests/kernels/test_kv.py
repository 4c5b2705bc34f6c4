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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint8])
def test_write_rounds(ops: Operators, dtype: torch.dtype) -> None:
    """Nearest, halves to even: bits of the definition, ties and large and tiny rows included."""
    size = 68
    rows = torch.randn(1, 5, 2, size).transpose(1, 2)
    rows[0, 0] *= 1e30
    rows[0, 1] *= 1e-30
    rows[0, 0, 1] = 0.0
    # Halves of the int8 scale, and halves between two bfloat16 values.
    rows[0, 0, 2] = torch.arange(size) * 0.5 - 16.5
    rows[0, 0, 2, 0] = 127.0
    rows[0, 1, 2] = 1.0 + torch.arange(size) * 2.0**-8
    slots = torch.tensor([7, 8, 19, 0, 3])
    cache = torch.zeros(1, 2, 20, size + 4 if dtype == torch.uint8 else size, dtype=dtype)
    wanted = cache.clone()
    reference.kv_write(wanted, rows, slots)
    ops.kv_write(cache, rows, slots)
    assert torch.equal(cache, wanted)
    back = reference.decode_cache(cache)[:, :, slots].float()
    step = rows.abs().amax(dim=-1, keepdim=True) / (254 if dtype == torch.uint8 else 256)
    assert bool(((back - rows).abs() <= 1.001 * step).all())


def test_write_keeps_not_a_number(ops: Operators) -> None:
    """A row that no scale fits decodes to NaN; a row too small for one to zeros."""
    rows = torch.ones(1, 1, 3, 8)
    rows[0, 0, 0, 3] = float("nan")
    rows[0, 0, 1, 3] = float("inf")
    rows[0, 0, 2] = 1e-39
    for dtype, size in ((torch.bfloat16, 8), (torch.uint8, 12)):
        cache = torch.zeros(1, 1, 3, size, dtype=dtype)
        ops.kv_write(cache, rows, torch.arange(3))
        values = reference.decode_cache(cache)
        assert bool(values[0, 0, 0, 3].isnan())
        if dtype == torch.uint8:
            assert bool(values[0, 0, :2].isnan().all())
            assert bool((values[0, 0, 2] == 0).all())


def test_write_refuses(ops: Operators) -> None:
    rows = torch.randn(1, 2, 1, 8)
    slots = torch.tensor([0])
    for cache, message in (
        (torch.zeros(1, 2, 4, 8, dtype=torch.float16), "kv_write: cache: expected .* got Half"),
        (torch.zeros(1, 2, 4, 8, dtype=torch.uint8), "do not fit cache"),
        (torch.zeros(1, 2, 4, 10, dtype=torch.uint8), "a multiple of 4, got 10 bytes"),
        (torch.zeros(1, 2, 4, 12), "do not fit cache"),
    ):
        with pytest.raises(RuntimeError, match=message):
            ops.kv_write(cache, rows, slots)


@pytest.mark.parametrize("moves", [{}, {9: 8}, {5: 4, 6: 5, 7: 6, 8: 7}, {4: 5, 5: 4, 9: 6}])
def test_commit(ops: Operators, moves: dict[int, int]) -> None:
    """Every source is read before any target is written."""
    caches = [
        torch.randn(1, 3, 20, 8),
        torch.randn(1, 2, 20, 5),
        torch.randn(1, 2, 20, 6).bfloat16(),
        torch.randint(0, 256, (1, 2, 20, 12), dtype=torch.uint8),
    ]
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
