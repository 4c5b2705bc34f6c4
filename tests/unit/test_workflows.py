"""Steps of the workflows: shell that parses, over scripts that are there. `make check` has linters
for the rest."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / ".ci").iterdir())


def steps() -> Iterator[tuple[str, str]]:
    """Name and text of every step of shell."""
    for path in sorted((ROOT / ".github/workflows").glob("*.yml")):
        for job, content in yaml.safe_load(path.read_text())["jobs"].items():
            for step in content["steps"]:
                if "run" in step:
                    yield f"{path.stem}-{job}-{step['name']}", step["run"]


STEPS = dict(steps())


def parses(*arguments: str, text: str | None = None) -> None:
    done = subprocess.run(
        ["bash", "-n", *arguments], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_shell_over_scripts_that_are_there(name: str) -> None:
    text = STEPS[name]
    parses(text=text)
    assert "${{" not in text, "what others write would be run: give it in env"
    for script in re.findall(r"\.ci/\w+", text):
        assert ROOT / script in SCRIPTS


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_parses_and_stops_at_an_error(path: Path) -> None:
    parses(str(path))
    assert os.access(path, os.X_OK)
    assert "set -euo pipefail" in path.read_text()
