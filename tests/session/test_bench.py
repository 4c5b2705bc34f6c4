"""What `bench` reports, and its trace, over scripted graphs and real tokenizers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tiny_tokenizers as tiny
from bundle.small import manifest
from parts import TellingDrafter, TellingGraphs, make, telling
from rich.console import Console
from scripted import ScriptedGraphs

from yggrt.bench import bench_bundle, trace_bundle
from yggrt.bench_report import percentile, reached_per_depth
from yggrt.bench_runs import Measured, run_bench
from yggrt.bench_tables import print_tables
from yggrt.core.errors import RequestError
from yggrt.engine_stats import STAGES
from yggrt.prompts import Prompt, read_prompt_files
from yggrt.trace import check_trace_path, write_trace

SAID = "the quick brown fox says two words and stops, then one more word follows"


@dataclass
class RightToDepth(TellingDrafter):
    """Right down to a depth, then wrong."""

    depth: int = 2

    def children(self, path_tokens: Sequence[int], num: int) -> list[tuple[int, float]]:
        [(token, probability)] = super().children(path_tokens, num)
        wrong = (token + 1) % self.graphs.vocab_size
        return [(token if len(path_tokens) < self.depth else wrong, probability)]


def measure(num_turns: int, **options: Any) -> Measured:
    text = tiny.chatml_text()
    session, _ = telling(text, SAID)
    prompts = [
        Prompt(name, "", "hello", True, ("and", "then")[: num_turns - 1]) for name in ("a", "b")
    ]
    return run_bench(session, prompts, num_tokens=9, repeats=1, **options)


def test_each_turn_follows_the_conversation_so_far() -> None:
    text = tiny.chatml_text()
    measured = measure(3)
    for one in measured.conversations:
        assert [turn.number for turn in one.turns] == [1, 2, 3]
        messages = []
        for turn, said in zip(one.turns, ("hello", "and", "then"), strict=True):
            messages.append({"role": "user", "content": said})
            for run in (*turn.plain, *turn.tree):
                assert run.done.prompt_ids == text.encode_chat(messages)
                assert run.done.ids == turn.plain[0].done.ids
            messages.append({"role": "assistant", "content": turn.plain[0].done.text})
        assert one.speedup == pytest.approx(sum(turn.speedup for turn in one.turns) / 3)


def test_without_a_template_turns_are_lines_of_one_text() -> None:
    text = tiny.text_of(tiny.byte_level())
    prompt = Prompt("a", "", "one", True, ("two",))
    assert prompt.encode(text, ["1"]) == text.encode("one\n1\ntwo")


def test_a_later_turn_beyond_the_context_is_left_out_and_counted() -> None:
    text = tiny.chatml_text()
    script = text.encode(SAID)
    prompt = Prompt("a", "", "hello", True, ("and", "then"))
    limit = len(prompt.encode(text)) + 10
    graphs = TellingGraphs(vocab_size=1000, max_model_len=limit, script=script)
    session = make(graphs, TellingDrafter(graphs=graphs), text=text)
    measured = run_bench(session, [prompt], num_tokens=9, repeats=1)
    [one] = measured.conversations
    assert [turn.number for turn in one.turns] == [1]
    assert measured.num_left_out == 2


def test_a_prompt_that_does_not_fit_is_refused_before_anything_runs() -> None:
    text = tiny.chatml_text()
    graphs = TellingGraphs(vocab_size=1000, max_model_len=16, script=text.encode(SAID))
    session = make(graphs, TellingDrafter(graphs=graphs), text=text)
    prompts = [Prompt("short", "", "a", False), Prompt("long", "", "a b c " * 20, False)]
    with pytest.raises(RequestError, match=r"prompt long has \d+ tokens, the context holds 16"):
        run_bench(session, prompts, num_tokens=4, repeats=1)
    assert graphs.calls == []


def after(num_calls: int) -> Callable[[], bool]:
    calls = iter(range(num_calls))
    return lambda: next(calls, None) is None


def test_an_interrupt_keeps_what_was_finished() -> None:
    asked = 0

    def count() -> bool:
        nonlocal asked
        asked += 1
        return False

    whole = measure(1, cancelled=count)
    assert not whole.is_interrupted
    for num in range(0, asked, 7):
        try:
            measured = measure(1, cancelled=after(num))
        except KeyboardInterrupt:
            assert num < 0.7 * asked
            continue
        assert measured.is_interrupted
        assert [one.prompt.name for one in measured.conversations] == ["a"]
        [turn] = measured.conversations[0].turns
        assert len(turn.plain) == len(turn.tree) == 2


def test_acceptance_per_depth() -> None:
    text = tiny.chatml_text()
    graphs = TellingGraphs(
        vocab_size=1000, max_model_len=512, script=text.encode(SAID), row_counts=(1, 4, 16)
    )
    drafter = RightToDepth(graphs=graphs)
    session = make(graphs, drafter, text=text, tree="sequence:depth=4")
    prompt = Prompt("a", "code", "hello", False)
    report = bench_bundle(session, manifest(), [prompt], num_tokens=22, repeats=1)
    tree = report["tree"]
    assert tree["acceptance_per_depth"] == [1.0, 1.0, 0.0]
    assert tree["tests_per_depth"] == [tree["num_passes"]] * 3
    assert tree["mean_acceptance_length"] == 3
    assert report["plain"]["acceptance_per_depth"] == []
    # A chain's nodes are all first children, and two of the three tested are right.
    assert tree["tests_per_rank"] == [3 * tree["num_passes"]]
    assert tree["acceptance_per_rank"] == [pytest.approx(2 / 3)]
    promised = tree["promised"]
    assert sum(one["num_passes"] for one in promised) == tree["num_passes"]
    assert sum(one["accepted"] for one in promised) == tree["accepted"]
    for one in promised:
        assert one["expected"] / one["num_passes"] == pytest.approx(
            sum(0.95**depth for depth in range(1, 5))
        )
    assert report["plain"]["promised"] == []


def test_passes_by_the_depth_that_they_reach() -> None:
    assert reached_per_depth({0: 4, 1: 2, 3: 1}) == [3, 1, 1]
    assert reached_per_depth({}) == []


def test_percentiles() -> None:
    assert percentile([4.0], 95) == 4.0
    assert percentile([float(n) for n in range(101)], 95) == 95.0


def test_categories_and_interval(tmp_path: Path) -> None:
    lines = tmp_path / "code.jsonl"
    lines.write_text('{"prompt": "hello"}\n{"prompt": "world", "category": "prose"}\n')
    plain = tmp_path / "words.txt"
    plain.write_text("fox\nbrown\nquick\n")
    prompts = read_prompt_files([lines, plain], limit=2)
    assert [prompt.category for prompt in prompts] == ["code", "prose", "words", "words"]
    session, _ = telling(tiny.chatml_text(), SAID)
    report = bench_bundle(session, manifest(), prompts, num_tokens=12, repeats=1)
    assert json.loads(json.dumps(report)) == report
    low, high = report["speedup_interval"]
    speedups = [row["speedup"] for row in report["per_prompt"]]
    assert min(speedups) <= low <= report["speedup"] <= high <= max(speedups)
    words = report["categories"]["words"]
    assert words["num_prompts"] == 2
    assert words["speedup"] == pytest.approx(sum(speedups[2:]) / 2)
    assert report["categories"]["code"]["speedup_interval"] is None
    assert 0 <= report["busy_share"] <= 1
    for way in ("plain", "tree"):
        assert 0 < report[way]["gap_p50_ms"] <= report[way]["gap_p95_ms"]
        assert 0 < report[way]["tpot_p50_ms"] <= report[way]["tpot_p95_ms"]
        assert 0 < report[way]["ttft_ms"] <= report[way]["ttft_p95_ms"]
    out = io.StringIO()
    print_tables(report, Console(file=out, width=200))
    assert "prose" in out.getvalue()
    assert f"[{low:.2f}, {high:.2f}]" in out.getvalue()


def test_a_turn_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "spec.jsonl"
    path.write_text('{"turns": ["a"]}\n{"turns": ["a", 3]}\n')
    with pytest.raises(RequestError, match="line 2: turn 2 is 3, wanted text"):
        read_prompt_files([path])


def test_a_trace_nests_requests_passes_and_stages(tmp_path: Path) -> None:
    text = tiny.chatml_text()
    session, _ = telling(text, SAID)
    path = tmp_path / "trace.json"
    prompt = Prompt("a", "", "hello", False)
    write_trace(trace_bundle(session, manifest(), prompt, 30), path)
    trace = json.loads(path.read_text())
    events = trace["traceEvents"]
    named = {e["name"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert set(named) == {"process_name", "thread_name"}
    assert trace["otherData"]["prompt"] == "a"
    assert {"bundle", "device", "num_threads", "torch"} <= set(trace["otherData"])

    by_category: dict[str, list[dict[str, Any]]] = {"request": [], "pass": [], "stage": []}
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert (event["pid"], event["tid"]) == (1, 1)
            by_category[event["cat"]].append(event)
    [request] = by_category["request"]
    passes = by_category["pass"]
    assert session.last is not None
    assert len(passes) == session.last.stats.num_passes + 1
    assert sum(one["args"]["tokens"] for one in passes) == request["args"]["tokens"] == 30
    assert {event["name"] for event in by_category["stage"]} == set(STAGES)
    # Nanoseconds, so that sums are exact.
    for outer, inner in (([request], passes), (passes, by_category["stage"])):
        end = 0
        for event in inner:
            start, stop = span(event)
            assert start >= end, "events of one level follow each other"
            assert any(span(one)[0] <= start and stop <= span(one)[1] for one in outer)
            end = stop
    counters = [event for event in events if event["ph"] == "C"]
    assert [c["args"]["tokens"] for c in counters] == [p["args"]["tokens"] for p in passes]


def span(event: dict[str, Any]) -> tuple[int, int]:
    start = round(1000 * event["ts"])
    return start, start + round(1000 * event["dur"])


def test_a_trace_replaces_traces_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    check_trace_path(path)
    write_trace({"traceEvents": []}, path)
    check_trace_path(path)
    path.write_bytes(b"PK a bundle")
    with pytest.raises(RequestError, match="exists and is no trace"):
        check_trace_path(path)
    assert path.read_bytes() == b"PK a bundle"


def test_a_trace_that_cannot_be_written(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "t.json"):
        with pytest.raises(RequestError, match="no trace can be written there"):
            check_trace_path(path)
    with pytest.raises(RequestError, match="cannot be written"):
        write_trace({}, tmp_path)


def test_stages_are_not_told_to_the_next_request() -> None:
    graphs = ScriptedGraphs()
    session = make(graphs, TellingDrafter(), tree="plain")
    heard: list[str] = []
    session.generate([1], max_tokens=3, on_stage=lambda stage, start, end: heard.append(stage))
    assert heard[0] == "prefill"
    num = len(heard)
    session.generate([1], max_tokens=3)
    assert len(heard) == num
