"""Sampled shapes for every kernel, run on a GPU or in Triton's interpreter.

`python -m ygg_kernels.triton.cases GROUP...` prints one JSON object a case. Without a GPU it needs
TRITON_INTERPRET=1, which triton reads when it is imported: a process of its own keeps that from
everything else. Error is the largest against float64; allowed is twice the error of plain torch in
the dtype of the inputs. Comparisons of bits have error 0 or 1, and allow 0.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from ygg_kernels import reference as shared
from ygg_kernels.triton import accept, attention, kv, linear, packing, reference, topk

HALF = (torch.bfloat16, torch.float16)
NUM_CASES = 60


@dataclass(frozen=True, slots=True)
class Result:
    """One case: what it was, and whether the kernel did it well enough."""

    group: str
    case: str
    error: float
    allowed: float

    @property
    def passed(self) -> bool:
        """False for a NaN error, too."""
        return self.error <= self.allowed


def compare(group: str, case: str, output: Tensor, lower: Tensor, exact: Tensor) -> Result:
    """`lower` is plain torch in the inputs' dtype, `exact` the same in float64."""
    error = float((output.double().cpu() - exact).abs().max())
    # Float32 alone can be exact by chance on both sides but for the order of sums.
    band = 4 * 2**-24 * float(exact.abs().max()) if lower.dtype == torch.float32 else 0.0
    return Result(group, case, error, 2 * float((lower.double() - exact).abs().max()) + band)


