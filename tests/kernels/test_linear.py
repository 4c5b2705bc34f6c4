"""`linear` and `embedding`: values against float64, bits against a row alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from ygg_kernels import reference
from ygg_kernels.ops import Operators

DTYPES = (torch.float32, torch.bfloat16)
SHAPES = (((40,), 600), ((192, 17, 16), 576), ((1, 100), 37), ((64,), 1536))


def make_weights(
    sizes: tuple[int, ...], num_k: int, dtype: torch.dtype
) -> tuple[list[Tensor], list[Tensor]]:
    weights = [reference.pack_panels(torch.randn(n, num_k).to(dtype)) for n in sizes]
    return weights, [torch.randn(n) for n in sizes]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("sizes", "num_k"), SHAPES)
@pytest.mark.parametrize("num_rows", [1, 3, 8, 25, 64])
def test_linear_values(
    ops: Operators, sizes: tuple[int, ...], num_k: int, num_rows: int, dtype: torch.dtype
) -> None:
    """The error is that of K roundings that mostly cancel: sqrt(K) x 2^-24 x sum |products|."""
    weights, biases = make_weights(sizes, num_k, dtype)
    x = torch.randn(1, num_rows, num_k)
    exact = reference.linear(x.double(), weights, biases, sizes)
    products = reference.linear_unbiased(x.double(), weights, sizes)
    magnitudes = reference.linear(
        x.double().abs(), [w.double().abs() for w in weights], [b.abs() for b in biases], sizes
    )
    for outputs, wanted in (
        (ops.linear(x, weights, biases, list(sizes)), exact),
        (ops.linear_unbiased(x, weights, list(sizes)), products),
    ):
        for output, value, magnitude in zip(outputs, wanted, magnitudes, strict=True):
            assert output.dtype == torch.float32
            assert output.shape == value.shape
            assert bool(((output - value).abs() <= magnitude * num_k**0.5 * 2**-24).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_k", [96, 256, 576, 1100])
def test_linear_row_invariance(ops: Operators, dtype: torch.dtype, num_k: int) -> None:
    """A row has the same bits alone and among others, at any place, on any number of threads."""
    sizes = (34, 16)
    weights, biases = make_weights(sizes, num_k, dtype)
    x = torch.randn(64, num_k)
    alone = [
        torch.cat(rows)
        for rows in zip(
            *(ops.linear(x[r : r + 1], weights, biases, list(sizes)) for r in range(64)),
            strict=True,
        )
    ]
    for num_threads in (1, 2, 5):
        torch.set_num_threads(num_threads)
        for num_rows in range(1, 65, 1 if num_threads == 1 else 13):
            for first in (0, 64 - num_rows):
                rows = x[first : first + num_rows]
                for output, wanted in zip(
                    ops.linear(rows, weights, biases, list(sizes)), alone, strict=True
                ):
                    assert torch.equal(output, wanted[first : first + num_rows])


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_instruction_sets(
    avx_pair: tuple[Operators, Operators], dtype: torch.dtype
) -> None:
    weights, biases = make_weights((50, 17), 600, dtype)
    for num_rows in (1, 2, 5, 16, 33):
        x = torch.randn(num_rows, 600)
        narrow, wide = (op.linear(x, weights, biases, [50, 17]) for op in avx_pair)
        assert all(torch.equal(a, b) for a, b in zip(narrow, wide, strict=True))


def test_linear_refuses(ops: Operators) -> None:
    weights, biases = make_weights((20,), 64, torch.float32)
    x = torch.randn(4, 64)
    for arguments, message in (
        ((x.double(), weights, biases, [20]), "float32"),
        ((x.T, weights, biases, [20]), "contiguous"),
        ((x, weights, biases, [40]), "panels"),
        ((x, weights, biases, [20, 20]), "sizes"),
        ((x, weights, biases * 2, [20]), "2 biases for 1 weights"),
        ((x, weights, [torch.randn(19)], [20]), "bias has 19"),
        ((x, [weights[0].half()], biases, [20]), "float32 or bfloat16"),
        ((x, [weights[0].transpose(1, 2)], biases, [20]), "contiguous panels"),
        ((x[:, :32].contiguous(), weights, biases, [20]), "panels"),
    ):
        with pytest.raises(RuntimeError, match=message):
            ops.linear(*arguments)


@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding(ops: Operators, dtype: torch.dtype) -> None:
    weight = torch.randn(100, 72).to(dtype)
    packed = reference.pack_panels(weight)
    ids = torch.tensor([[0, 99, 15, 16, 99]])
    output = ops.embedding(ids, packed, 100)
    assert torch.equal(output, weight[ids].float())
    assert torch.equal(output, reference.embedding(ids, packed, 100))
    for wrong in (-1, 100):
        with pytest.raises(RuntimeError, match=f"is {wrong}, expected 0 <= value < 100"):
            ops.embedding(torch.tensor([3, wrong]), packed, 100)
    with pytest.raises(RuntimeError, match="int64"):
        ops.embedding(ids.int(), packed, 100)
