"""`yggc diff`: what it finds apart, what it will not compare, turns, and the gate on speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bundle import small
from report.lab import TREE, lab

from yggc.compare.protocol import Ask, Timed
from yggc.compare.rows import Lineup, Row
from yggc.compare.run import Clock
from yggc.diff.compared import compare_sides
from yggc.diff.fields import changed, differing
from yggc.diff.paired import (
    Request,
    Turns,
    check_not_slower,
    check_same_ids,
    report_turns,
    take_turns,
)
from yggc.diff.side import Side, read_side
from yggrt.bundle import write_bundle
from yggrt.cache import open_cache
from yggrt.core.errors import CheckFailed, RequestError
from yggrt.core.schema import Candidate, LatencyPoint, Manifest, TextInfo


def written(path: Path, manifest: Manifest, **files: bytes) -> Side:
    """A bundle of the small one's weights and files under another manifest."""
    code = {
        name: b"code"
        for graph in manifest.graphs
        for name in (graph.library, graph.calls, graph.metadata)
    }
    write_bundle(path, manifest, small.sources(), {**small.FILES, **code, **files})
    return read_side(path, open_cache(path.parent / "cache"))


def test_fields_by_their_dotted_names() -> None:
    old = {"a": {"b": 1, "c": [1, 2]}, "same": {"x": None}, "empty": {}, "gone": 3}
    new = {"a": {"b": 2, "c": [1, 3]}, "same": {"x": None}, "empty": {}, "come": {"y": 4}}
    assert changed(old, new) == {
        "a.b": [1, 2],
        "a.c": [[1, 2], [1, 3]],
        "gone": [3, None],
        "come.y": [None, 4],
    }
    assert changed(None, None) == {}


def timed_again(manifest: Manifest) -> Manifest:
    """As a second build of the same inputs would have it: other times, of more digits."""
    schedule = msgspec.structs.replace(
        manifest.schedule,
        rest_s=0.000512345678901234,
        stage_s={"draft": 0.00012345678901234},
        candidates=(
            Candidate(tree="plain", mean_acceptance_length=1.0, tpot_ms=19.87654321, speedup=1.0),
        ),
    )
    point = LatencyPoint(
        graph="w001", rows=1, context=0, median_s=0.0198765432109, spread_s=0.00012345678
    )
    tuned = msgspec.structs.replace(manifest.target.tuned_for, read_bandwidth=14.123456789e9)
    return msgspec.structs.replace(
        manifest,
        schedule=schedule,
        latency=(point,),
        target=msgspec.structs.replace(manifest.target, tuned_for=tuned),
    )


def test_other_times_are_no_difference_and_leave_every_member_as_it_is(tmp_path: Path) -> None:
    old = written(tmp_path / "old.ygg", small.manifest())
    new = written(tmp_path / "new.ygg", timed_again(small.manifest()))
    assert old.digest != new.digest
    assert old.manifest.members == new.manifest.members
    report = compare_sides(old, new)
    assert report["differing"] == []
    assert not report["same_bytes"]
    assert report["members"]["changed"] == []
    assert report["schedule"]["rest_s"] == [0.0005, 0.000512345678901234]


def test_a_manifest_that_outgrows_its_padding_moves_weights_and_changes_none(
    tmp_path: Path,
) -> None:
    old = written(tmp_path / "old.ygg", small.manifest())
    points = tuple(
        LatencyPoint(graph="w001", rows=1, context=n, median_s=0.02, spread_s=0.001)
        for n in range(200)
    )
    more = msgspec.structs.replace(small.manifest(), latency=points)
    new = written(tmp_path / "new.ygg", more)
    offsets = [side.manifest.weights["embedding"].offset for side in (old, new)]
    assert offsets[0] < offsets[1]
    assert old.manifest.members == new.manifest.members
    assert differing(old.manifest, new.manifest) == []


def test_what_changed_is_named(tmp_path: Path) -> None:
    manifest = small.manifest()
    old = written(tmp_path / "old.ygg", manifest)
    schedule = msgspec.structs.replace(manifest.schedule, tree=TREE, buckets=(1,))
    config = {"dtype": "float32", "quant": "int8"}
    other = msgspec.structs.replace(manifest, schedule=schedule, config=config)
    new = written(
        tmp_path / "new.ygg",
        other,
        **{"bench.jsonl": b'{"prompt": "another"}\n', "code/libygg.so": b"\x7fELF"},
    )
    report = json.loads(json.dumps(compare_sides(old, new)))
    assert report["schedule"] == {"tree": ["plain", TREE], "buckets": [[1, 8], [1]]}
    assert report["config"] == {"quant": [None, "int8"]}
    assert report["model"] == report["target"] == report["sources"] == {}
    assert report["members"]["changed"] == ["bench.jsonl", "code/libygg.so"]
    saved = len(small.FILES["code/libygg.so"]) - 4  # type: ignore[arg-type]
    before, after = report["sizes"]["operators"]
    # What is below code/ and belongs to no graph.
    assert before - after == saved
    assert "members.code/libygg.so.sha256" in report["differing"]
    assert report["not_compared"] == []


