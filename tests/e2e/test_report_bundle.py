"""A report of a real bundle and of what the commands print of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import bundles
import pytest
import typer
from report.pages import read_page
from typer.testing import CliRunner, Result

from yggc import cli as yggc
from yggrt import cli as yggrt

pytest.importorskip("matplotlib")
EMITTED = re.compile(r"(, accepted|, the verifier's own|^from the prompt: .*)$")


@pytest.fixture(scope="module")
def bundle() -> Path:
    return bundles.tiny("static")


def command(app: typer.Typer, *arguments: str | Path) -> Result:
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    assert done.exit_code == 0, done.stderr
    return done


@pytest.mark.tiny
def test_a_report_of_a_bundle_its_bench_and_its_comparison(bundle: Path, tmp_path: Path) -> None:
    bench, compared, page = (tmp_path / name for name in ("b.json", "c.json", "page.html"))
    words = tmp_path / "words.txt"
    words.write_text("one two one two one two one two\nhello hello hello hello hello\n")
    common = ("--prompts", words, "-n", "16", "--json")
    bench.write_text(command(yggrt.app, "bench", bundle, *common).stdout)
    more = ("--baseline", "openvino", "--work-dir", bundles.WORK)
    compared.write_text(command(yggc.app, "compare", bundle, *common, *more).stdout)
    measured = ("--bench", bench, "--compare", compared)
    done = command(yggc.app, "report", bundle, *measured, "-o", page)
    assert done.stdout == ""
    found = read_page(page.read_text())
    assert page.stat().st_size < 250_000
    # A random model's answers are hard to draft, so there may be nothing to say of drafts.
    drafts = {"Acceptance by depth and rank", "Reliability of path probabilities",
              "Chains in theory"}  # fmt: skip
    missing = {title for title, part in found.parts.items() if part.missing}
    assert missing - drafts == {"Policies", "Depth predictor"}
    assert "openvino: " in " ".join(found.parts["Beside other runtimes"].text)
    spec = json.loads(bench.read_text())["tree"]["spec"]
    assert spec in " ".join(found.parts["Trees"].text)


@pytest.mark.tiny
def test_explained_tokens_are_those_of_a_real_bundle(bundle: Path) -> None:
    ids = "5,6,7,5,6,7,5,6"
    done = command(yggrt.app, "run", bundle, "--ids", ids, "-n", "40", "--explain", "--json")
    said = json.loads(done.stdout)
    assert done.stderr.count("\npass ") == said["num_passes"]
    lines = [line for line in done.stderr.splitlines() if EMITTED.search(line)]
    assert len(lines) == len(said["ids"])
