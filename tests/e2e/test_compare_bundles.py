"""`yggc compare` over real bundles: transformers on the same tiny model, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import bundles
import pytest

from yggc.compare.run import Request, compare
from yggc.workdir import WorkDir


def yggc_compare(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "yggc", "compare", *map(str, arguments)]
    command += ["--work-dir", str(bundles.WORK)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.tiny
def test_transformers_says_the_same_on_the_same_model(tmp_path: Path) -> None:
    bundle = bundles.tiny("dynamic")
    page = tmp_path / "compare.md"
    lines = tmp_path / "words.txt"
    lines.write_text("the quick brown fox\nhello world\none more word\n")
    done = yggc_compare(
        bundle, "--baseline", "transformers", "--prompts", lines, "--limit", "2", "-n", "12",
        "--lookup", "3", "--prefill", "40", "-o", page, "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    report = json.loads(line)
    assert report["prompts"] == ["1", "2"]
    rows = {row["title"].rpartition(": ")[2]: row for row in report["rows"] if row["is_bundle"]}
    assert set(rows) == {"plain", "tree"}
    others = [row for row in report["rows"] if not row["is_bundle"]]
    assert [row["equal_share"] for row in others] == [1.0, 1.0]
    assert {row["way"] for row in others} == {"plain", "lookup"}
    assert all(len(row["tpots_ms"]) == 2 and min(row["tpots_ms"]) > 0 for row in report["rows"])
    [prefill] = report["prefill"]
    assert prefill["num_tokens"] == 40
    assert len(prefill["rows"]) == 2
    assert "no model" in report["missing"][0]["reason"]
    text = page.read_text()
    assert report["command"] in text
    assert all(row["title"] in text for row in report["rows"])
    assert "100.0%" in text


@pytest.mark.tiny
def test_an_interrupt_reports_what_was_finished() -> None:
    seen: list[str] = []
    request = Request(
        bundles=(bundles.tiny("dynamic"),), source=None, drafter_source=None, prompts=(),
        limit=3, num_tokens=4, num_threads=1, baselines=(), lookups=(), prefills=(16,),
    )  # fmt: skip
    report = compare(
        request,
        WorkDir(bundles.WORK),
        seen.append,
        lambda: any(text.startswith("2/") for text in seen),
    )
    assert report["interrupted"]
    assert len(report["prompts"]) == 1
    assert report["prefill"] == []


@pytest.mark.tiny
@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (None, "cannot be read: No such file"),
        ('{"prompt": "a"}\n{"turns": [}\n', "line 2: not JSON"),
        ("word " * 900, "leaves room for"),
    ],
    ids=["none", "malformed", "long"],
)
def test_prompts_that_cannot_be_used(tmp_path: Path, content: str | None, wanted: str) -> None:
    path = tmp_path / "prompts.jsonl"
    if content is not None:
        path.write_text(content)
    done = yggc_compare(bundles.tiny("dynamic"), "--prompts", path)
    assert done.returncode == 2, done.stderr
    assert wanted in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.model
def test_llama_cpp_on_the_same_file(smol_bundle: Path) -> None:
    pytest.importorskip("llama_cpp")
    done = yggc_compare(
        smol_bundle,
        "--baseline",
        "llama.cpp",
        "--limit",
        "1",
        "-n",
        "8",
        "--lookup",
        "2",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [row["way"] for row in report["rows"] if not row["is_bundle"]].count("plain") == 1
