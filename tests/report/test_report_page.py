"""`yggc report`: a whole page or none, of this bundle's numbers alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bundle.small import write_small
from report.lab import (
    DEPTH,
    bench,
    bench_json,
    candidate,
    depth_json,
    drafted_lab,
    lab,
    policies_json,
)
from report.pages import read_page
from typer.testing import CliRunner, Result

from yggc import cli
from yggc.report_page.measured import Compared, ComparedPolicies, Measured, TrainedDepth
from yggc.report_page.page import render, sections
from yggrt.bundle import Bundle

pytest.importorskip("matplotlib")

COMPARED = {
    "bundles": [{"name": "other", "digest": "0" * 64}],
    "rows": [
        {"title": "tree", "tpot_ms": 2.0, "ratio": 2.5, "ratio_interval": [2, 3]},
        {"title": "transformers: plain", "tpot_ms": 5.0, "ratio": 1.0, "ratio_interval": None},
    ],
    "reference": "transformers: plain",
    "prompts": ["1", "2"],
    "num_tokens": 12,
    "missing": [{"title": "llama.cpp", "reason": "reads GGUF files; the verifier is none"}],
    "date": "2026-01-02",
}  # fmt: skip


def report(*arguments: str | Path, cache: Path) -> Result:
    """The command in this process."""
    env = {"YGG_CACHE": str(cache)}
    return CliRunner().invoke(cli.app, ["report", *map(str, arguments)], env=env)


def alone(*arguments: str | Path, cache: Path, before: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which does `before` first."""
    program = f"import sys, resource; {before}; from yggc.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, "report", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "YGG_CACHE": str(cache)},
        check=False,
    )


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.ygg"
    write_small(path)
    return path


def digest_of(path: Path) -> str:
    with Bundle.open(path) as bundle:
        return bundle.digest


def test_a_page_of_everything() -> None:
    made = lab(depth=DEPTH)
    measured = Measured(
        [bench(), bench(), bench(busy_share=0.5, interrupted=True)],
        [msgspec.convert(COMPARED, Compared)],
        [msgspec.convert(policies_json(), ComparedPolicies)],
        [msgspec.convert(depth_json(), TrainedDepth)],
    )
    text = render("T", "by", sections(made, 1_000_000, "d" * 64, measured))
    page = read_page(text)
    assert {part.missing for part in page.parts.values()} == {""}
    everything = {title: " ".join(part.text) for title, part in page.parts.items()}
    assert "Example CPU, 2 threads on 2 cores" in everything["The bundle"]
    assert "apache-2.0" in everything["The bundle"]
    assert "Other processes took 1%" in everything["The bundle"]
    assert "1.25 [1.20, 1.30]" in everything["Trees"]
    assert "Other processes took 50%" in everything["Trees"]
    assert "was interrupted" in everything["Trees"]
    assert "1.50 [1.40, 1.62]" in everything["Policies"]
    assert "medusa: no tree of it fits" in everything["Policies"]
    assert "from 4 to 8 rows (at context 8)" in everything["Times of a pass"]
    assert "3 schedules, median error 0.0%" in everything["Predicted and measured"]
    assert "g* = 2" in everything["Chains in theory"]
    assert "90 accepted of 160 tests, 0.562" in everything["Chains in theory"]
    assert "2.50x [2.00, 3.00]" in everything["Beside other runtimes"]
    assert "llama.cpp: reads GGUF" in everything["Beside other runtimes"]
    depth = everything["Depth predictor"]
    assert "It is off" in depth
    assert "0.994 [0.980, 1.010] times as long" in depth
    assert "who knows L 5.500" in depth
    assert "code 120 0.700 0.600 5.000 4.750" in depth
    assert len(text) < 250_000


def test_a_model_that_drafts_has_a_map_of_what_was_kept() -> None:
    made = drafted_lab()
    page = read_page(render("T", "by", sections(made, 1, "d" * 64, Measured([bench()]))))
    text = " ".join(page.parts["Predicted speed-up by width and depth"].text)
    assert "The best cell: width 1, depth 2, at most 3 rows, 1.40x" in text
    assert "agreement" not in page.parts["Chains in theory"].missing


