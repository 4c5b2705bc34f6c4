"""Progress: plain lines off a terminal, bars on one, nothing when quiet; a result as table or
JSON.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from yggc.report import BuildResult, Reporter, print_result


def run_stage(reporter: Reporter) -> None:
    with reporter.stage("freeze", total=2) as progress:
        progress.advance(1, "verify_1")
        reporter.say("a [note]")
        with reporter.stage("inner"):
            pass
        progress.advance(1, "verify_4")


def test_plain_lines() -> None:
    out = io.StringIO()
    reporter = Reporter(console=Console(file=out, force_terminal=False))
    run_stage(reporter)
    text = out.getvalue()
    assert "\x1b" not in text
    assert "freeze ...\n" in text
    assert "freeze 2/2 (verify_4)\n" in text
    assert "a [note]\n" in text
    assert "freeze done in " in text
    assert set(reporter.seconds) == {"freeze", "inner"}


def test_bar_on_a_terminal() -> None:
    out = io.StringIO()
    reporter = Reporter(console=Console(file=out, force_terminal=True, width=100))
    run_stage(reporter)
    assert "a [note]" in out.getvalue()
    assert "\x1b[?25h" in out.getvalue().rsplit("\x1b[?25l", 1)[-1], "the cursor is shown again"
    assert reporter.bars is None


def test_quiet() -> None:
    out = io.StringIO()
    run_stage(Reporter(quiet=True, console=Console(file=out, force_terminal=True)))
    assert out.getvalue() == ""


def test_failed_stage_closes_its_bar() -> None:
    reporter = Reporter(console=Console(file=io.StringIO(), force_terminal=True))
    with pytest.raises(ValueError, match="broken"), reporter.stage("load", total=1):
        raise ValueError("broken")
    assert reporter.bars is None
    assert reporter.seconds == {}


def test_result(capsys: pytest.CaptureFixture[str]) -> None:
    result = BuildResult(
        name="m",
        output=Path("m.ygg"),
        sizes={"weights": 2_000_000},
        seconds={"load": 1.25, "pack": 0.5},
        cached=("load",),
        schedule={"tree": "plain", "speedup": 1.25},
    )
    print_result(result, as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed["output"] == "m.ygg"
    assert printed["schedule"]["tree"] == "plain"
    print_result(result, as_json=False)
    table = capsys.readouterr().out
    assert "from an earlier build" in table
    assert "tree: plain" in table
    assert "2.0" in table
