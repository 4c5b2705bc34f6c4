"""`yggc diff --measure` over real bundles."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import bundles
import msgspec
import pytest

from yggrt.bundle import Bundle, write_bundle


def yggc_diff(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "yggc", "diff", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny bundle, which other tests may build again, with other times."""
    path = tmp_path_factory.mktemp("drafting") / "drafting.ygg"
    shutil.copyfile(bundles.tiny("dynamic"), path)
    return path


@pytest.fixture(scope="module")
def plain(drafting: Path) -> Path:
    """The same, told to decode plainly."""
    path = drafting.with_name("plain.ygg")
    with Bundle.open(drafting) as bundle:
        manifest = bundle.manifest
        schedule = msgspec.structs.replace(manifest.schedule, tree="plain")
        write_bundle(
            path,
            msgspec.structs.replace(manifest, schedule=schedule),
            bundle.weight_sources(),
            bundle.member_sources(),
        )
    return path


@pytest.mark.tiny
def test_both_bundles_decode_the_same_tokens_in_turns(
    drafting: Path, plain: Path, tmp_path: Path
) -> None:
    prompts = tmp_path / "words.txt"
    prompts.write_text("the quick brown fox\nhello world\none more word\n")
    # No machine is so disturbed that this gate closes.
    done = yggc_diff(
        drafting, plain, "--prompts", prompts, "--limit", "2", "-n", "12",
        "--fail-if-slower", "100000%", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    report = json.loads(line)
    assert report["differing"] == ["schedule.tree"]
    paired = report["paired"]
    # A tree changes no token.
    assert paired["num_equal"] == paired["num_prompts"] == 2
    assert [one["name"] for one in paired["per_prompt"]] == ["1", "2"]
    low, high = paired["time_ratio_interval"]
    assert 0 < low <= paired["time_ratio"] <= high
    assert min(paired["tpot_ms"]) > 0
    assert not paired["interrupted"]


@pytest.mark.tiny
def test_a_gate_without_interval_and_prompts_that_do_not_fit_are_refused(
    plain: Path, tmp_path: Path
) -> None:
    prompts = tmp_path / "word.txt"
    prompts.write_text("the quick brown fox\n")
    done = yggc_diff(plain, plain, "--prompts", prompts, "-n", "4", "--fail-if-slower", "5%")
    assert done.returncode == 2
    assert "1 prompt gives no interval to decide by" in done.stderr
    assert done.stdout == ""
    done = yggc_diff(plain, plain, "--prompts", prompts, "-n", "4", "--measure")
    assert done.returncode == 0, done.stderr
    assert "The bundles are the same, byte for byte." in done.stdout
    assert "time per token, new over old:" in done.stdout
    prompts.write_text("word " * 900)
    done = yggc_diff(plain, plain, "--prompts", prompts, "--measure")
    assert done.returncode == 2
    assert "leaves room for" in done.stderr
    assert "Traceback" not in done.stderr
