"""`verify` names the first token that differs; `bench` times in turns and refuses other tokens."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tiny_tokenizers as tiny
from bundle.small import manifest
from parts import CHAIN, TellingDrafter, TellingGraphs, make, telling
from rich.console import Console
from scripted import LogitGraphs, OracleDrafter, RandomDrafter, ScriptedGraphs

from yggrt.bench import bench_bundle
from yggrt.bench_runs import fitting
from yggrt.bench_tables import print_tables
from yggrt.core.errors import CheckFailed, RequestError
from yggrt.core.passes import PassOutput
from yggrt.core.schema import Golden
from yggrt.core.tree import TokenTree
from yggrt.prompts import Prompt, parse_prompts, read_prompts
from yggrt.sampling.params import SamplingParams
from yggrt.verify import first_difference, verify_session

SAID = "the quick brown fox says two words and stops, then one more word follows"


@dataclass
class WrongInTrees(TellingGraphs):
    """Says another token than plain decoding at one position, in passes of several rows only."""

    wrong_at: int = 0
    others: dict[int, int] = field(default_factory=dict)

    def verify(self, cache: Any, tree: TokenTree, length: int) -> PassOutput:
        out = super().verify(cache, tree, length)
        if tree.num_nodes > 1:
            depths = enumerate(tree.depths)
            rows = [row for row, depth in depths if length + depth + 1 == self.wrong_at]
            ids = [self.vocab_size - 1 if i in rows else t for i, t in enumerate(out.ids)]
            return out._replace(ids=ids)
        return out


def test_golden_outputs_and_prompts_that_are_right() -> None:
    graphs = ScriptedGraphs()
    session = make(graphs, OracleDrafter(6, graphs=graphs), eos_ids=[2])
    # The golden output goes on after an EOS id.
    golden = [
        Golden(prompt_ids=(1, n), output_ids=tuple(graphs.plain([1, n], 20))) for n in (1, 3)
    ]
    report = verify_session(session, golden, [], 10)
    report.check()
    assert report.num_tokens == 40
    assert report.mean_acceptance_length > 1.5
    assert report.to_json()["ok"]
    assert list(report.lines())[-1].endswith("all equal")


def test_prompts_may_be_sampled_and_golden_outputs_are_greedy() -> None:
    text = tiny.chatml_text()
    graphs = LogitGraphs(vocab_size=440, max_model_len=128)
    session = make(graphs, RandomDrafter(vocab_size=440), text=text, tree=CHAIN)
    golden = [Golden(prompt_ids=(1, 4), output_ids=tuple(graphs.plain([1, 4], 10)))]
    prompts = [Prompt("a", "", "hello", False), Prompt("b", "", "the fox", False)]
    for seed in (3, None):
        sampling = SamplingParams(temperature=1.0, seed=seed)
        report = verify_session(session, golden, prompts, 12, sampling=sampling)
        report.check()
        assert report.num_tokens == 34
        assert report.seed == (3 if seed else report.seed) is not None
        assert f"seed {report.seed}" in list(report.lines())[-1]


def test_a_wrong_golden_token_is_named() -> None:
    text = tiny.chatml_text()
    session, script = telling(text, SAID)
    prompt = text.encode("hello")
    wrong = [*script[:5], script[5] + 1, *script[6:8]]
    report = verify_session(
        session, [Golden(prompt_ids=tuple(prompt), output_ids=tuple(wrong))], [], 10
    )
    [difference] = report.differences
    assert (difference.check, difference.prompt, difference.index) == ("golden", 1, 5)
    assert (difference.wanted, difference.found) == (script[5] + 1, script[5])
    assert difference.top2_gap == 0.25
    assert difference.found_text == text.token(script[5])
    with pytest.raises(CheckFailed, match=r"token 5: plain decoding gives .* top-2 gap 0.25") as e:
        report.check()
    assert e.value.exit_code == 1


def test_a_token_that_trees_change_is_named_with_its_gap() -> None:
    text = tiny.chatml_text()
    script = text.encode(SAID)
    prompt = text.encode("hello")
    graphs = WrongInTrees(
        vocab_size=1000,
        max_model_len=512,
        script=script,
        prompt_len=len(prompt),
        wrong_at=len(prompt) + 7,
    )
    session = make(graphs, TellingDrafter(graphs=graphs), text=text)
    prompts = [Prompt("first", "", "hello", False)]
    report = verify_session(session, [], prompts, 12)
    [difference] = report.differences
    assert (difference.check, difference.name, difference.index) == ("tree", "first", 7)
    assert (difference.wanted, difference.found) == (script[7], 999)
    assert difference.top2_gap == 0.25
    assert json.loads(json.dumps(report.to_json()))["differences"][0]["index"] == 7
    with pytest.raises(CheckFailed, match="prompt first: token 7"):
        bench_bundle(session, manifest(), prompts, num_tokens=12, repeats=1)


def test_first_difference() -> None:
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2], [1, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


def test_bench_reports_both_ways_of_decoding() -> None:
    text = tiny.chatml_text()
    session, _ = telling(text, SAID)
    prompts = [Prompt("a", "code", "hello", False), Prompt("b", "", "world", True)]
    report = bench_bundle(session, manifest(), prompts[:1], num_tokens=20, repeats=2)
    assert json.loads(json.dumps(report)) == report
    assert report["plain"]["mean_acceptance_length"] == 1.0
    assert report["tree"]["mean_acceptance_length"] > 3
    assert report["plain"]["num_passes"] == 19 * 4
    assert report["tree"]["spec"] == CHAIN
    assert report["speedup"] == pytest.approx(report["per_prompt"][0]["speedup"])
    assert set(report["plain"]["stage_share"]) >= {"draft", "verify", "accept", "commit"}
    assert report["host"]["read_bandwidth"] > 0
    out = io.StringIO()
    print_tables(report, Console(file=out, width=200))
    assert "speedup" in out.getvalue()
    assert "code" in out.getvalue()


def test_text_prompts_need_a_tokenizer() -> None:
    session = make(ScriptedGraphs(), RandomDrafter())
    prompt = Prompt("a", "", "hello", False)
    with pytest.raises(RequestError, match="no tokenizer"):
        verify_session(session, [], [prompt], 10)
    with pytest.raises(RequestError, match="no tokenizer"):
        bench_bundle(session, manifest(), [prompt], num_tokens=10, repeats=1)


def test_prompt_files(tmp_path: Path) -> None:
    lines = (
        b'{"task_id": "H/0", "prompt": "def f():\\n"}\n\n'
        b'{"question": "2+2?", "answer": "4"}\n'
        b'{"question_id": 7, "category": "generic", "turns": ["hi", "and"]}\n'
        b'{"id": "x", "prompt": "hey", "chat": true}\n'
    )
    assert parse_prompts(lines, "p") == [
        Prompt("H/0", "", "def f():\n", False),
        Prompt("3", "", "2+2?", True),
        Prompt("7", "generic", "hi", True, ("and",)),
        Prompt("x", "", "hey", True),
    ]
    path = tmp_path / "p.txt"
    path.write_text("one line\nanother\n")
    assert [p.text for p in read_prompts(path)] == ["one line", "another"]
    with pytest.raises(RequestError, match="cannot be read"):
        read_prompts(tmp_path / "none")
    for data, words in (
        (b"", "no prompt in it"),
        (b"\xff", "byte 0 .* not valid UTF-8"),
        (b'{"prompt": "a"}\n{', "line 2: not JSON"),
        (b'{"id": ' + b"9" * 6000 + b"}", "line 1: not JSON"),
        (b'{"id": ' + b"[" * 50000, "line 1: not JSON"),
        (b'{"prompt": ""}', "line 1: no prompt"),
        (b'{"prompt": "a"}\n3', "line 2: int, wanted an object"),
    ):
        with pytest.raises(RequestError, match=words):
            parse_prompts(data, "p")


def test_a_chat_prompt_is_put_under_the_template() -> None:
    text = tiny.chatml_text()
    prompt = Prompt("a", "", "hello", True)
    assert prompt.encode(text) == text.encode_chat([{"role": "user", "content": "hello"}])
    raw = tiny.text_of(tiny.byte_level())
    assert prompt.encode(raw) == raw.encode("hello")


def test_shipped_prompts_that_exceed_the_context_are_left_out() -> None:
    text = tiny.chatml_text()
    session, _ = telling(text, SAID)
    short, long = (
        Prompt(name, "", words, False) for name, words in (("a", "a"), ("b", "a b " * 999))
    )
    assert fitting(session, [long, short]) == [short]
    with pytest.raises(RequestError, match="none of the bundle's 1 prompts fits"):
        fitting(session, [long])