def test_curves_are_compared_where_both_have_a_point(tmp_path: Path) -> None:
    old = written(tmp_path / "old.ygg", lab())
    slower = [
        msgspec.structs.replace(point, median_s=2 * point.median_s)
        for point in lab().latency
        if point.graph != "w004"
    ]
    new = written(tmp_path / "new.ygg", msgspec.structs.replace(lab(), latency=tuple(slower)))
    curves = compare_sides(old, new)["curves"]
    assert {(one["kind"], one["rows"], one["ratio"]) for one in curves["points"]} == {
        ("verify", 1, 2.0),
        ("verify", 8, 2.0),
    }
    assert {"kind": "verify", "rows": 1, "ratio": 2.0} in curves["ratios"]
    assert curves["only_old"] == [["verify", 4, 8], ["verify", 4, 32]]
    assert curves["only_new"] == []


def test_times_of_another_machine_and_another_verifier_are_shown_without_verdict(
    tmp_path: Path,
) -> None:
    manifest = small.manifest()
    old = written(tmp_path / "old.ygg", manifest)
    tuned = msgspec.structs.replace(manifest.target.tuned_for, device="Another CPU")
    [source] = manifest.sources
    [file] = source.files
    other_file = msgspec.structs.replace(file, sha256="1" * 64)
    other = msgspec.structs.replace(
        manifest,
        target=msgspec.structs.replace(manifest.target, tuned_for=tuned),
        sources=(msgspec.structs.replace(source, files=(other_file,)),),
    )
    report = compare_sides(old, written(tmp_path / "new.ygg", other))
    why = {one["what"]: one["why"] for one in report["not_compared"]}
    assert "Example CPU, 2 threads; Another CPU, 2 threads" in why["times"]
    assert "different models: sha256 is 1111" in why["acceptance"]
    assert report["sources"]["verifier"].startswith("sha256 is 1111")
    assert report["target"] == {"tuned_for.device": ["Example CPU", "Another CPU"]}
    assert [one["ratio"] for one in report["curves"]["points"]] == [None]
    assert report["curves"]["ratios"] == []


def test_a_busy_machine_makes_times_doubtful(tmp_path: Path) -> None:
    manifest = small.manifest()
    busy = msgspec.structs.replace(manifest.profile, busy_share=0.4)
    old = written(tmp_path / "old.ygg", manifest)
    new = written(tmp_path / "new.ygg", msgspec.structs.replace(manifest, profile=busy))
    [one] = compare_sides(old, new)["not_compared"]
    assert one["what"] == "the new bundle's times"
    assert "took 40%" in one["why"]


class Scripted:
    """Answers with times from a list and keeps who was asked, in order."""

    def __init__(self, name: str, times: Sequence[float], asked: list[str]) -> None:
        self.name, self.times, self.asked = name, iter(times), asked
        self.pid = os.getpid()

    def decode(self, ask: Ask) -> Timed:
        self.asked.append(self.name)
        return Timed(list(range(ask.num_tokens)), 1.0, next(self.times))


def turns_of(
    monkeypatch: pytest.MonkeyPatch, old_ms: Sequence[float], new_ms: Sequence[float], repeats: int
) -> tuple[list[Turns], list[str]]:
    monkeypatch.setattr("yggc.compare.run._REST_S", 0.0)
    monkeypatch.setattr("yggrt.busy.BusyMeter.share", lambda self: 0.0)
    asked: list[str] = []
    old = Row("old", Scripted("A", old_ms, asked), "tree", bundle=0)  # type: ignore[arg-type]
    new = Row("new", Scripted("B", new_ms, asked), "tree", bundle=1)  # type: ignore[arg-type]
    num = len(old_ms) // (2 * repeats)
    prompts = [(str(number), [1, 2]) for number in range(num)]
    request = Request((), None, 4, repeats, None)
    with ExitStack() as stack:
        clock = Clock(Lineup(stack, rows=[old, new]))
        found = take_turns((old, new), clock, prompts, request, lambda text: None, lambda: False)
    return found, asked


def test_turns_are_old_new_new_old_and_the_quicker_run_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns, asked = turns_of(monkeypatch, [10.0, 20.0, 2.0, 4.0], [12.0, 30.0, 1.0, 2.0], 1)
    assert "".join(asked) == "ABBA" * 2
    assert [one.tpot_ms for one in turns] == [[10.0, 12.0], [2.0, 1.0]]
    assert [one.ratio for one in turns] == [pytest.approx(1.2), pytest.approx(0.5)]
    report = report_turns(turns)
    assert report["time_ratio"] == pytest.approx(0.6**0.5)
    low, high = report["time_ratio_interval"]
    assert 0.5 <= low < report["time_ratio"] < high <= 1.2
    assert report["num_equal"] == report["num_prompts"] == 2
    assert report["tpot_ms"] == [pytest.approx(6.0), pytest.approx(6.5)]
    _, asked = turns_of(monkeypatch, [1.0] * 4, [1.0] * 4, 2)
    assert "".join(asked) == "ABBAABBA"


