"""The GPU check on a machine that is none for it, and what it keeps of a step that breaks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ygg_kernels.triton.gpu_check import Report, Step, run_steps


def test_the_gpu_check_says_what_is_missing() -> None:
    """On a machine without a GPU: what was found, what is wanted, the next step; exit 2."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    done = subprocess.run(
        [sys.executable, "-m", "ygg_kernels.triton.gpu_check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    error, tip = done.stderr.strip().splitlines()
    assert error.startswith("ERROR gpu-check: found no GPU")
    assert "wanted an NVIDIA GPU of compute capability 8.0" in error
    assert tip.startswith("TIP run it on a machine with an NVIDIA GPU")
    assert done.stdout == ""


class Script(Step):
    """A step that runs a program in place of a module."""

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-c", self.module]


def test_a_step_that_breaks_loses_nothing(tmp_path: Path) -> None:
    """Results printed before a crash, and before the deadline, are in the report."""
    line = 'print(\'{"case": "a", "passed": true}\', flush=True)'
    steps = (
        Script("good", line),
        Script("crash", f"{line}; print('{{half'); raise SystemExit('out of memory')"),
        Script("hang", f"{line}; import time; time.sleep(60)"),
        Script("empty", "pass"),
    )
    report = Report(tmp_path / "result.json", {"gpu": "none"})
    for name, outcome in run_steps(steps, 3.0, tmp_path):
        report.add(name, outcome)
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["machine"] == {"gpu": "none"}
    outcomes = found["steps"]
    assert {name: (o["passed"], o["num_results"]) for name, o in outcomes.items()} == {
        "good": (True, 1),
        "crash": (False, 1),
        "hang": (False, 1),
        "empty": (False, 0),
    }
    assert outcomes["hang"]["ended"] == "deadline"
    assert outcomes["crash"]["ended"] == "exit status 1"
    assert outcomes["crash"]["stderr"] == ["out of memory"]
