"""Two builds of the same inputs in different folders differ in measured tables alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import bundles
import pytest
import torch

from yggrt.bundle import Bundle

RECIPE = """
name = "tiny-twice"
target = "cpu"
verifier = "./model"
buckets = [1]
prefill_buckets = [16]
max_model_len = 128
calibration_tokens = 4
tree = "plain"
"""


def yggc(folder: Path, *arguments: str | Path) -> str:
    """stdout of a command over the recipe in `folder`, with stages kept there and strings that
    hash as no other process has them."""
    command = [sys.executable, "-m", "yggc", *map(str, arguments)]
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    env = {**os.environ, "PYTHONHASHSEED": "random", "TMPDIR": str(temporary)}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env=env, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # What compilers and libraries keep by themselves would pile up with every graph.
    left = [path for path in temporary.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in left) < 1_000_000, left
    return done.stdout


@pytest.mark.tiny
def test_the_same_inputs_give_the_same_bytes_but_for_what_was_measured(tmp_path: Path) -> None:
    # Names of different length: a path in a file would move what follows it.
    folders = tmp_path / "a", tmp_path / "another-folder"
    built = []
    for folder in folders:
        folder.mkdir()
        bundles.save_tiny(folder / "model")
        (folder / "recipe.toml").write_text(RECIPE)
        options = ("recipe.toml", "--work-dir", "work")
        if folder is folders[0]:
            yggc(folder, "profile", *options, "-o", tmp_path / "cpu.json")
        built.append(folder / "tiny.ygg")
        yggc(folder, "build", *options, "--profile", tmp_path / "cpu.json", "-o", built[-1])
    manifests = []
    for path in built:
        with Bundle.open(path, full=True) as bundle:
            manifests.append(bundle.manifest)
    old, new = manifests
    assert old.config["verifier"] == "./model"
    assert old.latency == new.latency
    # Every byte that a decoder computes with or that runs, by its digest.
    assert old.members == new.members
    assert old.golden == new.golden
    report = json.loads(yggc(tmp_path, "diff", *built, "--json"))
    assert report["differing"] == []
    assert report["members"]["changed"] == []
    for path in built:
        data = path.read_bytes()
        for place in (tmp_path, Path(torch.__file__).parent, bundles.ROOT):
            assert str(place).encode() not in data, f"{place} in {path}"
