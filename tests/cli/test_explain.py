"""`yggrt run --explain`: what it says of every pass agrees with what was emitted and counted."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
import tiny_tokenizers as tiny
from parts import CHAIN, TREE, make, telling
from scripted import OracleDrafter, RandomDrafter, ScriptedGraphs, UselessDrafter
from typer.testing import CliRunner, Result

from yggrt import cli
from yggrt.drafters.lookahead import LookaheadDrafter
from yggrt.engine_stats import PROMISED_STEP, Pass
from yggrt.session import Session

LOOKAHEAD = "lookahead:window=3,ngram=3,guesses=4"
EMITTED = re.compile(r"(\d+)( [\d.]+, row \d+, accepted|, the verifier's own)$")


def run(monkeypatch: pytest.MonkeyPatch, session: Session, *more: str) -> Result:
    monkeypatch.setattr(cli, "_load", lambda *arguments: session)
    return CliRunner().invoke(cli.app, ["run", "x.ygg", *more])


def explained(text: str) -> list[int]:
    """The ids that the lines say were emitted, in order."""
    first, *lines = text.splitlines()
    found = [int(first.removeprefix("from the prompt: "))]
    return found + [int(one[1]) for line in lines if (one := EMITTED.search(line))]


@pytest.mark.parametrize("tree", [CHAIN, TREE, "static:parents=0/0/1/1/2/2", LOOKAHEAD, "plain"])
@pytest.mark.parametrize("num_tokens", ["1", "2", "23", "200"])
def test_what_it_says_was_emitted_is_what_was_emitted(
    monkeypatch: pytest.MonkeyPatch, tree: str, num_tokens: str
) -> None:
    graphs = ScriptedGraphs(row_counts=(1, 4, 16))
    drafter = LookaheadDrafter() if tree == LOOKAHEAD else OracleDrafter(6, graphs=graphs)
    session = make(graphs, drafter, tree=tree)
    asked = ("--ids", "1,2", "-n", num_tokens, "--json")
    result = run(monkeypatch, session, *asked, "--explain")
    [line] = result.stdout.splitlines()
    said = json.loads(line)
    assert explained(result.stderr) == said["ids"]
    assert said["ids"] == json.loads(run(monkeypatch, session, *asked).stdout)["ids"]
    assert result.stderr.count("\npass ") == said["num_passes"]
    stats = session.last.stats if session.last else None
    assert stats is not None
    rows = re.findall(r" drafted, (\d+) verified, (\d+) accepted;", result.stderr)
    assert sum(int(one) for one, _ in rows) == stats.num_rows - stats.num_passes
    assert sum(int(one) for _, one in rows) == stats.accepted


def test_tokens_are_text_and_rows_that_were_not_verified_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, _ = telling(tiny.chatml_text(), "the quick fox says two words and more")
    result = run(monkeypatch, session, "--no-chat", "-p", "hello", "-n", "9", "--explain")
    assert session.last is not None
    assert result.stdout == session.last.text + "\n"
    assert "── ' quick' 0.95, row 1, accepted\n" in result.stderr
    assert "; gate open, trust 0.40" in result.stderr
    graphs = ScriptedGraphs()
    session = make(graphs, RandomDrafter(), tree="egt:width=3,depth=4,children=3,verify=4")
    result = run(monkeypatch, session, "--ids", "1", "-n", "30", "--explain")
    assert ", not verified" in result.stderr


def test_a_closed_gate_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    session = make(ScriptedGraphs(), UselessDrafter(), tree=TREE)
    result = run(monkeypatch, session, "--ids", "1", "-n", "30", "--explain")
    assert "nothing drafted; gate closed" in result.stderr


@pytest.mark.parametrize("more", [(), ("-p", "a", "--n", "2", "--temperature", "1")])
def test_without_one_prompt_and_one_answer_it_is_refused(
    monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    result = run(monkeypatch, make(ScriptedGraphs(), RandomDrafter()), "--explain", *more)
    assert result.exit_code == 2
    assert result.stdout == ""


def test_counts_by_rank_and_by_promise_are_those_of_the_passes() -> None:
    graphs = ScriptedGraphs(row_counts=(1, 4, 16), max_model_len=512)
    session = make(graphs, OracleDrafter(6, graphs=graphs), tree=TREE)
    passes: list[Pass] = []
    stats = session.generate([1, 2], max_tokens=200, gated=False, on_pass=passes.append).stats
    ranks: Counter[int] = Counter()
    children: Counter[int] = Counter()
    promised: dict[int, list[float]] = {}
    for one in passes:
        tree, path = one.verified, one.accepted.path
        for parent, row in zip((0, *path), path, strict=False):
            ranks[tree.children(parent).index(row)] += 1
        for row in (0, *path):
            children[len(tree.children(row))] += 1
        total = sum(tree.scores[1:])
        sums = promised.setdefault(int(total / PROMISED_STEP), [0, 0.0, 0])
        sums[0], sums[1], sums[2] = sums[0] + 1, sums[1] + total, sums[2] + len(path)
    del children[0]
    assert len(ranks) > 1
    assert stats.ranks_histogram == ranks
    assert stats.children_histogram == children
    assert sum(children.values()) == sum(num * n for num, n in stats.tests_histogram.items())
    assert {step: list(one) for step, one in stats.promised.items()} == promised
    assert sum(one.accepted for one in stats.promised.values()) == stats.accepted
