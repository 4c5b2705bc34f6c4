"""The sampler: what acts on the logits, in which order, over which history."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from typing import Any

import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from yggrt.core.errors import RequestError
from yggrt.core.passes import PassOutput
from yggrt.sampling.noise import KeyedNoise
from yggrt.sampling.params import SamplingParams
from yggrt.sampling.sampler import Sampler

VOCAB = 60
PROMPT = [3, 5, 5, 9, 41]


def output(logits: torch.Tensor) -> PassOutput:
    nothing: Any = None
    return PassOutput(logits.argmax(-1).tolist(), logits, nothing, nothing)


def rows(num: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def run(params: SamplingParams, logits: torch.Tensor, **options: Any) -> tuple[list[int], Sampler]:
    """A token per row, one after the other."""
    sampler = Sampler(params, PROMPT, vocab_size=VOCAB, seed=11, **options)
    choose = sampler(output(logits))
    return [choose(row, len(PROMPT) + row) for row in range(len(logits))], sampler


def expected(logits: torch.Tensor, temperature: float, process: Any, choice: int = 0) -> list[int]:
    """argmax of processed score + noise, from the definition."""
    noise = KeyedNoise(11, choice, 1.0)
    ids = list(PROMPT)
    for row in logits:
        scores = process(ids, row.clone())
        if temperature:
            scores = scores.double() + noise(len(ids), torch.arange(VOCAB))
        ids.append(int(scores.argmax()))
    return ids[len(PROMPT) :]


def through(*processors: Any) -> Any:
    """transformers' processors over (ids, row)."""
    chain = LogitsProcessorList(processors)
    return lambda ids, row: chain(torch.tensor([ids]), row[None])[0]


def test_plain_temperature() -> None:
    logits = rows(40)
    for temperature in (0.6, 1.0, 1.5):
        tokens, _ = run(SamplingParams(temperature=temperature), logits)
        process = through(TemperatureLogitsWarper(temperature))
        assert tokens == expected(logits, temperature, process)


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0, 1.5])
@pytest.mark.parametrize(
    ("options", "processors"),
    [
        ({"repetition_penalty": 1.3}, [RepetitionPenaltyLogitsProcessor(1.3)]),
        ({"repetition_penalty": 0.7}, [RepetitionPenaltyLogitsProcessor(0.7)]),
        (
            {"logit_bias": {4: 2.5, 17: -1.0, 0: -100.0}},
            [SequenceBiasLogitsProcessor({(4,): 2.5, (17,): -1.0, (0,): -100.0})],
        ),
        (
            {"min_tokens": 12},
            [MinNewTokensLengthLogitsProcessor(len(PROMPT), 12, torch.tensor([2, 30, 31]))],
        ),
        ({"top_k": 5}, [TopKLogitsWarper(5)]),
        ({"top_p": 0.8}, [TopPLogitsWarper(0.8)]),
        ({"min_p": 0.1}, [MinPLogitsWarper(0.1)]),
    ],
    ids=lambda value: str(next(iter(value))) if isinstance(value, dict) else "",
)
def test_each_against_transformers(
    temperature: float, options: dict[str, Any], processors: list[Any]
) -> None:
    """Greedy decoding has no warpers; for it the filters change nothing, as the best stays."""
    if temperature not in (0.0, 1.0):
        place = next((i for i, p in enumerate(processors) if "Warper" in type(p).__name__), 1)
        processors = [
            *processors[:place],
            TemperatureLogitsWarper(temperature),
            *processors[place:],
        ]
    logits = rows(30)
    tokens, _ = run(
        SamplingParams(temperature=temperature, **options), logits, ending_ids=(2, 30, 31)
    )
    assert tokens == expected(logits, temperature, through(*processors))


def test_all_together_in_the_order_of_transformers() -> None:
    logits = rows(60, seed=3)
    for seed in range(8):
        rng = random.Random(seed)
        bias = {rng.randrange(VOCAB): rng.uniform(-4, 4) for _ in range(4)}
        values: dict[str, Any] = {
            "repetition_penalty": rng.uniform(0.8, 1.6),
            "min_tokens": rng.randrange(30),
            "temperature": rng.choice([0.6, 1.0, 1.5]),
            "top_k": rng.randrange(5, 40),
            "top_p": rng.uniform(0.5, 0.99),
            "min_p": rng.uniform(0.001, 0.1),
        }
        tokens, _ = run(SamplingParams(logit_bias=bias, **values), logits, ending_ids=(2, 30))
        process = through(
            SequenceBiasLogitsProcessor({(token,): value for token, value in bias.items()}),
            RepetitionPenaltyLogitsProcessor(values["repetition_penalty"]),
            MinNewTokensLengthLogitsProcessor(
                len(PROMPT), values["min_tokens"], torch.tensor([2, 30])
            ),
            TemperatureLogitsWarper(values["temperature"]),
            TopKLogitsWarper(values["top_k"]),
            TopPLogitsWarper(values["top_p"]),
            MinPLogitsWarper(values["min_p"]),
        )
        assert tokens == expected(logits, 1.0, process)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_presence_and_frequency_count_the_output_alone(temperature: float) -> None:
    def penalised(ids: list[int], row: torch.Tensor) -> torch.Tensor:
        output_ids = ids[len(PROMPT) :]
        counts = torch.bincount(torch.tensor(output_ids, dtype=torch.int64), minlength=VOCAB)
        return row - 0.7 * counts.float() - 1.1 * (counts > 0).float()

    logits = rows(1).expand(40, VOCAB)
    params = SamplingParams(temperature=temperature, presence_penalty=1.1, frequency_penalty=0.7)
    tokens, _ = run(params, logits)
    assert tokens == expected(logits, temperature, penalised)
    assert len(set(tokens)) > 5