def test_a_run_that_differs_from_the_one_before_is_no_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = iter([[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 5]])
    monkeypatch.setattr(
        Scripted, "decode", lambda self, ask: Timed(next(ids), 1.0, 1.0), raising=True
    )
    with pytest.raises(CheckFailed, match="old, prompt 0: two runs give different tokens"):
        turns_of(monkeypatch, [1.0, 1.0], [1.0, 1.0], 1)


def paired(old_ms: Sequence[float], new_ms: Sequence[float]) -> dict[str, Any]:
    """A run of each prompt, which takes so long in both bundles."""
    return report_turns(
        [
            Turns(str(i), (Timed([1], 1.0, old),), (Timed([1], 1.0, new),))
            for i, (old, new) in enumerate(zip(old_ms, new_ms, strict=True))
        ]
    )


def test_the_gate_closes_only_if_all_of_the_interval_is_slower() -> None:
    old = [10.0] * 8
    check_not_slower(paired(old, [10.4] * 8), 0.05)
    with pytest.raises(CheckFailed, match=r"1\.060x \[1\.060, 1\.060\]") as failed:
        check_not_slower(paired(old, [10.6] * 8), 0.05)
    assert failed.value.exit_code == 1
    # On the whole 8 % slower, and half of the prompts is faster: it might be chance.
    uneven_ms = [14.0, 9.0, 14.0, 9.0, 14.0, 9.0, 10.0, 9.0]
    uneven = paired(old, uneven_ms)
    assert uneven["time_ratio"] == pytest.approx(1.08, abs=0.01)
    check_not_slower(uneven, 0.05)
    # Neither side is favoured.
    assert paired(uneven_ms, old)["time_ratio"] == pytest.approx(1 / uneven["time_ratio"])
    check_not_slower(paired(old, [5.0] * 8), 0.0)


def test_bundles_that_take_other_tokens_are_not_timed_against_each_other(tmp_path: Path) -> None:
    old = written(tmp_path / "old.ygg", small.manifest()).manifest
    new = written(tmp_path / "new.ygg", small.manifest(), **{"tokenizer.json": b"[]"}).manifest
    check_same_ids(old, old)
    with pytest.raises(RequestError, match="their tokenizers are different"):
        check_same_ids(old, new)
    without = msgspec.structs.replace(small.manifest(), text=TextInfo())
    with pytest.raises(RequestError, match="their tokenizers are different"):
        check_same_ids(old, without)
    model = msgspec.structs.replace(without.model, vocab_size=12)
    with pytest.raises(RequestError, match="11 and 12 token ids"):
        check_same_ids(without, msgspec.structs.replace(without, model=model))


def yggc_diff(*arguments: str | Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "yggc", "diff", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **env}
    )


def test_the_command_prints_tables_or_one_line(tmp_path: Path) -> None:
    old, new = tmp_path / "old.ygg", tmp_path / "new.ygg"
    written(old, lab())
    written(new, timed_again(lab()), **{"bench.jsonl": b'{"prompt": "another"}\n'})
    env = {"YGG_CACHE": str(tmp_path / "cache")}
    done = yggc_diff(old, new, "--json", env=env)
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    report = json.loads(line)
    assert report["bench"] is report["paired"] is None
    assert report["members"]["changed"] == ["bench.jsonl"]
    done = yggc_diff(old, new, env=env)
    assert done.returncode == 0, done.stderr
    assert "members changed: bench.jsonl" in done.stdout
    assert "The bundles differ in members, beside what was measured." in done.stdout
    done = yggc_diff(old, old, env=env)
    assert "The bundles are the same, byte for byte." in done.stdout


@pytest.mark.parametrize("text", ["5", "%", "five%", "-1%", "5%%", "nan%", "inf%"])
def test_a_gate_that_is_no_percentage(tmp_path: Path, text: str) -> None:
    done = yggc_diff("a.ygg", "b.ygg", f"--fail-if-slower={text}", env={})
    assert done.returncode == 2
    assert "wanted a percentage" in done.stderr
    assert "Traceback" not in done.stderr


def test_files_that_are_not_what_they_should_be(tmp_path: Path) -> None:
    old = tmp_path / "old.ygg"
    written(old, lab())
    env = {"YGG_CACHE": str(tmp_path / "cache")}
    done = yggc_diff(old, tmp_path / "none.ygg", env=env)
    assert done.returncode == 2
    assert "none.ygg: cannot be opened" in done.stderr
    bench = tmp_path / "bench.json"
    bench.write_text("{}")
    done = yggc_diff(old, old, "--bench-new", bench, env=env)
    assert done.returncode == 2
    assert "is not what `yggrt bench FILE --json` prints" in done.stderr
    # Its target is not this machine's.
    done = yggc_diff(old, old, "--measure", env=env)
    assert done.returncode == 2
    assert "ERROR" in done.stderr
    assert "Traceback" not in done.stderr
