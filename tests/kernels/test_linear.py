"""`linear` and `embedding`: values against float64 and against exact integers, bits against a row
alone.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from ygg_kernels import reference
from ygg_kernels.build import resolve_isa
from ygg_kernels.formats import FORMAT_NUMBERS, FORMATS
from ygg_kernels.ops import Operators

from yggc.models.packing import pack_matrix

FLOATS = ("float32", "bfloat16")
QUANTIZED = tuple(format.name for format in FORMATS if format.group)
SHAPES = (((40,), 600), ((192, 17, 16), 576), ((1, 100), 37), ((64,), 1536))


def make_panels(format: str, size: int, num_k: int) -> Tensor:
    """Packed random weights of about unit size; quantised ones hold every code."""
    info = FORMATS[FORMAT_NUMBERS[format]]
    if not info.group:
        return reference.pack_panels(torch.randn(size, num_k).to(getattr(torch, format)))
    num_panels = -(-size // 16)
    panels = torch.randint(
        0, 256, (num_panels, num_k // info.group, info.block_bytes), dtype=torch.uint8
    )
    if format == "q8_0":
        # The format's codes are within 127 of zero.
        codes = panels[..., 32:].view(torch.int8)
        codes[codes == -128] = 5
    unit = {"q8_0": 0.01, "q6_k": 0.0005, "q4_k": 0.002, "q5_k": 0.001}.get(format, 0.1)
    num_halves = 2 if format in ("q4_1", "q5_1", "q4_k", "q5_k") else 1
    scales = (torch.randn(*panels.shape[:2], 16 * num_halves) * unit).half()
    panels[..., : 32 * num_halves] = scales.view(torch.uint8)
    used = torch.arange(num_panels * 16).view(num_panels, 1, 16) < size
    for part in range(num_halves):
        d = panels[..., 32 * part : 32 * part + 32].view(torch.float16)
        d.mul_(used.half())
    return panels


def make_weights(
    sizes: tuple[int, ...], num_k: int, format: str
) -> tuple[list[Tensor], list[Tensor], list[int], list[int]]:
    """Weights, biases, sizes and formats: what `linear` takes after x."""
    weights = [make_panels(format, n, num_k) for n in sizes]
    biases = [torch.randn(n) for n in sizes]
    return weights, biases, list(sizes), [FORMAT_NUMBERS[format]] * len(sizes)


def magnitudes(x: Tensor, weights: list[Tensor], sizes: list[int], formats: list[int]) -> Tensor:
    """Sums of |x| |w|, which bound what rounding can do."""
    matrices = [
        reference.decode_panels(w, n, f).double()
        for w, n, f in zip(weights, sizes, formats, strict=True)
    ]
    return torch.cat([x.double().abs() @ matrix.abs().T for matrix in matrices], dim=-1)


def check_values(ops: Operators, sizes: tuple[int, ...], num_k: int, x: Tensor, name: str) -> None:
    """The error is that of K roundings that mostly cancel: sqrt(K) x 2^-24 x sum |products|."""
    weights, biases, widths, formats = make_weights(sizes, num_k, name)
    exact = torch.cat(
        reference.linear(x.double(), weights, biases, widths, formats, False), dim=-1
    )
    bound = magnitudes(x, weights, widths, formats) + torch.cat(biases).abs()
    output = ops.linear(x, weights, biases, widths, formats, False)
    assert all(one.dtype == torch.float32 for one in output)
    error = (torch.cat(output, dim=-1) - exact).abs()
    assert bool((error <= bound * num_k**0.5 * 2**-24).all())
    unbiased = torch.cat(ops.linear_unbiased(x, weights, widths, formats, False), dim=-1)
    assert torch.equal(unbiased + torch.cat(biases), torch.cat(output, dim=-1))


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize(("sizes", "num_k"), SHAPES)
@pytest.mark.parametrize("num_rows", [1, 3, 8, 25, 64])
def test_float_weights(
    ops: Operators, sizes: tuple[int, ...], num_k: int, num_rows: int, name: str
) -> None:
    check_values(ops, sizes, num_k, torch.randn(1, num_rows, num_k), name)


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("num_rows", [1, 2, 4, 5, 17, 64])
def test_quantized_weights(ops: Operators, num_rows: int, name: str) -> None:
    check_values(ops, (40, 16, 17), 768, torch.randn(num_rows, 768), name)


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("num_rows", [1, 2, 7, 16, 33])
def test_integer_activations(ops: Operators, num_rows: int, name: str) -> None:
    """Bit for bit what integer arithmetic and single roundings give."""
    sizes = (40, 16, 17)
    weights, biases, widths, formats = make_weights(sizes, 512, name)
    x = torch.randn(num_rows, 512) * torch.logspace(-2, 2, num_rows)[:, None]
    x[0, 32:64] = 0.0
    wanted = reference.linear(x, weights, biases, widths, formats, True)
    found = ops.linear(x, weights, biases, widths, formats, True)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q5_1", "q8_0"])
@pytest.mark.parametrize("num_k", [32, 160, 192, 224, 320])
@pytest.mark.parametrize("num_rows", [3, 4, 20])
def test_integer_activations_of_any_width(
    ops: Operators, num_rows: int, num_k: int, name: str
) -> None:
    """Odd and few groups, and as few rows as tile registers take."""
    weights, biases, widths, formats = make_weights((40, 17), num_k, name)
    x = torch.randn(num_rows, num_k)
    wanted = reference.linear(x, weights, biases, widths, formats, True)
    found = ops.linear(x, weights, biases, widths, formats, True)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_rows_too_small_to_scale(ops: Operators) -> None:
    """127 over the largest value is infinite: codes are zero, and so are the results."""
    weights, _, widths, formats = make_weights((32,), 256, "q4_1")
    x = torch.full((8, 256), 1e-39)
    x[:, 64:] = torch.randn(8, 192)
    wanted = reference.linear_unbiased(x, weights, widths, formats, True)[0]
    assert torch.equal(ops.linear_unbiased(x, weights, widths, formats, True)[0], wanted)
    x[:, :64] = 0.0
    assert torch.equal(ops.linear_unbiased(x, weights, widths, formats, True)[0], wanted)


def test_integer_activations_are_close(ops: Operators) -> None:
    """Rounding a row to int8 costs about 1 part in 127 of each group's largest value."""
    weights, _, widths, formats = make_weights((64,), 1024, "q4_1")
    x = torch.randn(8, 1024)
    rounded = ops.linear_unbiased(x, weights, widths, formats, True)[0]
    exact = ops.linear_unbiased(x, weights, widths, formats, False)[0]
    assert float((rounded - exact).norm() / exact.norm()) < 0.02


