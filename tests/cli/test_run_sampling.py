"""`yggrt run` with sampling: flags reach the session, JSON has the seed, refusals are one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_tokenizers as tiny
from parts import make
from scripted import LogitGraphs, RandomDrafter
from typer.testing import CliRunner, Result

from yggrt import cli
from yggrt.session import Session

VOCAB = 440


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    """What every `run` loads: random logits over a real tokenizer."""
    graphs = LogitGraphs(vocab_size=VOCAB, max_model_len=256)
    made = make(graphs, RandomDrafter(vocab_size=VOCAB), text=tiny.chatml_text(), eos_ids=[2])
    monkeypatch.setattr(cli, "_load", lambda *arguments: made)
    return made


def invoke(*more: str) -> Result:
    return CliRunner().invoke(cli.app, ["run", "x.ygg", "--no-chat", "-p", "hello", *more])


def run_json(*more: str) -> dict[str, Any]:
    result = invoke("--json", "-n", "12", *more)
    assert result.exit_code == 0, result.stderr
    value: dict[str, Any] = json.loads(result.stdout)
    return value


def test_the_flags_are_the_options(session: Session) -> None:
    found = run_json(
        *("--temperature", "0.8", "--seed", "7", "--top-k", "30", "--top-p", "0.9"),
        *("--min-p", "0.01", "--repetition-penalty", "1.2", "--presence-penalty", "0.5"),
        *("--frequency-penalty", "0.25", "--logit-bias", "5=2.5", "--logit-bias", "6=-1"),
        *("--min-tokens", "4", "--stop-id", "9", "--stop-id", "11", "--logprobs", "2"),
    )
    wanted = session.generate(
        "hello",
        max_tokens=12,
        temperature=0.8,
        seed=7,
        top_k=30,
        top_p=0.9,
        min_p=0.01,
        repetition_penalty=1.2,
        presence_penalty=0.5,
        frequency_penalty=0.25,
        logit_bias={5: 2.5, 6: -1.0},
        min_tokens=4,
        stop_ids=[9, 11],
        logprobs=2,
    )
    assert found["ids"] == wanted.ids
    assert found["seed"] == 7
    assert found["logprobs"] == [entry.to_json() for entry in wanted.logprobs or ()]
    assert set(found["logprobs"][0]) == {"id", "raw", "processed", "top_raw", "top_processed"}


def test_json_says_a_random_seed_that_repeats(session: Session) -> None:
    first = run_json("--temperature", "1")
    again = run_json("--temperature", "1", "--seed", str(first["seed"]))
    assert again["ids"] == first["ids"]
    assert "logprobs" not in first
    assert "choices" not in first
    assert run_json()["seed"] is None


def test_several_choices(session: Session) -> None:
    found = run_json("--temperature", "1", "--seed", "3", "--n", "3")
    assert found["choices"][0]["ids"] == found["ids"]
    assert len({tuple(choice["ids"]) for choice in found["choices"]}) == 3
    shown = invoke("-n", "4", "--temperature", "1", "--seed", "3", "--n", "2")
    assert shown.exit_code == 0
    assert "choice 0, length:" in shown.stderr
    assert "choice 1, length:" in shown.stderr


def test_constraints_from_text_and_files(session: Session, tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    assert run_json("--regex", "fox|dog")["text"] in ("fox", "dog")
    grammar = tmp_path / "g.lark"
    grammar.write_text('start: "yes" | "no"\n')
    assert run_json("--grammar", f"@{grammar}")["text"] in ("yes", "no")
    schema = '{"enum": [true]}'
    assert run_json("--json-schema", schema)["text"].strip() == "true"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--temperature", "-1"), "temperature is -1.0, wanted 0 or 0.001 to 100"),
        (("--top-p", "0"), "top_p is 0.0"),
        (("--seed", "-4"), "seed is -4"),
        (("--logit-bias", "5"), "--logit-bias is '5', wanted a token id, = and a number"),
        (("--logit-bias", "440=1"), "logit_bias has id 440, wanted 0..439"),
        (("--logprobs", "3"), "--logprobs is given and no --json"),
        (("--n", "2"), "n is 2 at temperature 0"),
        (("--regex", "a", "--grammar", "b"), "regex and grammar are given"),
        (("--json-schema", "@nowhere.json"), "nowhere.json: cannot be read"),
        (("--json-schema", "{"), "json_schema is not valid JSON"),
        (("--min-tokens", "300"), "min_tokens is 300 and max_tokens 256"),
        (tuple(["--stop", "x"] * 17), "17 stop strings"),
    ],
)
def test_refusals_are_one_line_and_exit_2(
    session: Session, arguments: tuple[str, ...], words: str
) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.startswith("ERROR")
    assert len(result.stderr.splitlines()) == 2


def test_what_is_out_of_range_is_refused_before_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*arguments: Any) -> Session:
        raise AssertionError("nothing is loaded")

    monkeypatch.setattr(cli, "_load", load)
    assert invoke("--temperature", "-1").exit_code == 2


def test_verify_wants_prompts_to_sample(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli.app, ["verify", "x.ygg", "--temperature", "1"])
    assert result.exit_code == 2
    assert "--temperature or --seed is given and no --prompts" in result.stderr