def test_names_are_text_and_nothing_else() -> None:
    name = '<script>alert("$x$")</script>'
    made = msgspec.structs.replace(lab(), name=name, built_by=f"{name} & co")
    evil = bench(tree={**bench_json()["tree"], "spec": "sequence:depth=2"})
    text = render(name, name, sections(made, 1, "d" * 64, Measured([evil])))
    page = read_page(text)
    assert name in " ".join(page.parts["The bundle"].text)


def test_the_command_writes_a_page_of_a_file(small: Path, tmp_path: Path) -> None:
    bench_file, compared_file, policies_file = (
        tmp_path / name for name in ("bench.json", "compare.json", "policies.json")
    )
    digest = digest_of(small)
    bench_file.write_text(json.dumps(bench_json(digest=digest)))
    mine = {"name": "small", "digest": digest}
    compared_file.write_text(json.dumps({**COMPARED, "bundles": [*COMPARED["bundles"], mine]}))
    policies_file.write_text(json.dumps(policies_json(digest=digest)))
    out = tmp_path / "out.html"
    comparisons = ("--compare", compared_file, "--compare", policies_file)
    done = report(small, "--bench", bench_file, *comparisons, "-o", out, cache=tmp_path / "c")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == ""
    page = read_page(out.read_text())
    # One row count, no recordings and no candidates: said so, and the rest is there.
    missing = {title for title, part in page.parts.items() if part.missing}
    assert missing == {
        "Predicted speed-up by width and depth", "Predicted and measured", "Depth predictor"
    }  # fmt: skip
    assert "one row count" in " ".join(page.parts["Times of a pass"].text)
    assert f"{out}: " in done.stderr
    # An earlier page is written over.
    sole = out
    assert report(small, "-o", sole, cache=tmp_path / "c").exit_code == 0
    page = read_page(sole.read_text())
    assert "yggrt bench FILE --json" in page.parts["Acceptance by depth and rank"].missing
    assert "yggc compare FILE --json" in page.parts["Beside other runtimes"].missing


def refused(done: Result | subprocess.CompletedProcess[str], folder: Path, *words: str) -> None:
    """Exit 2, one error and one tip, nothing written."""
    code = done.exit_code if isinstance(done, Result) else done.returncode
    assert code == 2, done.stderr
    error, tip = done.stderr.splitlines()
    assert error.startswith("ERROR ")
    assert tip.startswith("TIP ")
    for word in words:
        assert word in error
    assert not [path for path in folder.iterdir() if "html" in path.name]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"digest": "e" * 64, "bundle": "another"}, ("another (eeeeeeeeeeeeeeee)", "small (")),
        ({"digest": ""}, ("does not say by a digest which bundle",)),
        ({"speedup": "fast"}, ("is not what `yggrt bench FILE --json` prints", "$.speedup")),
        (None, ("is not what `yggrt bench FILE --json` prints",)),
    ],
    ids=["another bundle", "no digest", "wrong type", "no JSON"],
)
def test_other_benches_are_refused(
    small: Path, tmp_path: Path, content: dict[str, Any] | None, words: tuple[str, ...]
) -> None:
    file = tmp_path / "bench.json"
    file.write_text("plain 5.0 ms\n" if content is None else json.dumps(bench_json(**content)))
    out = tmp_path / "out.html"
    done = report(small, "--bench", file, "-o", out, cache=tmp_path / "c")
    refused(done, tmp_path, "bench.json", *words)


