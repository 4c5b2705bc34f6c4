"""Sampling over real bundles: trees emit plain decoding's tokens at every temperature."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from drafting import RecordedDrafter
from sampling_requests import TEMPERATURES, alone, mixes

from yggrt.core.spec import parse_tree_spec
from yggrt.engine import Engine
from yggrt.gate import OpenGate
from yggrt.loading import load
from yggrt.sampling.params import SamplingParams
from yggrt.sampling.sampler import Sampler
from yggrt.session import Session

TREES = (
    "sequence:depth=8",
    "egt:width=4,depth=4,children=8,verify=16",
    "static:parents=0/0/1/1/2/2/3/3/4/4/5/5/6/6",
)
OPTIONS = alone([2], [11, 40, 41, 300])
REQUESTS = {**OPTIONS, **mixes(OPTIONS, 10)}
PROMPTS = ([301], list(range(20, 50)))


@pytest.fixture(scope="module")
def session(tiny_bundle: Path) -> Session:
    return load(tiny_bundle, num_threads=1)


def full_tree_ids(
    session: Session, tree: str, prompt: list[int], plain: list[int], options: dict[str, Any]
) -> list[int]:
    """As many tokens as `plain`, under full trees around it."""
    graphs: Any = session.graphs
    drafter = RecordedDrafter(prompt, plain, graphs.model.vocab_size)
    engine = Engine(
        graphs, graphs.new_cache(), drafter, parse_tree_spec(tree), lambda rows, context: 1.0, 0.0,
        OpenGate(),
    )  # fmt: skip
    params = SamplingParams(**options)
    sampler = Sampler(
        params, prompt, vocab_size=graphs.model.vocab_size, seed=options["seed"], ending_ids=[2]
    )
    ids = [engine.start(prompt, sampler=sampler)]
    while len(ids) < len(plain):
        ids += engine.step().tokens
    assert engine.stats.accepted > 0 or len(plain) < 3
    return ids[: len(plain)]


@pytest.mark.tiny
@pytest.mark.parametrize("name", REQUESTS)
def test_trees_emit_what_plain_decoding_emits(session: Session, name: str) -> None:
    """Each case under one tree in turn; `tests/accept/sampling.py` has them all."""
    place = list(REQUESTS).index(name)
    for temperature in TEMPERATURES:
        for number, prompt in enumerate(PROMPTS):
            place += 1
            options = {"temperature": temperature, "seed": number, **REQUESTS[name]}
            plain = session.generate(prompt, max_tokens=20, plain=True, **options)
            tree = TREES[place % len(TREES)]
            assert full_tree_ids(session, tree, prompt, plain.ids, options) == plain.ids
            ngram = session.generate(prompt, max_tokens=20, tree=TREES[1], gated=False, **options)
            assert ngram.ids == plain.ids


@pytest.mark.tiny
def test_the_first_token_is_drawn_from_the_models_law(
    session: Session, tiny_reference: Any
) -> None:
    """Its law over 400 tokens by transformers, at T = 1.5, 1,500 seeds: the number of tokens among
    the model's likeliest ten is off by more than 4.5 standard deviations once in 100,000 times.
    """
    prompt = [5, 9, 40, 7]
    with torch.no_grad():
        logits = tiny_reference(torch.tensor([prompt])).logits[0, -1].double()
    probs = (logits / 1.5).softmax(0)
    likely = set(probs.topk(10).indices.tolist())
    mass = float(probs[list(likely)].sum())
    num = 1500
    hits = 0
    for seed in range(num):
        # The prompt's rows are kept, so a draw costs one row.
        done = session.generate(prompt, max_tokens=1, temperature=1.5, seed=seed, reuse=True)
        hits += done.ids[0] in likely
    assert abs(hits - num * mass) < 4.5 * (num * mass * (1 - mass)) ** 0.5


@pytest.mark.tiny
def test_log_probabilities_are_transformers(session: Session, tiny_reference: Any) -> None:
    prompt = [5, 9, 40, 7]
    done = session.generate(
        prompt, max_tokens=12, temperature=1.0, seed=1, logprobs=3, ignore_eos=True
    )
    with torch.no_grad():
        logits = tiny_reference(torch.tensor([[*prompt, *done.ids]])).logits[0].double()
    raw = logits.log_softmax(-1)[len(prompt) - 1 :]
    assert done.logprobs is not None
    for place, entry in enumerate(done.logprobs):
        assert entry.token_id == done.ids[place]
        assert entry.raw == pytest.approx(float(raw[place, entry.token_id]), abs=1e-4)
        top = [value for _, value in entry.top_raw]
        assert top == pytest.approx(raw[place].topk(3).values.tolist(), abs=1e-4)


@pytest.mark.tiny
def test_a_json_schema_over_the_bundles_tokenizer(session: Session) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
              "additionalProperties": False}  # fmt: skip
    for seed in range(3):
        options: dict[str, Any] = {"json_schema": schema, "temperature": 1.0, "seed": seed}
        done = session.generate("hello", max_tokens=120, gated=False, **options)
        plain = session.generate("hello", max_tokens=120, plain=True, **options)
        assert done.ids == plain.ids
        if done.finish_reason == "stop":
            assert isinstance(json.loads(done.text)["ok"], bool)
