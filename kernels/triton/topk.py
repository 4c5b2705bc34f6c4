"""`topk_logsumexp` and `keyed_topk`: the most likely tokens of a row, and its normaliser.

Keyed: tokens are ranked by logits / T + G, where G = -log(-log(u)) and u = (bits + 1/2) / 2^23,
`bits` the upper 23 of the first word of Philox4x32-10 with key = seed (64 bits) and counter =
(token id, position, choice, 0). So the noise of a token depends on nothing that the tree decides:
the first of a row is the verifier's sample, and a drafter that ranks by it is coupled to it.

Vocabularies go in blocks of 4096 tokens, each a program, then one program merges a row's blocks in
order: no result depends on the other rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton
from ygg_kernels.triton import checks
from ygg_kernels.triton.numerics import emulates, widen

BLOCK = 4096
MAX_K = 64
NO_TOKEN = tl.constexpr(2**31 - 1)


@triton.jit
def _noise(seed, choice, position, token):
    """Gumbel noise of tokens [BLOCK]; see the module's docstring."""
    counter = token.to(tl.uint32)
    word, _, _, _ = tl.philox(
        seed, counter, counter * 0 + position.to(tl.uint32), counter * 0 + choice.to(tl.uint32),
        counter * 0,
    )  # fmt: skip
    # 23 bits and a half are exact in float32, and never 0 or 1.
    uniform = ((word >> 9).to(tl.float32) + 0.5) * (1.0 / 8388608)
    return -tl.log(-tl.log(uniform))


@triton.jit
def _next_best(score, token, last_score, last_token):
    """The best after (last_score, last_token): highest score, then lowest id; NO_TOKEN if none."""
    left = (score < last_score) | ((score == last_score) & (token > last_token))
    left = left & (token != NO_TOKEN)
    best = tl.max(tl.where(left, score, float("-inf")), axis=0)
    return best, tl.min(tl.where(left & (score == best), token, NO_TOKEN), axis=0)