@pytest.mark.parametrize(("num_rows", "num_k"), [(3, 64), (8, 256)])
def test_broken_rows_stay_apart(ops: Operators, num_rows: int, num_k: int) -> None:
    """An infinite or missing value spoils its own row and no other, whatever the activations."""
    weights, _, widths, formats = make_weights((32,), num_k, "q4_1")
    x = torch.randn(num_rows, num_k)
    others = [row for row in range(num_rows) if row != 1]
    clean = ops.linear_unbiased(x, weights, widths, formats, True)[0]
    for value in (float("inf"), float("nan")):
        broken = x.clone()
        broken[1, 7] = value
        output = ops.linear_unbiased(broken, weights, widths, formats, True)[0]
        assert bool(output[1].isnan().all())
        assert torch.equal(output[others], clean[others])


@pytest.mark.parametrize("integer", [False, True])
@pytest.mark.parametrize("last", ["q6_k", "q4_1"])
def test_mixed_formats(ops: Operators, last: str, integer: bool) -> None:
    """One call may join weights of any formats; each gives what it gives alone."""
    names = ("q4_k", "float32", "q8_0", "bfloat16", last)
    weights = [make_panels(name, 20 + i, 256) for i, name in enumerate(names)]
    sizes = [20 + i for i in range(len(names))]
    formats = [FORMAT_NUMBERS[name] for name in names]
    x = torch.randn(6, 256)
    together = ops.linear_unbiased(x, weights, sizes, formats, integer)
    for output, weight, size, format in zip(together, weights, sizes, formats, strict=True):
        alone = ops.linear_unbiased(x, [weight], [size], [format], integer)[0]
        assert torch.equal(output, alone)


@pytest.mark.parametrize(
    ("name", "integer", "num_k"),
    [("float32", False, k) for k in (96, 256, 576, 1100)]
    + [("bfloat16", False, k) for k in (96, 576)]
    + [(name, integer, 768) for name in QUANTIZED for integer in (False, True)],
)
def test_row_invariance(ops: Operators, name: str, integer: bool, num_k: int) -> None:
    """A row has the same bits alone and among others, at any place, on any number of threads."""
    weights, biases, sizes, formats = make_weights((34, 16), num_k, name)
    x = torch.randn(64, num_k)

    def rows_of(first: int, last: int) -> Tensor:
        return torch.cat(
            ops.linear(x[first:last], weights, biases, sizes, formats, integer), dim=-1
        )

    torch.set_num_threads(1)
    alone = torch.cat([rows_of(r, r + 1) for r in range(64)])
    for num_threads in (1, 2, 5):
        torch.set_num_threads(num_threads)
        for num_rows in range(1, 65, 1 if num_threads == 1 else 13):
            for first in (0, 64 - num_rows):
                last = first + num_rows
                assert torch.equal(rows_of(first, last), alone[first:last])


@pytest.mark.parametrize("name", FLOATS + QUANTIZED)
@pytest.mark.parametrize("integer", [False, True])
def test_instruction_sets(avx_pair: tuple[Operators, Operators], name: str, integer: bool) -> None:
    if name == "bfloat16" and resolve_isa("native") == "avx512_amx":
        pytest.skip("AMX adds products of bfloat16 weights in an order of its own")
    arguments = (*make_weights((50, 17), 512, name), integer)
    for num_rows in (1, 2, 5, 16, 33):
        x = torch.randn(num_rows, 512)
        narrow, wide = (op.linear(x, *arguments) for op in avx_pair)
        assert all(torch.equal(a, b) for a, b in zip(narrow, wide, strict=True))


