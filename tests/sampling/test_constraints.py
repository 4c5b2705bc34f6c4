"""Outputs match what they must, whatever the model prefers, and trees change no token of them."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest
import tiny_tokenizers as tiny
from parts import CHAIN, TREE, make
from scripted import LogitGraphs, OracleDrafter, RandomDrafter

from yggrt.core.errors import RequestError
from yggrt.sampling.constraints import ConstraintCompiler
from yggrt.session import Session

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["fox", "dog"]}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
    "additionalProperties": False,
}
EOS = 2


def session(tree: str = TREE, **options: Any) -> Session:
    """Random logits over a real tokenizer's ids and a few ids that it does not have."""
    text = tiny.chatml_text()
    graphs = LogitGraphs(vocab_size=440, max_model_len=256)
    drafter = RandomDrafter(vocab_size=440)
    return make(graphs, drafter, text=text, tree=tree, **{"eos_ids": [EOS], **options})


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_json_schema_is_met(temperature: float, seed: int) -> None:
    for schema in (SCHEMA, json.dumps(SCHEMA)):
        done = session().generate(
            "hello", json_schema=schema, temperature=temperature, seed=seed, max_tokens=200
        )
        # A run of spaces may fill any length; what ends is whole.
        if done.finish_reason == "stop":
            found = json.loads(done.text)
            assert found["name"] in ("fox", "dog")
            assert isinstance(found["old"], bool)
            assert done.ids[-1] == EOS
    assert done.finish_reason == "stop" or not done.text.strip().endswith("}")


@pytest.mark.parametrize("tree", [CHAIN, TREE, "plain"])
def test_a_regular_expression_is_met_and_eos_follows(tree: str) -> None:
    one = session(tree)
    for seed in range(8):
        done = one.generate(
            "hello", regex=r"(fox|dog)( and (fox|dog)){0,2}", temperature=1.0, seed=seed,
            max_tokens=60,
        )  # fmt: skip
        assert re.fullmatch(r"(fox|dog)( and (fox|dog)){0,2}", done.text)
        assert done.finish_reason == "stop"
        plain = one.generate(
            "hello", regex=r"(fox|dog)( and (fox|dog)){0,2}", temperature=1.0, seed=seed,
            max_tokens=60, plain=True,
        )  # fmt: skip
        assert plain.ids == done.ids


def test_a_lark_grammar_is_met() -> None:
    done = session().generate("hello", grammar='start: "yes" | "no"', max_tokens=20)
    assert done.text in ("yes", "no")


def test_trees_that_are_accepted_emit_what_plain_decoding_emits() -> None:
    """The oracle drafts the unconstrained tokens, the constraint forces some of them."""
    text = tiny.chatml_text()
    graphs = LogitGraphs(vocab_size=440, max_model_len=256)
    one = make(graphs, OracleDrafter(440, graphs=graphs), text=text, tree=TREE, eos_ids=[EOS])
    options: dict[str, Any] = {"regex": r"[a-z ]{5,40}", "gated": False, "max_tokens": 40}
    done = one.generate("hello", **options)
    assert done.ids == one.generate("hello", **options, plain=True).ids
    assert re.fullmatch(r"[a-z ]{5,40}", done.text)


def test_choices_have_constraints_of_their_own() -> None:
    done = session().generate(
        "hello", regex="(fox|dog) [0-9]+", temperature=1.5, n=4, max_tokens=9
    )
    texts = [one.text for one in done.choices]
    assert len(set(texts)) > 1
    for one in done.choices:
        pattern = "(fox|dog) [0-9]+" if one.finish_reason == "stop" else r"(fox|dog)? ?[0-9]*.?"
        assert re.fullmatch(pattern, one.text)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"json_schema": "{"}, "json_schema is not valid JSON"),
        ({"json_schema": {"type": "nope"}}, "json_schema cannot be met or parsed: .*nope"),
        ({"json_schema": "[" * 5000}, "json_schema is not valid JSON"),
        ({"regex": "a("}, "regex parse error: .*unclosed group"),
        ({"json_schema": {"enum": []}}, "json_schema cannot be met or parsed"),
        ({"json_schema": {"x": {1, 2}}}, "json_schema is not valid JSON"),
        ({"regex": "("}, "regex cannot be met or parsed"),
        ({"grammar": "start: nothing"}, "grammar cannot be met or parsed.*nothing"),
    ],
)
def test_what_cannot_be_met_is_refused(options: dict[str, Any], words: str) -> None:
    one = session()
    with pytest.raises(RequestError, match=words) as caught:
        one.generate("hello", **options)
    assert "\n" not in caught.value.message
    assert one.generate("hello", max_tokens=3).ids


def test_without_llguidance_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(RequestError, match="llguidance, which is not installed") as caught:
        session().generate("hello", regex="a")
    assert caught.value.tip == "pip install 'llguidance>=1.9,<2'"


def test_without_a_tokenizer_or_an_end_id() -> None:
    with pytest.raises(RequestError, match="no tokenizer"):
        ConstraintCompiler(None, [2], 9).compile("regex", "a")
    with pytest.raises(RequestError, match="no end id"):
        ConstraintCompiler(tiny.chatml_text(), [], 9).compile("regex", "a")


def test_a_tokenizer_that_llguidance_cannot_take() -> None:
    """More ids than the model has."""
    with pytest.raises(RequestError, match="cannot take this bundle's tokenizer"):
        ConstraintCompiler(tiny.chatml_text(), [2], 100).compile("regex", "a")


def test_a_minimum_that_the_constraint_cannot_fill() -> None:
    one = session()
    with pytest.raises(RequestError, match="no token is left"):
        one.generate("hello", regex="fox", min_tokens=20, temperature=1.0)