def equal(group: str, case: str, output: Tensor, wanted: Tensor) -> Result:
    """The same bits."""
    return Result(group, case, float(not torch.equal(output.cpu(), wanted.cpu())), 0.0)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class Attention:
    """One call of `tree_attention`."""

    dtype: torch.dtype
    num_rows: int
    length: int
    num_kv_heads: int
    group: int
    key_size: int
    value_size: int
    window: int
    softcap: float
    shape: str

    def __str__(self) -> str:
        return (
            f"{_name(self.dtype)} V={self.num_rows} length={self.length} Hkv={self.num_kv_heads} "
            f"GQA={self.group} Dk={self.key_size} Dv={self.value_size} window={self.window} "
            f"softcap={self.softcap} {self.shape}"
        )

    @property
    def cost(self) -> float:
        """Seconds in the interpreter, about."""
        chunk = attention.chunk_keys(self.dtype)
        tiles = -(-self.num_rows * self.group // 16) * self.num_kv_heads
        finish = self.num_rows * self.num_kv_heads * -(-self.group // 16)
        seconds: float = tiles * (self.length // chunk) * 0.003 + finish * (0.005 + 0.1 / chunk)
        return seconds

    @property
    def parameters(self) -> tuple[float, int, float]:
        """scale, window, softcap."""
        return 1 / math.sqrt(self.key_size), self.window, self.softcap


def _paths(case: Attention, rng: random.Random) -> list[list[int]]:
    """For each row the rows that it sees, itself last."""
    paths = [[0]]
    for row in range(1, case.num_rows):
        parent = {"chain": row - 1, "star": 0, "random": rng.randrange(row)}[case.shape]
        paths.append([*paths[parent], row])
    return paths


def _attention_inputs(case: Attention, paths: list[list[int]]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(case.length * 64 + case.num_rows)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).to(case.dtype)

    # Slots behind the tree hold what no row may read.
    num_slots = case.length + case.num_rows + 3
    q = normal(1, case.num_rows, case.num_kv_heads * case.group, case.key_size).transpose(1, 2)
    k_cache = normal(1, case.num_kv_heads, num_slots, case.key_size)
    v_cache = normal(1, case.num_kv_heads, num_slots, case.value_size)
    k_cache[:, :, -3:] = v_cache[:, :, -3:] = float("nan")
    mask = torch.zeros(case.num_rows, case.num_rows, dtype=torch.bool)
    for row, path in enumerate(paths):
        mask[row, path] = True
    positions = torch.tensor([case.length + len(path) - 1 for path in paths])
    return [q, k_cache, v_cache, torch.tensor([case.length]), positions, mask]


def attention_cases() -> list[Attention]:
    """Head sizes 32 to 256, 1 to 64 rows, lengths 0 to 4097, windows, softcaps; corners first."""
    rng = random.Random(1)
    cases = [
        Attention(torch.bfloat16, 64, 4097, 1, 1, 64, 64, 0, 0.0, "random"),
        Attention(torch.float16, 1, 4097, 1, 8, 128, 128, 0, 0.0, "chain"),
        Attention(torch.bfloat16, 1, 0, 3, 3, 64, 64, 0, 0.0, "chain"),
        Attention(torch.float32, 8, 1021, 1, 2, 256, 256, 0, 0.0, "random"),
        Attention(torch.bfloat16, 6, 255, 1, 40, 32, 32, 0, 0.0, "chain"),
        Attention(torch.bfloat16, 20, 256, 1, 2, 80, 72, 1, 0.0, "random"),
    ]
    all_rows = (1, 2, 3, 4, 7, 8, 12, 16, 17, 25, 32, 48, 64)
    dtypes = (torch.bfloat16, torch.float16, torch.bfloat16, torch.float32)
    # In turn, so that what is quick in the interpreter does not crowd out the rest.
    turn = 0
    while len(cases) < NUM_CASES:
        turn += 1
        size = rng.choice((32, 40, 64, 80, 96, 128, 192, 256))
        case = Attention(
            dtype=dtypes[turn % len(dtypes)],
            num_rows=all_rows[turn % len(all_rows)],
            length=rng.choice((0, 1, 63, 64, 65, 127, 300, 511, 1000, 2047, rng.randrange(4098))),
            num_kv_heads=rng.choice((1, 1, 2, 3)),
            group=rng.choice((1, 2, 3, 4, 7, 8, 16, 32)),
            key_size=size,
            value_size=rng.choice((size, size, 32, 128)),
            window=rng.choice((0, 0, 0, 1, 13, 64, 300, 1024)),
            softcap=rng.choice((0.0, 0.0, 30.0, 5.0)),
            shape=rng.choice(("random", "chain", "star")),
        )
        if case.cost < 0.5:
            cases.append(case)
    return cases


def _attend(device: str, inputs: list[Tensor], case: Attention) -> Tensor:
    moved = [tensor.to(device) for tensor in inputs]
    output: Tensor = attention.tree_attention(*moved, *case.parameters)
    return output.cpu()


def check_attention(device: str) -> Iterator[Result]:
    """Values."""
    for case in attention_cases():
        inputs = _attention_inputs(case, _paths(case, random.Random(case.length)))
        exact = [tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs]
        yield compare(
            "attention",
            str(case),
            _attend(device, inputs, case),
            shared.tree_attention(*inputs, *case.parameters),
            shared.tree_attention(*exact, *case.parameters),
        )


def check_attention_rows(device: str) -> Iterator[Result]:
    """Rows of a tree against plain decoding of their paths, bit for bit."""
    for case in (
        Attention(torch.bfloat16, 16, 100, 1, 3, 64, 64, 0, 0.0, "random"),
        Attention(torch.float16, 9, 250, 1, 4, 128, 128, 0, 0.0, "random"),
        Attention(torch.bfloat16, 64, 200, 1, 1, 32, 32, 50, 0.0, "chain"),
        Attention(torch.bfloat16, 12, 510, 1, 2, 96, 80, 64, 30.0, "random"),
        Attention(torch.float32, 7, 261, 2, 5, 64, 64, 0, 5.0, "star"),
        Attention(torch.float16, 5, 1022, 1, 20, 256, 256, 1000, 0.0, "chain"),
    ):
        paths = _paths(case, random.Random(2))
        inputs = _attention_inputs(case, paths)
        q, k_cache, v_cache, length, positions, _ = inputs
        output = _attend(device, inputs, case)
        for row in sorted({0, 1, case.num_rows // 2, case.num_rows - 1}):
            path = paths[row]
            # As many slots as before: the number of splits is that of the cache.
            slots = [*range(case.length), *(case.length + each for each in path)]
            spare = [slots[-1]] * (k_cache.shape[2] - len(slots))
            alone = [
                q[:, :, row : row + 1],
                k_cache[:, :, slots + spare].contiguous(),
                v_cache[:, :, slots + spare].contiguous(),
                length + len(path) - 1,
                positions[row : row + 1],
                torch.ones(1, 1, dtype=torch.bool),
            ]
            plain = _attend(device, alone, case)
            yield equal("attention_rows", f"{case} row {row}", output[:, row], plain[:, 0])


@dataclass(frozen=True, slots=True)
class Linear:
    """One call of `linear` with one weight."""

    dtype: torch.dtype
    weight_format: str
    num_rows: int
    num_k: int
    num_n: int
    bias: bool

    def __str__(self) -> str:
        return (
            f"{_name(self.dtype)} x {self.weight_format} V={self.num_rows} K={self.num_k} "
            f"N={self.num_n}" + " with bias" * self.bias
        )


def _linear_inputs(case: Linear) -> tuple[Tensor, Tensor, Tensor]:
    """x, the weight as its format lays it out, and a bias."""
    generator = torch.Generator().manual_seed(case.num_k + case.num_n)
    x = torch.randn(case.num_rows, case.num_k, generator=generator).to(case.dtype)
    weight = torch.randn(case.num_n, case.num_k, generator=generator) / case.num_k**0.5
    code = packing.CODES[case.weight_format]
    dense = code in packing.DENSE
    packed = weight.to(case.dtype) if dense else packing.quantize(weight, code)
    return x, packed, torch.randn(case.num_n, generator=generator).to(case.dtype)


def linear_cases() -> list[Linear]:
    """1 to 64 rows, K that is one block, several, several splits and no multiple of either."""
    rng = random.Random(2)
    cases: list[Linear] = []
    while len(cases) < NUM_CASES:
        dtype = HALF[len(cases) % 2]
        cases.append(
            Linear(
                dtype=dtype,
                weight_format=rng.choice((_name(dtype), "q8_0", "q4_1")),
                num_rows=rng.choice((1, 2, 5, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64)),
                num_k=rng.choice((32, 64, 160, 576, 896, 1024, 1056, 1536, 2080, 3072)),
                num_n=rng.choice((1, 7, 16, 63, 64, 65, 130)),
                bias=rng.random() < 0.5,
            )
        )
    return cases


def _multiply(device: str, x: Tensor, weight: Tensor, bias: Tensor | None, case: Linear) -> Tensor:
    code = packing.CODES[case.weight_format]
    moved = (x.to(device), [weight.to(device)])
    y: Tensor
    if bias is None:
        (y,) = linear.linear_unbiased(*moved, [case.num_n], [code], False)
    else:
        (y,) = linear.linear(*moved, [bias.to(device)], [case.num_n], [code], False)
    return y.cpu()


def check_linear(device: str) -> Iterator[Result]:
    """Values."""
    for case in linear_cases():
        x, weight, bias = _linear_inputs(case)
        formats, biases = [packing.CODES[case.weight_format]], [bias] if case.bias else None
        (lower,) = reference.linear(x, [weight], biases, formats)
        (exact,) = reference.linear(x.double(), [weight], biases, formats)
        output = _multiply(device, x, weight, bias if case.bias else None, case)
        yield compare("linear", str(case), output, lower, exact)


def check_linear_rows(device: str) -> Iterator[Result]:
    """Rows alone, and at another place among others, bit for bit."""
    for weight_format in ("bfloat16", "q8_0", "q4_1"):
        for num_k in (576, 2080):
            case = Linear(torch.bfloat16, weight_format, 64, num_k, 70, True)
            x, weight, bias = _linear_inputs(case)
            output = _multiply(device, x, weight, bias, case)
            for rows in ([0], [40, 3], list(range(63, 46, -1)), list(range(8, 48))):
                some = _multiply(device, x[rows], weight, bias, case)
                yield equal("linear_rows", f"{case} rows {rows}", some, output[rows])


def check_topk(device: str) -> Iterator[Result]:
    """Ids and values exactly; logsumexp by error; ties, -inf and NaN among the rows."""
    rng = random.Random(3)
    for number in range(NUM_CASES):
        dtype = rng.choice((*HALF, torch.float32))
        num_rows = rng.choice((1, 2, 3, 7))
        vocab = rng.choice((33, 1000, 4095, 4096, 4097, 9000))
        k = rng.choice((1, 2, 5, 13))
        name = f"{number} {_name(dtype)} V={num_rows} vocab={vocab} k={k}"
        generator = torch.Generator().manual_seed(number)
        logits = (torch.randn(num_rows, vocab, generator=generator) * 4).to(dtype)
        logits[0, : vocab - k // 2] = float("-inf")
        if number % 10 == 0:
            logits[-1, vocab // 2] = float("nan")
        scores, ids, sums = (t.cpu() for t in topk.topk_logsumexp(logits.to(device), k))
        values, wanted, lower = reference.topk_logsumexp(logits.float(), k)
        exact = logits.double().logsumexp(dim=1)
        broken = exact.isnan()
        wanted[broken], values[broken] = -1, float("nan")
        yield equal("topk", name + " ids", ids, wanted)
        yield equal("topk", name + " values", scores.nan_to_num(7), values.nan_to_num(7))
        yield equal("topk", name + " NaN", sums.isnan(), broken)
        fine = ~broken & exact.isfinite()
        if bool(fine.any()):
            yield compare("topk", name + " sums", sums[fine], lower[fine], exact[fine])


def check_keyed(device: str) -> Iterator[Result]:
    """Samples against the definition in float64; where the two best are closer than float32
    resolves, either is right.
    """
    rng = random.Random(4)
    for number in range(NUM_CASES):
        num_rows, vocab = rng.choice((1, 2, 4)), rng.choice((50, 4097, 9000))
        seed = rng.choice((0, 7, 2**63 - 1, -1, 123456789012345))
        choice = rng.randrange(3)
        temperature = rng.choice((0.0, 0.3, 0.8, 1.0, 2.5))
        generator = torch.Generator().manual_seed(number)
        logits = torch.randn(num_rows, vocab, generator=generator) * 3
        positions = torch.randint(0, 5000, (num_rows,), generator=generator)
        key, warmth = torch.tensor([seed, choice]), torch.tensor([temperature])
        moved = [t.to(device) for t in (logits, key, positions, warmth)]
        scores, ids, _ = (t.cpu() for t in topk.keyed_topk(*moved, 4))
        wanted, wanted_ids, _ = reference.keyed_topk(
            logits.double(), seed, choice, positions, temperature, 5
        )
        name = f"{number} V={num_rows} vocab={vocab} seed={seed} choice={choice} T={temperature}"
        error = (scores - wanted[:, :4]).abs().max()
        yield Result("keyed", name + " scores", float(error), 4e-5)
        apart = (wanted[:, :4] - wanted[:, 1:]) > 1e-4
        apart[:, 1:] &= apart[:, :3].clone()
        yield equal("keyed", name + " ids", ids[apart], wanted_ids[:, :4][apart])


def check_accept(device: str) -> Iterator[Result]:
    """Random trees with few tokens, so that paths are long and siblings alike."""
    rng = random.Random(5)
    for number in range(NUM_CASES):
        num_rows = rng.choice((1, 2, 5, 16, 33, 64))
        parents = [-1] + [rng.randrange(max(0, row - 3), row) for row in range(1, num_rows)]
        tokens = [rng.randrange(3) for _ in range(num_rows)]
        choices = [rng.randrange(3) for _ in range(num_rows)]
        path, bonus = reference.accept(choices, tokens, parents)
        moved = [torch.tensor(values).to(device) for values in (choices, tokens, parents)]
        result = torch.cat([part.cpu() for part in accept.accept(*moved)])
        padding = [-1] * (num_rows - len(path))
        wanted = torch.tensor([*path, *padding, len(path), bonus])
        yield equal("accept", f"{number} V={num_rows} path {len(path)}", result, wanted)


def check_kv_commit(device: str) -> Iterator[Result]:
    """Overlapping moves, and moves that are left out."""
    rng = random.Random(6)
    for number in range(NUM_CASES):
        dtype = rng.choice((*HALF, torch.float32))
        num_moves = rng.choice((0, 1, 2, 7, 33, 64))
        num_slots, size = 80 + rng.randrange(50), rng.choice((32, 40, 64, 128, 256))
        sources = torch.tensor(rng.sample(range(num_slots), num_moves), dtype=torch.int64)
        targets = torch.tensor(rng.sample(range(num_slots), num_moves), dtype=torch.int64)
        caches = [torch.randn(1, heads, num_slots, size).to(dtype) for heads in (2, 3)]
        wanted = [cache.clone() for cache in caches]
        if num_moves > 3:
            sources[1] = -1
        kept = sources >= 0
        shared.kv_commit(wanted, sources[kept], targets[kept])
        moved = [cache.to(device) for cache in caches]
        kv.kv_commit(moved, sources.to(device), targets.to(device))
        name = f"{number} {_name(dtype)} n={num_moves} S={num_slots} D={size}"
        same = all(torch.equal(a.cpu(), b) for a, b in zip(moved, wanted, strict=True))
        yield Result("kv_commit", name, float(not same), 0.0)


GROUPS: dict[str, Callable[[str], Iterator[Result]]] = {
    "attention": check_attention,
    "attention_rows": check_attention_rows,
    "linear": check_linear,
    "linear_rows": check_linear_rows,
    "topk": check_topk,
    "keyed": check_keyed,
    "accept": check_accept,
    "kv_commit": check_kv_commit,
}


def main() -> int:
    """`python -m ygg_kernels.triton.cases`: exits 1 where a case fails."""
    parser = argparse.ArgumentParser(prog="ygg_kernels.triton.cases", description=__doc__)
    parser.add_argument("groups", nargs="+", choices=list(GROUPS))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    options = parser.parse_args()
    failed = False
    for group in options.groups:
        for result in GROUPS[group](options.device):
            print(json.dumps(asdict(result) | {"passed": result.passed}), flush=True)
            failed = failed or not result.passed
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
