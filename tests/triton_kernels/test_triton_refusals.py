"""Bad input: an error that names operator, argument and both values, before any kernel runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from ygg_kernels.triton import packing
from ygg_kernels.triton.accept import accept
from ygg_kernels.triton.attention import tree_attention
from ygg_kernels.triton.checks import KernelInputError
from ygg_kernels.triton.kv import kv_commit
from ygg_kernels.triton.linear import linear, linear_unbiased
from ygg_kernels.triton.topk import keyed_topk, topk_logsumexp

NAN = float("nan")
HALF = torch.bfloat16


def refused(message: str, operator: Callable[..., Any], *arguments: Any) -> None:
    with pytest.raises(KernelInputError, match=re.escape(message)):
        operator(*arguments)


def attention_inputs(size: int = 64, rows: int = 3, dtype: torch.dtype = HALF) -> list[Any]:
    return [
        torch.zeros(1, 4, rows, size, dtype=dtype),
        torch.zeros(1, 2, 20, size, dtype=dtype),
        torch.zeros(1, 2, 20, size, dtype=dtype),
        torch.tensor([5]),
        torch.zeros(rows, dtype=torch.int64),
        torch.eye(rows, dtype=torch.bool),
        0.125,
        0,
        0.0,
    ]


def changed(place: int, value: Any) -> list[Any]:
    inputs = attention_inputs()
    inputs[place] = value
    return inputs


def test_attention_refuses() -> None:
    q, k, v, length, positions, mask, *_ = attention_inputs()
    for message, inputs in (
        ("key head size is 576, wanted a multiple of 8 from 16 to 256", attention_inputs(576)),
        ("key head size is 20, wanted a multiple of 8 from 16 to 256", attention_inputs(20)),
        ("row count is 65, wanted 1 to 64", attention_inputs(rows=65)),
        ("dtype of q is torch.float64", attention_inputs(dtype=torch.float64)),
        ("scale is nan, wanted a finite number above 0", changed(6, NAN)),
        ("scale is inf, wanted a finite number above 0", changed(6, float("inf"))),
        ("softcap is nan, wanted a finite number, 0 or above", changed(8, NAN)),
        ("window is -1, wanted 0 (none) or above", changed(7, -1)),
        ("dtype of k_cache is torch.float16, wanted torch.bfloat16", changed(1, k.half())),
        ("dtype of tree_mask is torch.int32, wanted torch.bool", changed(5, mask.int())),
        ("shape of tree_mask is [2, 3], wanted [3, 3]", changed(5, mask[:2])),
        ("shape of v_cache is [1, 2, 19, 64]", changed(2, v[:, :, 1:])),
        ("strides of positions is [2]", changed(4, positions.repeat(2)[::2])),
        ("last stride of q is 2, wanted 1", changed(0, q.repeat(1, 1, 1, 2)[..., ::2])),
        ("heads of q is 3, wanted a multiple of 2", changed(0, q[:, :3])),
        ("shape of length is [2], wanted one element", changed(3, length.repeat(2))),
        ("device of k_cache is meta, wanted cpu", changed(1, k.to("meta"))),
    ):  # fmt: skip
        refused(f"tree_attention: {message}", tree_attention, *inputs)


def test_attention_refuses_an_unaligned_cache() -> None:
    k = torch.zeros(1 * 2 * 20 * 64 + 8, dtype=HALF)
    start = next(s for s in range(1, 8) if k[s:].data_ptr() % 16 == 2)
    inputs = changed(1, k[start : start + 2 * 20 * 64].view(1, 2, 20, 64))
    refused("tree_attention: address of k_cache is 2 modulo 16, wanted 0", tree_attention, *inputs)


def multiply(x: Tensor, weight: Tensor, number: int, size: int = 8, integer: bool = False) -> None:
    linear_unbiased(x, [weight], [size], [number], integer)


def test_linear_refuses() -> None:
    x, weight = torch.zeros(3, 64, dtype=HALF), torch.zeros(8, 64, dtype=HALF)
    bf16, q8, q4 = (packing.CODES[name] for name in ("bfloat16", "q8_0", "q4_1"))
    storage = torch.zeros(8 * 64 + 8, dtype=HALF)
    start = next(s for s in range(1, 9) if storage[s:].data_ptr() % 16 == 2)
    strided, narrow = weight.repeat(1, 2)[:, ::2], torch.zeros(8, 64, dtype=torch.uint8)
    unaligned = storage[start : start + 8 * 64].view(8, 64)
    for message, arguments in (
        ("dtype of weight is torch.float32, wanted torch.bfloat16", (x, weight.float(), bf16)),
        ("dtype of weight is torch.bfloat16, wanted torch.uint8", (x, weight, q8)),
        ("address of weight is 2 modulo 16, wanted 0", (x, unaligned, bf16)),
        ("strides of weight is [128, 2], wanted contiguous", (x, strided, bf16)),
        ("shape of weight is [8, 64], wanted [9, 64]", (x, weight, bf16, 9)),
        ("shape of weight is [8, 64], wanted [8, 80]", (x, narrow, q8)),
        ("shape of weight is [8, 64], wanted [8, 48]", (x, narrow, q4)),
        ("format of the weight is 2, wanted one of", (x, weight, 2)),
        ("format of the weight is bfloat16, wanted float16", (x.half(), weight, bf16)),
        ("dtype of x is torch.float32", (x.float(), weight, bf16)),
        ("K is 40, wanted a multiple of 32", (x.view(-1)[:40].view(1, 40), weight, bf16)),
        ("row count is 65, wanted 1 to 64", (torch.zeros(65, 64, dtype=HALF), weight, bf16)),
        ("integer is True, wanted False", (x, weight, bf16, 8, True)),
    ):  # fmt: skip
        refused(f"linear: {message}", multiply, *arguments)
    bias = torch.zeros(8)
    refused(
        "linear: dtype of bias is torch.float32, wanted torch.bfloat16",
        linear, x, [weight], [bias], [8], [bf16], False,
    )  # fmt: skip


def test_packing_refuses_bad_scales() -> None:
    weight = torch.randn(4, 64)
    weight[2, 40] = NAN
    for name in ("q8_0", "q4_1"):
        with pytest.raises(KernelInputError, match="of the packed weight is nan, wanted a finite"):
            packing.quantize(weight, packing.CODES[name])
    with pytest.raises(KernelInputError, match="a scale of the packed weight is inf"):
        packing.quantize(torch.full((1, 32), 1e9), packing.Q8_0)
    with pytest.raises(KernelInputError, match="K of a packed weight is 40, wanted a multiple"):
        packing.quantize(torch.zeros(4, 40), packing.Q8_0)


def test_the_others_refuse() -> None:
    logits, rows = torch.zeros(2, 10), torch.zeros(2, dtype=torch.int64)
    refused("topk_logsumexp: k is 11, wanted 1 to 10", topk_logsumexp, logits, 11)
    refused("topk_logsumexp: dtype of logits is torch.int64", topk_logsumexp, logits.long(), 1)
    key, warmth = torch.zeros(2, dtype=torch.int64), torch.ones(1)
    refused(
        "keyed_topk: dtype of temperature is torch.float64, wanted torch.float32",
        keyed_topk, logits, key, rows, warmth.double(), 1,
    )  # fmt: skip
    refused("keyed_topk: shape of key is [1]", keyed_topk, logits, key[:1], rows, warmth, 1)
    refused("accept: shape of tokens is [1], wanted [2]", accept, rows, rows[:1], rows)
    refused("accept: dtype of parents is torch.int32", accept, rows, rows, rows.int())
    cache = torch.zeros(1, 2, 10, 32)
    refused("kv_commit: dtype of a cache is torch.int8", kv_commit, [cache.char()], rows, rows)
    refused("kv_commit: shape of targets is [1], wanted [2]", kv_commit, [cache], rows, rows[:1])
    many = torch.zeros(65, dtype=torch.int64)
    refused("kv_commit: number of moves is 65, wanted 0 to 64", kv_commit, [cache], many, many)