@triton.jit
def _block_kernel(
    logits, key, positions, temperature, scores, tokens, stats, vocab, row_stride,
    K: tl.constexpr, KEYED: tl.constexpr, BLOCK: tl.constexpr, EMULATE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    block = tl.program_id(1)
    place = row * tl.num_programs(1) + block
    token = block * BLOCK + tl.arange(0, BLOCK)
    exists = token < vocab
    loaded = tl.load(logits + row.to(tl.int64) * row_stride + token, mask=exists, other=0.0)
    value = widen(loaded, EMULATE)
    score = value
    if KEYED:
        warmth = tl.load(temperature)
        if warmth > 0:
            value = value / warmth
            noise = _noise(tl.load(key), tl.load(key + 1), tl.load(positions + row), token)
            score = value + noise
    value = tl.where(exists, value, float("-inf"))
    largest = tl.max(value, axis=0)
    base = tl.where(largest == float("-inf"), 0.0, largest)
    total = tl.sum(tl.exp(value - base), axis=0)
    # The maximum passes over NaN; the sum does not, and tells the merge.
    tl.store(stats + place * 2, largest)
    tl.store(stats + place * 2 + 1, total)
    token = tl.where(exists, token, NO_TOKEN)
    best = float("inf")
    last = -1
    for rank in range(K):
        best, last = _next_best(score, token, best, last)
        tl.store(scores + place * K + rank, best)
        tl.store(tokens + place * K + rank, last)


@triton.jit
def _merge_kernel(
    scores, tokens, stats, out_scores, out_tokens, out_sums, num_blocks,
    K: tl.constexpr, BLOCKS: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    block = tl.arange(0, BLOCKS)
    in_row = block < num_blocks
    place = (row * num_blocks + block) * 2
    largest = tl.load(stats + place, mask=in_row, other=float("-inf"))
    total = tl.load(stats + place + 1, mask=in_row, other=0.0)
    top = tl.max(largest, axis=0)
    base = tl.where(top == float("-inf"), 0.0, top)
    total_sum = tl.sum(total * tl.exp(largest - base), axis=0)
    log_sum = base + tl.log(total_sum)
    broken = (total_sum != total_sum) | (top == float("inf"))
    tl.store(out_sums + row, tl.where(broken, float("nan"), log_sum))
    entry = tl.arange(0, CANDIDATES)
    mine = entry < num_blocks * K
    score = tl.load(scores + row * num_blocks * K + entry, mask=mine, other=0.0)
    token = tl.load(tokens + row * num_blocks * K + entry, mask=mine, other=NO_TOKEN)
    best = float("inf")
    last = -1
    for rank in range(K):
        best, last = _next_best(score, token, best, last)
        failed = broken | (last == NO_TOKEN)
        tl.store(out_scores + row * K + rank, tl.where(failed, float("nan"), best))
        tl.store(out_tokens + row * K + rank, tl.where(failed, -1, last).to(tl.int64))


def _check(operator: str, logits: Tensor, k: int) -> None:
    checks.require_shape(operator, "logits", logits, "V", "vocab")
    checks.require_rows(operator, logits.shape[0])
    checks.require_dtype(operator, "logits", logits, torch.bfloat16, torch.float16, torch.float32)
    if logits.stride(1) != 1:
        raise checks.refuse(operator, "last stride of logits", logits.stride(1), 1)
    if not 1 <= k <= min(MAX_K, logits.shape[1]):
        raise checks.refuse(operator, "k", k, f"1 to {min(MAX_K, logits.shape[1])}")


def _select(
    logits: Tensor, k: int, key: Tensor, positions: Tensor, temperature: Tensor, keyed: bool
) -> tuple[Tensor, Tensor, Tensor]:
    num_rows, vocab = logits.shape
    num_blocks = triton.cdiv(vocab, BLOCK)
    device = logits.device
    scores = torch.empty((num_rows, num_blocks, k), dtype=torch.float32, device=device)
    tokens = torch.empty((num_rows, num_blocks, k), dtype=torch.int32, device=device)
    stats = torch.empty((num_rows, num_blocks, 2), dtype=torch.float32, device=device)
    wrap_triton(_block_kernel)[(num_rows, num_blocks)](
        logits, key, positions, temperature, scores, tokens, stats, vocab, logits.stride(0),
        K=k, KEYED=keyed, BLOCK=BLOCK, EMULATE=emulates(logits.dtype), num_warps=8, num_stages=1,
    )  # fmt: skip
    out_scores = torch.empty((num_rows, k), dtype=torch.float32, device=device)
    out_tokens = torch.empty((num_rows, k), dtype=torch.int64, device=device)
    out_sums = torch.empty((num_rows,), dtype=torch.float32, device=device)
    wrap_triton(_merge_kernel)[(num_rows,)](
        scores, tokens, stats, out_scores, out_tokens, out_sums, num_blocks,
        K=k, BLOCKS=triton.next_power_of_2(num_blocks),
        CANDIDATES=triton.next_power_of_2(num_blocks * k), num_warps=4, num_stages=1,
    )  # fmt: skip
    return out_scores, out_tokens, out_sums


@triton_op("ygg_cuda::topk_logsumexp", mutates_args=())
def topk_logsumexp(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The k largest logits [V, k] float32 with their ids [V, k] int64, ties to the lowest id, and
    logsumexp [V] float32, of logits [V, vocab].

    A row that holds NaN or +inf gives ids -1 and NaN. Raises KernelInputError.
    """
    _check("topk_logsumexp", logits, k)
    return _select(logits, k, logits, logits, logits, False)


@triton_op("ygg_cuda::keyed_topk", mutates_args=())
def keyed_topk(
    logits: Tensor, key: Tensor, positions: Tensor, temperature: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The k best of logits [V, vocab] / T + keyed noise: scores, ids, logsumexp(logits / T).

    `key` [2] int64 is (seed, choice index), `positions` [V] int64 the place in prompt and output
    of the token that a row chooses, `temperature` [1] float32 is T; T = 0 ranks the logits
    themselves. All are read on the device. Raises KernelInputError.
    """
    _check("keyed_topk", logits, k)
    for name, tensor, size, dtype in (
        ("key", key, 2, torch.int64),
        ("positions", positions, logits.shape[0], torch.int64),
        ("temperature", temperature, 1, torch.float32),
    ):
        checks.require_dtype("keyed_topk", name, tensor, dtype)
        checks.require_shape("keyed_topk", name, tensor, size)
        checks.require_contiguous("keyed_topk", name, tensor)
        checks.require_same_device("keyed_topk", logits, **{name: tensor})
    return _select(logits, k, key, positions, temperature, True)