def test_processors_of_the_request_see_prompt_and_output() -> None:
    seen: list[list[int]] = []

    def forbid_last(ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        seen.append(list(ids))
        logits[ids[-1]] = -math.inf
        ids.clear()  # their own copy
        return logits

    logits = rows(1).expand(10, VOCAB)
    tokens, _ = run(SamplingParams(processors=[forbid_last]), logits)
    assert all(a != b for a, b in pairwise(tokens))
    assert seen == [[*PROMPT, *tokens[:num]] for num in range(10)]
    assert torch.equal(logits, rows(1).expand(10, VOCAB))


def boom(ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    raise ValueError("first line\nsecond line")


@pytest.mark.parametrize(
    ("processor", "words"),
    [
        (boom, r"'boom' raised ValueError: first line second line"),
        (lambda ids, logits: logits[:4], r"shape \[4\], wanted floating point of shape \[60\]"),
        (lambda ids, logits: None, "gave NoneType"),
        (lambda ids, logits: logits.long(), "gave torch.int64"),
        (lambda ids, logits: logits * math.nan, "NaN"),
        (lambda ids, logits: logits - math.inf, "no token is left"),
    ],
)
def test_a_processor_that_fails_is_one_line(processor: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        run(SamplingParams(temperature=1.0, processors=[processor]), rows(1))
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("options", [{"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.1}])
def test_filters_of_an_empty_vocabulary(options: dict[str, Any]) -> None:
    params = SamplingParams(
        temperature=1.0, processors=[lambda ids, logits: logits - math.inf], **options
    )
    with pytest.raises(RequestError, match="no token is left"):
        run(params, rows(1))


def test_choices_differ_and_a_seed_repeats() -> None:
    logits = rows(30)
    params = SamplingParams(temperature=1.5)
    tokens = [run(params, logits, choice=choice)[0] for choice in (0, 1, 0)]
    assert tokens[0] == tokens[2] != tokens[1]
    assert tokens[1] == expected(logits, 1.5, lambda ids, row: row / 1.5, choice=1)


def test_log_probabilities() -> None:
    logits = rows(12)
    logits[4, :] = 0.5
    params = SamplingParams(temperature=0.5, top_k=3, logprobs=5)
    tokens, sampler = run(params, logits)
    assert [entry.token_id for entry in sampler.logprobs] == tokens
    for row, entry in zip(logits, sampler.logprobs, strict=True):
        raw = row.double().log_softmax(0)
        processed = TopKLogitsWarper(3)(None, row[None] / 0.5)[0].double().log_softmax(0)
        assert entry.raw == pytest.approx(float(raw[entry.token_id]), abs=1e-12)
        assert entry.processed == pytest.approx(float(processed[entry.token_id]), abs=1e-12)
        order = sorted(range(VOCAB), key=lambda token: (-float(raw[token]), token))
        assert [token for token, _ in entry.top_raw] == order[:5]
        assert all(value == float(raw[token]) for token, value in entry.top_raw)
        in_it = [token for token in order if processed[token] > -math.inf]
        assert [token for token, _ in entry.top_processed] == in_it[:5]


def test_log_probabilities_of_greedy_decoding() -> None:
    _, sampler = run(SamplingParams(logprobs=0), rows(3))
    assert sampler.noise is None
    for row, entry in zip(rows(3), sampler.logprobs, strict=True):
        assert entry.raw == entry.processed == float(row.double().log_softmax(0).amax())
        assert entry.top_raw == ()


def test_the_noise_that_a_drafter_may_use() -> None:
    params = SamplingParams(temperature=0.7)
    sampler = Sampler(params, PROMPT, vocab_size=VOCAB, seed=5, choice=2)
    assert sampler.noise is not None
    assert sampler.noise.temperature == 0.7
    wanted = KeyedNoise(5, 2, 0.7)(9, torch.arange(4))
    assert torch.equal(sampler.noise(9, torch.arange(4)), wanted)