def test_other_comparisons_are_refused(small: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "compare.json", tmp_path / "out.html"
    file.write_text(json.dumps(COMPARED))
    done = report(small, "--compare", file, "-o", out, cache=tmp_path / "c")
    refused(done, tmp_path, "is of other (0000000000000000)", "small (")
    file.write_text(json.dumps(policies_json(digest="e" * 64, bundle="another")))
    done = report(small, "--compare", file, "-o", out, cache=tmp_path / "c")
    refused(done, tmp_path, "is of another (eeeeeeeeeeeeeeee)", "small (")
    file.write_text(json.dumps(bench_json()))
    done = report(small, "--compare", file, "-o", out, cache=tmp_path / "c")
    refused(done, tmp_path, "is not what `yggc compare FILE --json` prints")
    done = report(small, "--compare", tmp_path / "none", "-o", out, cache=tmp_path / "c")
    refused(done, tmp_path, "none: cannot be read: No such file")


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "words.ygg"
    file.write_text("words and more words")
    done = report(file, "-o", tmp_path / "out.html", cache=tmp_path / "c")
    refused(done, tmp_path, "words.ygg: starts with b'word'")


def test_a_page_that_cannot_be_written_leaves_nothing(small: Path, tmp_path: Path) -> None:
    done = report(small, "-o", tmp_path / "none/out.html", cache=tmp_path / "c")
    refused(done, tmp_path, "none/out.html: no report can be written there")
    done = report(small, "-o", tmp_path, cache=tmp_path / "c")
    refused(done, tmp_path, "no report can be written there")
    done = report(small, "-o", "/dev/null", cache=tmp_path / "c")
    refused(done, tmp_path, "/dev/null: no report can be written there")
    before = small.read_bytes()
    done = report(small, "-o", small, cache=tmp_path / "c")
    refused(done, tmp_path, "small.ygg: exists and is no page, so it is not overwritten")
    assert small.read_bytes() == before
    done = alone(
        small, "-o", tmp_path / "out.html", cache=tmp_path / "c",
        before="resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))",
    )  # fmt: skip
    refused(done, tmp_path, "out.html: cannot be written: File too large")


def test_without_matplotlib_it_says_how_to_get_it(small: Path, tmp_path: Path) -> None:
    done = alone(
        small, "-o", tmp_path / "out.html", cache=tmp_path / "c",
        before="sys.modules['matplotlib'] = None",
    )  # fmt: skip
    refused(done, tmp_path, "a report needs matplotlib")
    assert "yggdrasil-decode[report]" in done.stderr


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom yggc import cli\n"
        "try:\n    cli.app(['report', '--help'])\nexcept SystemExit:\n    pass\n"
        "bad = {'torch', 'numpy', 'matplotlib', 'jinja2'} & set(sys.modules)\n"
        "assert not bad, bad\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--bench" in done.stdout


def test_a_schedule_with_nothing_to_show_has_reasons() -> None:
    made = lab(candidates=(), recordings=(), tree="plain", stage_s={})
    page = read_page(render("T", "by", sections(made, 1, "d" * 64, Measured())))
    shown = {title for title, part in page.parts.items() if not part.missing}
    assert shown == {"The bundle", "Times of a pass", "One iteration"}
    plain = lab(candidates=(candidate("plain", 1.0, 10.0, 1.0, None, None),), recordings=())
    page = read_page(render("T", "by", sections(plain, 1, "d" * 64, Measured())))
    assert page.parts["Predicted and measured"].missing


def test_a_ladder_says_what_each_step_gains() -> None:
    step = {
        "step": "pruned tree",
        "tree": "plain",
        "tpot_ms": 8.0,
        "mean_acceptance_length": 1.5,
        "speedup": 1.25,
        "speedup_interval": [1.2, 1.3],
        "gain": 1.125,
        "gain_interval": [1.1, 1.2],
    }
    compared = policies_json()
    compared["temperatures"][0]["ladder"] = [step]
    measured = Measured(policies=[msgspec.convert(compared, ComparedPolicies)])
    page = read_page(render("T", "by", sections(lab(), 1, "d" * 64, measured)))
    text = " ".join(page.parts["Policies"].text)
    assert "pruned tree plain 8.00 1.50 1.25 [1.20, 1.30] 1.12 [1.10, 1.20]" in text


def test_a_depth_predictor_alone_is_told_from_the_manifest() -> None:
    page = read_page(render("T", "by", sections(lab(depth=DEPTH), 1, "d" * 64, Measured())))
    text = " ".join(page.parts["Depth predictor"].text)
    assert "0.994 [0.980, 1.010]" in text
    assert "then `--depth depth.json`" in text
    page = read_page(render("T", "by", sections(lab(), 1, "d" * 64, Measured())))
    assert "None was trained for this bundle" in page.parts["Depth predictor"].missing


def test_another_depth_predictor_is_refused(small: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "depth.json", tmp_path / "out.html"
    file.write_text(json.dumps(depth_json()))
    done = report(small, "--depth", file, "-o", out, cache=tmp_path / "c")
    refused(done, tmp_path, "depth.json: is of another depth predictor", "which has none")
    file.write_text(json.dumps(bench_json()))
    done = report(small, "--depth", file, "-o", out, cache=tmp_path / "c")
    refused(done, tmp_path, "is not what `yggc train depth FILE -o NEW --json` prints")
