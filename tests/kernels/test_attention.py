"""`tree_attention`: values against float64, bits of a row against decoding its path alone."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from ygg_kernels import reference
from ygg_kernels.ops import Operators


@dataclass(frozen=True, slots=True)
class Case:
    """Shapes of one call; `tree` is "random", "chain", "star" or "self" (every row alone)."""

    num_heads: int
    num_kv_heads: int
    num_rows: int
    length: int
    key_size: int
    value_size: int
    window: int = 0
    softcap: float = 0.0
    tree: str = "random"


CASES = (
    Case(9, 3, 1, 0, 64, 64),
    Case(9, 3, 16, 100, 64, 64),
    Case(9, 3, 64, 0, 64, 64, tree="chain"),
    Case(9, 3, 64, 200, 64, 64, tree="chain", window=50),
    Case(4, 4, 33, 62, 32, 32, window=1),
    Case(8, 2, 7, 300, 80, 72, window=64, softcap=30.0),
    Case(6, 1, 20, 191, 256, 128, softcap=5.0),
    Case(2, 1, 64, 130, 40, 256, tree="star"),
    Case(3, 3, 5, 64, 13, 7, window=9, tree="self"),
    Case(8, 4, 17, 255, 128, 128, window=100),
    # Splits of 256 keys: ends before, at and behind one, ancestors across one, windows that begin
    # behind one, and more splits than tasks for the threads.
    Case(9, 3, 1, 255, 64, 64),
    Case(9, 3, 8, 256, 64, 64),
    Case(9, 3, 12, 508, 64, 64),
    Case(6, 2, 40, 490, 32, 48, tree="chain"),
    Case(9, 3, 30, 500, 64, 64, window=200),
    Case(4, 1, 9, 1030, 40, 24, window=300, tree="chain"),
    Case(14, 2, 5, 1279, 64, 64, softcap=20.0),
    Case(2, 2, 300, 100, 32, 32, tree="chain"),
)
CACHES = ("bfloat16", "int8")
CACHE_CASES = (
    Case(9, 3, 1, 130, 64, 64),
    Case(9, 3, 12, 508, 64, 64),
    Case(8, 2, 40, 240, 80, 72, window=90, tree="chain"),
    Case(6, 1, 20, 270, 256, 128, softcap=5.0),
    Case(3, 3, 7, 20, 36, 12),
)


def ancestor_lists(case: Case) -> list[list[int]]:
    """For each row the rows that it sees, itself last."""
    rng = random.Random(case.num_rows * 1000 + case.length)
    paths: list[list[int]] = [[0]]
    for row in range(1, case.num_rows):
        parents = {
            "random": paths[rng.randrange(row)],
            "chain": paths[row - 1],
            "star": paths[0],
            "self": [],
        }
        paths.append([*parents[case.tree], row])
    return paths


def make_inputs(case: Case) -> tuple[Tensor, ...]:
    """The six tensors of a call; q is a strided view and unused slots hold NaN."""
    paths = ancestor_lists(case)
    num_slots = case.length + case.num_rows + 3
    q = torch.randn(1, case.num_rows, case.num_heads, case.key_size).transpose(1, 2)
    k_cache = torch.randn(1, case.num_kv_heads, num_slots, case.key_size)
    v_cache = torch.randn(1, case.num_kv_heads, num_slots, case.value_size)
    k_cache[:, :, -3:] = v_cache[:, :, -3:] = float("nan")
    mask = torch.zeros(case.num_rows, case.num_rows, dtype=torch.bool)
    for row, path in enumerate(paths):
        mask[row, path] = True
    positions = torch.tensor([case.length + len(path) - 1 for path in paths])
    return q, k_cache, v_cache, torch.tensor([case.length]), positions, mask


def store(ops: Operators, rows: Tensor, kind: str) -> Tensor:
    """A cache of `kind` that holds `rows` [1, H, S, D]; unused slots hold NaN there too."""
    _, num_heads, num_slots, size = rows.shape
    if kind == "int8":
        cache = torch.zeros(1, num_heads, num_slots, size + 4, dtype=torch.uint8)
    else:
        cache = torch.zeros(1, num_heads, num_slots, size, dtype=getattr(torch, kind))
    ops.kv_write(cache, rows, torch.arange(num_slots))
    return cache


def attend(ops: Operators, case: Case, *inputs: Tensor) -> Tensor:
    return ops.tree_attention(*inputs, case.key_size**-0.5, case.window, case.softcap)


@pytest.mark.parametrize("case", CASES)
def test_values(ops: Operators, case: Case) -> None:
    """At most twice the error of plain torch in float32, plus the rounding of the result."""
    inputs = make_inputs(case)
    floating = [t.double() if t.is_floating_point() else t for t in inputs]
    parameters = (case.key_size**-0.5, case.window, case.softcap)
    exact = reference.tree_attention(*floating, *parameters)
    plain = reference.tree_attention(*inputs, *parameters)
    output = attend(ops, case, *inputs)
    assert output.is_contiguous()
    assert output.shape == (1, case.num_rows, case.num_heads, case.value_size)
    bound = 2 * (plain - exact).abs().max() + 4 * 2**-24 * exact.abs().max()
    assert (output - exact).abs().max() <= bound


def check_rows_alone(ops: Operators, case: Case, *inputs: Tensor) -> None:
    """Every row has the bits of a single row over a cache that holds the same keys in order."""
    q, k_cache, v_cache, length, positions, _ = inputs
    output = attend(ops, case, *inputs)
    for row, path in enumerate(ancestor_lists(case)):
        slots = torch.tensor([*range(case.length), *(case.length + r for r in path)])
        alone = attend(
            ops,
            case,
            q[:, :, row : row + 1].contiguous(),
            k_cache[:, :, slots].contiguous(),
            v_cache[:, :, slots].contiguous(),
            length + len(path) - 1,
            positions[row : row + 1],
            torch.ones(1, 1, dtype=torch.bool),
        )
        assert torch.equal(output[:, row], alone[:, 0]), f"row {row}"


@pytest.mark.parametrize("case", CASES)
def test_row_invariance(ops: Operators, case: Case) -> None:
    check_rows_alone(ops, case, *make_inputs(case))


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("case", CACHE_CASES)
def test_cache_types(
    ops: Operators, avx_pair: tuple[Operators, Operators], case: Case, kind: str
) -> None:
    """What the cache holds, widened: values against float64, bits of a float32 cache of the same
    values, rows alone, threads and instruction sets."""
    q, keys, values, *rest = make_inputs(case)
    caches = [store(ops, rows, kind) for rows in (keys, values)]
    wide = [reference.decode_cache(cache).float() for cache in caches]
    output = attend(ops, case, q, *caches, *rest)
    assert torch.equal(output, attend(ops, case, q, *wide, *rest))
    parameters = (case.key_size**-0.5, case.window, case.softcap)
    exact = reference.tree_attention(q.double(), *caches, *rest, *parameters)
    plain = reference.tree_attention(q, *caches, *rest, *parameters)
    bound = 2 * (plain - exact).abs().max() + 4 * 2**-24 * exact.abs().max()
    assert (output - exact).abs().max() <= bound
    check_rows_alone(ops, case, q, *caches, *rest)
    for num_threads in (1, 8):
        torch.set_num_threads(num_threads)
        for operators in (ops, *avx_pair):
            assert torch.equal(attend(operators, case, q, *caches, *rest), output)


@pytest.mark.parametrize("case", CASES)
def test_threads_and_instruction_sets(
    ops: Operators, avx_pair: tuple[Operators, Operators], case: Case
) -> None:
    inputs = make_inputs(case)
    torch.set_num_threads(1)
    wanted = attend(ops, case, *inputs)
    for num_threads in (1, 2, 8):
        torch.set_num_threads(num_threads)
        for operators in (ops, *avx_pair):
            assert torch.equal(attend(operators, case, *inputs), wanted)


@pytest.mark.parametrize("length", [0, 191, 254, 255, 256, 257, 511, 1000])
def test_row_counts(ops: Operators, length: int) -> None:
    """A chain of 64 rows, the same in pieces of 1, 3, 8 and 20 rows."""
    case = Case(9, 3, 64, length, 64, 64, tree="chain")
    inputs = make_inputs(case)
    q, k_cache, v_cache, _, positions, mask = inputs
    whole = attend(ops, case, *inputs)
    for piece in (1, 3, 8, 20):
        for begin in range(0, case.num_rows, piece):
            rows = slice(begin, min(begin + piece, case.num_rows))
            part = attend(
                ops, case, q[:, :, rows], k_cache, v_cache, torch.tensor([length + begin]),
                positions[rows], mask[rows, rows].contiguous(),
            )  # fmt: skip
            assert torch.equal(part, whole[:, rows])


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FC00001, 0xFFFFFFFF, 0x7F800000])
@pytest.mark.parametrize("where", ["query", "prefix key", "tree key", "value"])
def test_not_a_number_is_never_lost(
    ops: Operators, avx_pair: tuple[Operators, Operators], where: str, bits: int
) -> None:
    """NaN (of several payloads) and infinity spoil what the definition says they spoil, nothing
    else, and the other bits stay."""
    case = Case(6, 2, 8, 300, 64, 48)
    inputs = make_inputs(case)
    clean = attend(ops, case, *inputs)
    q, k_cache, v_cache = inputs[:3]
    bad = torch.tensor([bits], dtype=torch.int64).to(torch.int32).view(torch.float32)
    if where == "query":
        q[0, 1, 3, 5] = bad
    elif where == "prefix key":
        k_cache[0, 1, 70, 2] = bad
    elif where == "tree key":
        k_cache[0, 0, case.length + 1, 63] = bad
    else:
        v_cache[0, 1, 290, 7] = bad
    wanted = reference.tree_attention(*inputs, case.key_size**-0.5, case.window, case.softcap)
    for operators in (ops, *avx_pair):
        output = attend(operators, case, *inputs)
        fine = wanted.isfinite()
        assert torch.equal(output.isnan(), wanted.isnan())
        assert torch.equal(output[~fine].nan_to_num(0.5), wanted[~fine].nan_to_num(0.5))
        assert bool(((output - wanted)[fine].abs() < 1e-4).all())
    if where == "tree key":
        unseen = ~inputs[5][:, 1]
        assert torch.equal(output[:, unseen], clean[:, unseen])


def test_padded_rows_change_nothing(ops: Operators) -> None:
    """Rows that see only themselves, at a clamped position, hold no NaN and disturb no bit."""
    case = Case(9, 3, 16, 70, 64, 64, window=20)
    q, k_cache, v_cache, length, positions, mask = make_inputs(case)
    real = 5
    mask[real:] = torch.eye(case.num_rows, dtype=torch.bool)[real:]
    positions[real:] = 10_000
    padded = attend(ops, case, q, k_cache, v_cache, length, positions, mask)
    short = attend(
        ops, case, q[:, :, :real], k_cache, v_cache, length, positions[:real],
        mask[:real, :real].contiguous(),
    )  # fmt: skip
    assert torch.equal(padded[:, :real], short)
    assert bool(padded.isfinite().all())


def test_large_scores(ops: Operators) -> None:
    """Scores of several hundred neither overflow nor lose the largest key."""
    case = Case(2, 1, 3, 140, 16, 16)
    q, *rest = make_inputs(case)
    output = attend(ops, case, q * 300, *rest)
    wanted = reference.tree_attention((q * 300).double(), *(
        t.double() if t.is_floating_point() else t for t in rest
    ), 0.25, 0, 0.0)  # fmt: skip
    assert (output - wanted).abs().max() < 1e-4


def test_refuses(ops: Operators) -> None:
    case = Case(4, 2, 3, 10, 16, 16)
    q, k, v, length, positions, mask = make_inputs(case)
    for inputs, message in (
        ((q.double(), k, v, length, positions, mask), "float32"),
        ((q.transpose(2, 3), k, v, length, positions, mask), "dense last dimension"),
        ((q, k.transpose(1, 2), v, length, positions, mask), "contiguous"),
        ((q, k, v, length + 4, positions, mask), "do not fit 16 slots"),
        ((q, k, v, length - 11, positions, mask), "length -1"),
        ((q, k, v, length, positions[:2], mask), "positions"),
        ((q, k, v, length, positions, mask.int()), "bool"),
        ((q, k, v, length, positions, mask[:2, :2].contiguous()), r"expected \[3, at least 3\]"),
        ((q[:, :3], k, v, length, positions, mask), "expected a multiple"),
    ):
        with pytest.raises(RuntimeError, match=message):
            attend(ops, case, *inputs)
    short = torch.zeros(1, 2, 16, 18, dtype=torch.uint8)
    codes = torch.zeros(1, 2, 16, 20, dtype=torch.uint8)
    for caches, message in (
        ((k.double(), v), "k_cache: expected float32, bfloat16 or uint8 .* got Double"),
        ((k, v.int()), "v_cache: expected float32, bfloat16 or uint8 .* got Int"),
        ((k, v.bfloat16()), "k_cache is Float, v_cache is BFloat16"),
        ((short, short), "k_cache: .* D a multiple of 4, got 18 bytes"),
        ((codes[..., :16].contiguous(), codes), "caches do not fit q"),
    ):
        with pytest.raises(RuntimeError, match=message):
            attend(ops, case, q, *caches, length, positions, mask)