def test_rows_that_are_no_numbers(ops: Operators) -> None:
    """Infinity and NaN reach the outputs of their row and no other, from weights of any float."""
    weight = torch.rand(20, 70) + 0.5
    x = torch.randn(3, 70)
    # A NaN whose upper half alone would be infinity.
    payload = torch.tensor(0x7F800001, dtype=torch.int32).view(torch.float32)
    for name in FLOATS:
        panels = [reference.pack_panels(weight.to(getattr(torch, name)))]
        arguments = (panels, [20], [FORMAT_NUMBERS[name]], False)
        clean = ops.linear_unbiased(x, *arguments)[0]
        for value, found in (
            (torch.tensor(math.inf), torch.isposinf),
            (torch.tensor(-math.inf), torch.isneginf),
            (torch.tensor(math.nan), torch.isnan),
            (payload, torch.isnan),
        ):
            broken = x.clone()
            broken[1, 69] = value
            output = ops.linear_unbiased(broken, *arguments)[0]
            assert bool(found(output[1]).all())
            assert torch.equal(output[[0, 2]], clean[[0, 2]])


def test_pairs_of_bfloat16(ops: Operators) -> None:
    """The packed form lays neighbours in k side by side, and packing can be undone."""
    weight = torch.arange(34 * 5).view(34, 5).bfloat16()
    panels = reference.pack_panels(weight)
    assert panels[1].flatten()[:4].tolist() == weight[16:18, :2].flatten().tolist()
    assert panels[1, 4].tolist() == weight[16:32, 4].tolist()
    assert torch.equal(reference.unpack_panels(panels, 34), weight)
    assert torch.equal(pack_matrix(weight, torch.bfloat16), panels)
    ids = torch.tensor([0, 33, 17])
    rows = ops.embedding(ids, panels, 34, FORMAT_NUMBERS["bfloat16"])
    assert torch.equal(rows, weight[ids].float())


def test_linear_refuses(ops: Operators) -> None:
    weights, biases, _, _ = make_weights((20,), 64, "float32")
    codes = make_panels("q4_1", 20, 64)
    x = torch.randn(4, 64)
    floats = FORMAT_NUMBERS["float32"]
    for arguments, message in (
        ((x.double(), weights, biases, [20], [0]), "float32"),
        ((x.T, weights, biases, [20], [0]), "contiguous"),
        ((x, weights, biases, [40], [0]), r"panels \[3, 64, 16\], got sizes \[2, 64, 16\]"),
        ((x, weights, biases, [20, 20], [0]), "1 weights, 2 sizes and 1 formats"),
        ((x, weights, biases, [20], [0, 0]), "1 weights, 1 sizes and 2 formats"),
        ((x, weights, biases * 2, [20], [0]), "2 biases for 1 weights"),
        ((x, weights, [torch.randn(19)], [20], [0]), "bias has 19"),
        ((x, [weights[0].half()], biases, [20], [0]), "format float32 expects Float .*got Half"),
        ((x, weights, biases, [20], [1]), "format bfloat16 expects BFloat16 .*got Float"),
        ((x, [weights[0].transpose(1, 2)], biases, [20], [0]), "contiguous float32 panels"),
        ((x[:, :32].contiguous(), weights, biases, [20], [floats]), "panels"),
        ((x, [codes], biases, [20], [6]), r"q8_0 panels \[2, 2, 544\], got sizes \[2, 2, 320\]"),
        ((x, [codes], biases, [20], [9]), "q6_k expects a K that is a multiple of 256, got 64"),
        ((x, [codes], biases, [20], [10]), r"format 10 is unknown, expected 0\.\.9"),
        ((x, weights, biases, [20], [-1]), "format -1 is unknown"),
    ):
        with pytest.raises(RuntimeError, match=message):
            ops.linear(*arguments, False)


@pytest.mark.parametrize("name", FLOATS + QUANTIZED)
def test_embedding(ops: Operators, name: str) -> None:
    """Rows hold the very values that products use."""
    packed = make_panels(name, 100, 256)
    format = FORMAT_NUMBERS[name]
    ids = torch.tensor([[0, 99, 15, 16, 99]])
    output = ops.embedding(ids, packed, 100, format)
    assert torch.equal(output, reference.decode_panels(packed, 100, format)[ids].float())
    rows = torch.eye(256)[:40]
    products = ops.linear_unbiased(rows, [packed], [100], [format], False)[0]
    assert torch.equal(products[:, ids[0]].T, output[0, :, :40])
    for wrong in (-1, 100):
        with pytest.raises(RuntimeError, match=f"is {wrong}, expected 0 <= value < 100"):
            ops.embedding(torch.tensor([3, wrong]), packed, 100, format)
    with pytest.raises(RuntimeError, match="int64"):
        ops.embedding(ids.int(), packed, 100, format)
    with pytest.raises(RuntimeError, match="panels"):
        ops.embedding(ids, packed, 200, format)
