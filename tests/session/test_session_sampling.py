"""Sampling through a session: trees and plain decoding give the same tokens, seeds repeat, choices
differ, what ends an output cuts everything. Scripted graphs with logits, full trees.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import tiny_tokenizers as tiny
import torch
from drafting import RecordedDrafter
from parts import CHAIN, TREE, StubbornDrafter, make, telling
from sampling_requests import TEMPERATURES, alone, mixes
from scripted import LogitGraphs, RandomDrafter

from yggrt.core.errors import RequestError
from yggrt.session import Session

VOCAB = 12
TREES = [CHAIN, TREE, "static:parents=0/0/0/1/1/2/2/3/3"]


OPTIONS = alone([3], [1, 5])
REQUESTS = {**OPTIONS, **mixes(OPTIONS, 10)}


def session(tree: str = TREE, **options: Any) -> Session:
    """Random drafts over random logits."""
    graphs = LogitGraphs(vocab_size=VOCAB, spread=1.5)
    return make(graphs, RandomDrafter(vocab_size=VOCAB), tree=tree, **options)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("name", REQUESTS)
def test_trees_emit_what_plain_decoding_emits(tree: str, name: str) -> None:
    graphs = LogitGraphs(vocab_size=VOCAB, spread=1.5)
    one = make(graphs, RandomDrafter(vocab_size=VOCAB), tree=tree, eos_ids=[3])
    num_tokens = num_passes = 0
    for temperature in TEMPERATURES:
        for prompt in ([1, 2, 3], [4], [7, 7, 0, 11, 2]):
            request = {
                "max_tokens": 30, "temperature": temperature, "seed": 5, "logprobs": 1,
                **REQUESTS[name],
            }  # fmt: skip
            plain = one.generate(prompt, plain=True, **request)
            telling = RecordedDrafter(prompt, plain.ids, VOCAB)
            full = make(graphs, telling, tree=tree, eos_ids=[3])
            drafted = full.generate(prompt, gated=False, **request)
            assert drafted.ids == plain.ids
            assert one.generate(prompt, gated=False, **request).ids == plain.ids
            assert drafted.logprobs == plain.logprobs
            assert len(drafted.ids) == len(drafted.logprobs or ()) == drafted.stats.num_tokens
            num_tokens += len(plain.ids)
            num_passes += drafted.stats.num_passes
    assert num_passes < num_tokens / 2


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 55, 62, 63])
def test_short_prompts_and_the_end_of_the_context(length: int) -> None:
    one = session()
    for turn in range(3):
        prompt = [(turn + i) % VOCAB for i in range(length)]
        request: dict[str, Any] = {"temperature": 1.0, "seed": turn, "max_tokens": 80}
        plain = one.generate(prompt, plain=True, **request)
        assert one.generate(prompt, gated=False, **request).ids == plain.ids
        assert len(plain.ids) == 64 - length
        assert plain.finish_reason == "length"


def test_an_end_id_never_ends_the_output_before_the_minimum() -> None:
    graphs = LogitGraphs(vocab_size=VOCAB)
    for end in ({"eos_ids": [3]}, {"stop_ids": [3]}):
        eos_ids, options = end.get("eos_ids", []), {"stop_ids": end.get("stop_ids", [])}
        one = make(graphs, RandomDrafter(vocab_size=VOCAB), tree=TREE, eos_ids=eos_ids)
        for temperature in (0.0, 1.0):
            request: dict[str, Any] = {
                "logit_bias": {3: 50.0}, "temperature": temperature, "gated": False, **options
            }  # fmt: skip
            done = one.generate([1, 2], min_tokens=16, **request)
            assert done.ids.index(3) == 16
            assert done.finish_reason == "stop"
            assert one.generate([1, 2], **request).ids == [3]


def test_a_seed_repeats_and_other_seeds_differ() -> None:
    one, other = session(), session()
    first = one.generate([1, 2], temperature=1.0, seed=3, max_tokens=20)
    stream = one.stream([1, 2], temperature=1.0, seed=3, max_tokens=20)
    ids = list(next(stream).ids)
    # A second session in between changes nothing.
    assert other.generate([1, 2], temperature=1.0, seed=3, max_tokens=20).ids == first.ids
    ids += [token for piece in stream for token in piece.ids]
    assert ids == first.ids
    assert first.stats.seed == 3
    found = {
        tuple(one.generate([1, 2], temperature=1.0, seed=seed, max_tokens=20).ids)
        for seed in range(10)
    }
    assert len(found) >= 9


def test_without_a_seed_a_random_one_is_reported_and_repeats() -> None:
    one = session()
    first = one.generate([1, 2], temperature=1.0, max_tokens=20)
    second = one.generate([1, 2], temperature=1.0, max_tokens=20)
    assert first.ids != second.ids
    again = one.generate([1, 2], temperature=1.0, max_tokens=20, seed=first.stats.seed)
    assert again.ids == first.ids
    assert f"seed {first.stats.seed}" in first.stats.line()
    assert one.generate([1, 2], max_tokens=5).stats.seed is None


def test_choices_share_the_prompt_and_repeat_alone() -> None:
    one = session()
    prompt = [random.Random(1).randrange(VOCAB) for _ in range(20)]
    done = one.generate(prompt, temperature=1.0, seed=9, n=4, max_tokens=15)
    assert len(done.choices) == 4
    assert len({tuple(choice.ids) for choice in done.choices}) == 4
    assert {choice.stats.seed for choice in done.choices} == {9}
    assert [choice.stats.num_reused_tokens for choice in done.choices] == [0, 19, 19, 19]
    assert one.last is done
    plain = one.generate(prompt, temperature=1.0, seed=9, n=4, max_tokens=15, plain=True)
    assert [choice.ids for choice in plain.choices] == [choice.ids for choice in done.choices]
    assert one.generate(prompt, temperature=1.0, seed=9, max_tokens=15).ids == done.ids


def test_a_stream_gives_one_choice() -> None:
    with pytest.raises(RequestError, match="n is 2 and a stream gives one"):
        session().stream([1], n=2, temperature=1.0)


def test_a_cancelled_request_starts_no_further_choice() -> None:
    done = session().generate([1], n=3, temperature=1.0, cancelled=lambda: True)
    assert done.finish_reason == "cancelled"
    assert len(done.choices) == 1


def test_the_first_tokens_of_many_seeds_follow_the_model() -> None:
    """Two tokens under trees four wide and two deep: total variation from the exact joint law.

    5,000 seeds over 64 cells: its mean is about 0.045 where the law is right; 0.08 is missed by
    chance less than once in a million.
    """
    graphs = LogitGraphs(vocab_size=8, spread=1.0)
    one = make(graphs, RandomDrafter(vocab_size=8), tree="egt:width=4,depth=2,children=4,verify=9")
    cache = graphs.new_cache()
    laws = {}
    first = graphs.prefill(cache, [1, 2], 0).logits[0].double().softmax(0).tolist()
    for a in range(8):
        graphs.prefill(cache, [1, 2], 0)
        second = graphs.prefill(cache, [a], 2).logits[0].double().softmax(0).tolist()
        laws |= {(a, b): first[a] * second[b] for b in range(8)}
    num = 5000
    found: Counter[tuple[int, ...]] = Counter()
    accepted = 0
    for seed in range(num):
        done = one.generate([1, 2], temperature=1.0, seed=seed, max_tokens=3, gated=False)
        found[tuple(done.ids[:2])] += 1
        accepted += done.stats.accepted
    distance = sum(abs(found[pair] / num - law) for pair, law in laws.items()) / 2
    assert distance < 0.08
    assert accepted > num / 5


def test_a_drafter_that_always_proposes_eos() -> None:
    graphs = LogitGraphs(vocab_size=VOCAB)
    one = make(graphs, StubbornDrafter(VOCAB, token=3), eos_ids=[3])
    for seed in range(10):
        request: dict[str, Any] = {"temperature": 1.0, "seed": seed, "max_tokens": 30}
        plain = one.generate([5], plain=True, **request)
        assert one.generate([5], gated=False, **request).ids == plain.ids


def test_a_stop_in_a_long_run_cuts_ids_and_log_probabilities_alike() -> None:
    text = tiny.chatml_text()
    one, script = telling(text, "one two words and stops then one more word follows here")
    full = one.generate("hello", max_tokens=len(script), logprobs=2)
    assert full.ids == script
    done = one.generate("hello", stop=["words"], logprobs=2)
    assert done.text == "one two "
    assert len(done.ids) == len(done.logprobs or ()) == done.stats.num_tokens < len(script)
    assert done.logprobs == (full.logprobs or [])[: len(done.ids)]


def test_a_stop_id_ends_the_output_as_eos_does() -> None:
    text = tiny.chatml_text()
    one, script = telling(text, "one two words and stops then")
    done = one.generate("hello", stop_ids=[script[4]])
    assert done.ids == script[: script.index(script[4]) + 1]
    assert done.finish_reason == "stop"
    assert done.text == text.decode(done.ids[:-1])


def test_a_stream_that_was_overtaken_before_it_began() -> None:
    one = session()
    first = one.stream([1, 2], temperature=1.0, seed=1)
    second = one.stream([1, 2], temperature=1.0, seed=2, max_tokens=9)
    with pytest.raises(RequestError, match="another request was started"):
        next(first)
    ids = [token for piece in second for token in piece.ids]
    assert ids == one.generate([1, 2], temperature=1.0, seed=2, max_tokens=9).ids


def test_a_failing_processor_leaves_the_session_usable() -> None:
    one = session()
    wanted = one.generate([1, 2], max_tokens=12).ids
    for num_calls in (0, 1, 7):

        def fails(ids: list[int], logits: torch.Tensor, num: int = 2 + num_calls) -> Any:
            return logits if len(ids) < num else None

        with pytest.raises(RequestError, match="'fails' gave NoneType"):
            one.generate([1, 2], max_tokens=12, processors=[fails])
        assert one.generate([1, 2], max_tokens=12, reuse=True).ids == wanted
        assert one.generate([1, 2], max_tokens=12).ids == wanted


def test_refused_requests_leave_the_session_usable() -> None:
    text = tiny.chatml_text()
    one, script = telling(text, "two words")
    bad: list[dict[str, Any]] = [
        {"max_tokens": 2.5}, {"stop": None}, {"temperature": -1}, {"top_p": 0},
        {"stop": ["x"] * 17}, {"logit_bias": {1000: 1.0}}, {"stop": [""]}, {"stop": [1]},
    ]  # fmt: skip
    for options in bad:
        with pytest.raises(RequestError):
            one.generate("hello", **options)
        with pytest.raises(RequestError):
            one.stream("hello", **options)
    for messages in ("hi", [], ["hi"], [{"role": "user"}], {"role": "user", "content": "hi"}):
        with pytest.raises(RequestError):
            one.chat(messages)  # type: ignore[arg-type]
    for prompt in (5, [1.5], [None]):
        with pytest.raises(RequestError, match="no text and no list"):
            one.generate(prompt)  # type: ignore[arg-type]
    assert one.generate("hello", stop=["x"] * 16, max_tokens=2).ids == script[:2]
