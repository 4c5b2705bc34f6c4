"""Every value out of range is one line with what was found and what is wanted."""

from __future__ import annotations

import math
from typing import Any

import pytest

from yggrt.core.errors import RequestError
from yggrt.request import Request
from yggrt.sampling.params import SamplingParams

BAD: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -0.1}, "temperature is -0.1, wanted 0 or 0.001 to 100"),
    ({"temperature": 0.0001}, "temperature is 0.0001"),
    ({"temperature": 101}, "temperature is 101"),
    ({"temperature": math.nan}, "temperature is nan"),
    ({"temperature": "1"}, "temperature is '1', wanted a number"),
    ({"temperature": True}, "temperature is True"),
    ({"temperature": None}, "temperature is None"),
    ({"top_k": -1}, "top_k is -1, wanted a whole number from 0"),
    ({"top_k": 1.5}, "top_k is 1.5"),
    ({"top_p": 0}, "top_p is 0, wanted above 0, up to 1"),
    ({"top_p": 1.01}, "top_p is 1.01"),
    ({"min_p": -0.1}, "min_p is -0.1, wanted 0 to 1"),
    ({"min_p": 2}, "min_p is 2"),
    ({"repetition_penalty": 0}, "repetition_penalty is 0, wanted above 0"),
    ({"repetition_penalty": math.inf}, "repetition_penalty is inf"),
    ({"presence_penalty": 2.5}, "presence_penalty is 2.5, wanted -2 to 2"),
    ({"frequency_penalty": -3}, "frequency_penalty is -3"),
    ({"logit_bias": {-1: 1.0}}, "an id of logit_bias is -1"),
    ({"logit_bias": {"1": 1.0}}, "an id of logit_bias is '1'"),
    ({"logit_bias": {1: math.inf}}, "logit_bias of id 1 is inf, wanted finite"),
    ({"logit_bias": [1]}, r"logit_bias is \[1\], wanted token ids with a number each"),
    ({"min_tokens": -1}, "min_tokens is -1"),
    ({"min_tokens": 300}, "min_tokens is 300 and max_tokens 256"),
    ({"stop_ids": 3}, "stop_ids is 3, wanted a list"),
    ({"stop_ids": "12"}, "stop_ids is '12'"),
    ({"stop_ids": [1.0]}, "an id of stop_ids is 1.0"),
    ({"seed": -1}, "seed is -1, wanted a whole number from 0 to 18446744073709551615"),
    ({"seed": 2**64}, "seed is 18446744073709551616"),
    ({"seed": 1.0}, "seed is 1.0"),
    ({"n": 0}, "n is 0, wanted a whole number from 1 to 128"),
    ({"n": 129, "temperature": 1}, "n is 129"),
    ({"n": 2}, "n is 2 at temperature 0"),
    ({"logprobs": 21}, "logprobs is 21, wanted a whole number from 0 to 20"),
    ({"logprobs": -1}, "logprobs is -1"),
    ({"regex": "a", "grammar": "b"}, "regex and grammar are given"),
    ({"regex": 5}, "regex is 5, wanted a string"),
    ({"json_schema": 5}, "json_schema is 5, wanted a string or a mapping"),
    ({"regex": "a", "ignore_eos": True}, "regex ends the output with EOS"),
    ({"processors": [3]}, "a processor is 3, wanted a function"),
    ({"processors": print}, "processors is <built-in function print>, wanted a list"),
    ({"max_tokens": 2.5}, "max_tokens is 2.5, wanted a whole number from 1"),
    ({"max_tokens": 0}, "max_tokens is 0"),
    ({"stop": None}, "stop is None, wanted a string or a list"),
    ({"stop": 7}, "stop is 7"),
    ({"tree": 7}, "tree is 7, wanted a tree spec"),
]


@pytest.mark.parametrize(("options", "words"), BAD, ids=lambda value: str(value)[:40])
def test_bad_values(options: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        Request.of(options)
    assert caught.value.tip
    assert "\n" not in caught.value.message


def test_the_edges_are_in() -> None:
    for options in (
        {"temperature": 0.001, "top_p": 1e-9, "min_p": 1, "seed": 2**64 - 1, "n": 128},
        {"temperature": 100, "presence_penalty": -2, "frequency_penalty": 2, "logprobs": 20},
        {"stop_ids": {1, 2}, "logit_bias": {0: -100}, "min_tokens": 256},
    ):
        Request.of(options)


def test_ids_out_of_the_vocabulary() -> None:
    for options in ({"logit_bias": {8: 1.0}}, {"stop_ids": [2, 8]}):
        with pytest.raises(RequestError, match=r"has id 8, wanted 0\.\.7"):
            SamplingParams(**options).check_vocabulary(8)
        SamplingParams(**options).check_vocabulary(9)


def test_random_seeds_differ_and_fit_into_a_double() -> None:
    seeds = {Request.of({"temperature": 1.0}).seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(seed is not None and 0 <= seed < 2**53 for seed in seeds)
    assert Request.of({"temperature": 1.0, "seed": 4}).seed == 4
    assert Request.of({"seed": 4}).seed is None
