"""Stage outputs are whole or absent, whoever is killed or comes second."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from yggc.context import Context
from yggc.errors import PreflightError
from yggc.pipeline import RECORD_FILE, Stage, _run_stage
from yggc.report import Reporter
from yggc.stages import profile
from yggc.workdir import WorkDir, hash_inputs
from yggrt.core.schema import ProfileNotes

MAKER = """
import sys, time
from pathlib import Path
from yggc.workdir import WorkDir
root, marker, seconds = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
def produce(folder):
    (folder / "half").write_text("x")
    with marker.open("a") as file: file.write("made\\n")
    time.sleep(seconds)
    (folder / "whole").write_text("y")
print(WorkDir(root).stage("freeze", "abc").ensure(produce), flush=True)
"""


def fill(name: str, text: str) -> Callable[[Path], None]:
    def produce(folder: Path) -> None:
        (folder / name).write_text(text)

    return produce


def start(root: Path, marker: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", MAKER, str(root), str(marker), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.02)


def test_made_once(work: WorkDir) -> None:
    calls = []
    stage = work.stage("load", hash_inputs({"a": 1}))
    assert not stage.done
    for _ in range(2):
        stage.ensure(lambda folder: calls.append((folder / "x").write_text("1")))
    assert stage.done
    assert len(calls) == 1
    assert (stage.path / "x").read_text() == "1"


def test_failure_leaves_nothing(work: WorkDir) -> None:
    stage = work.stage("load", "abc")

    def fail(folder: Path) -> None:
        (folder / "x").write_text("1")
        raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        stage.ensure(fail)
    assert list((work.root / "load").iterdir()) == []


def test_killed_build_is_made_again(work: WorkDir, tmp_path: Path) -> None:
    process = start(work.root, tmp_path / "marker", 60)
    wait_for(tmp_path / "marker")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    stage = work.stage("freeze", "abc")
    assert stage.partial.is_dir()
    assert not stage.done
    folder = stage.ensure(fill("new", "z"))
    assert sorted(path.name for path in folder.iterdir()) == ["done.json", "new"]
    assert not stage.partial.exists()


def test_two_processes_make_it_once(work: WorkDir, tmp_path: Path) -> None:
    first = start(work.root, tmp_path / "marker", 1.0)
    second = start(work.root, tmp_path / "marker", 1.0)
    outputs = {first.communicate()[0], second.communicate()[0]}
    assert (first.returncode, second.returncode) == (0, 0)
    assert len(outputs) == 1
    assert (tmp_path / "marker").read_text() == "made\n"


def test_damaged_output_is_made_again(work: WorkDir) -> None:
    stage = work.stage("pack", "abc")
    stage.ensure(fill("x", "12345"))
    (stage.path / "x").write_text("1")
    assert not stage.done
    stage.ensure(fill("x", "12345"))
    assert (stage.path / "x").read_text() == "12345"


def test_sweep(work: WorkDir, tmp_path: Path) -> None:
    old, new, dead = (work.stage("load", hash_inputs(name)) for name in ("old", "new", "dead"))
    for stage in (old, new):
        stage.ensure(fill("x", "12345"))
    os.utime(old.path / "done.json", (0, 0))
    dead.partial.mkdir()
    (dead.partial / "x").write_bytes(bytes(1000))
    busy = start(work.root, tmp_path / "marker", 2.0)
    wait_for(tmp_path / "marker")
    assert work.sweep() == 1000
    assert old.path.exists()
    work.sweep(older_than_s=3600)
    assert not old.path.exists()
    assert new.done
    assert Path(busy.communicate()[0].strip(), "whole").exists()


def test_sweep_knows_its_own(tmp_path: Path) -> None:
    """A folder with other things in it is no reason to remove them, nor to fail."""
    download = tmp_path / "Downloads" / "film.partial"
    download.parent.mkdir()
    download.write_text("x")
    work = WorkDir(tmp_path)
    assert work.sweep() == 0
    work.stage("load", "abc")
    assert work.sweep(older_than_s=0) == 0
    assert download.exists()


def test_hash_is_of_values() -> None:
    assert hash_inputs({"b": (1, 2), "a": None}) == hash_inputs({"a": None, "b": [1, 2]})
    assert hash_inputs({"a": 1}) != hash_inputs({"a": "1"})
    with pytest.raises(TypeError):
        hash_inputs({"a": object()})


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PreflightError, match="cannot be made"):
        WorkDir(tmp_path / "file" / "work").stage("load", "abc")


def test_a_discarded_output_is_made_again(work: WorkDir) -> None:
    stage = work.stage("profile", "abc")
    stage.ensure(fill("x", "1"))
    stage.discard()
    assert not stage.done
    stage.ensure(fill("x", "2"))
    assert (stage.path / "x").read_text() == "2"


def test_a_record_that_cannot_be_read_is_made_again(work: WorkDir) -> None:
    """As one with a field that another state of the compiler had."""

    def run(context: Context, out: Path) -> ProfileNotes:
        return ProfileNotes(busy_share=0.0)

    stage = Stage("profile", ProfileNotes, lambda context: "inputs", run)
    context: Any = SimpleNamespace(work=work, folders={}, reporter=Reporter(quiet=True))
    assert _run_stage(stage, context, [])[1]
    record = context.folders["profile"] / RECORD_FILE
    for damage in ('{"busy_share": 0.0, "newer": 1}', '{"busy_', None):
        record.unlink() if damage is None else record.write_text(damage)
        found, fresh = _run_stage(stage, context, [])
        assert (found.busy_share, fresh) == (0.0, True)
    assert not _run_stage(stage, context, [])[1]


def test_times_of_a_busy_machine_are_taken_again(work: WorkDir) -> None:
    """The stage runs in the next build too, until it could be measured in peace."""
    shares = iter([0.5, 0.4, 0.0, 0.0])
    made: list[float] = []

    def run(context: Context, out: Path) -> ProfileNotes:
        made.append(next(shares))
        return ProfileNotes(busy_share=made[-1])

    def reusable(notes: ProfileNotes) -> bool:
        return profile.reusable(SimpleNamespace(notes=notes))

    stage = Stage("profile", ProfileNotes, lambda context: "inputs", run, reusable)
    context: Any = SimpleNamespace(work=work, folders={}, reporter=Reporter(quiet=True))
    fresh = [_run_stage(stage, context, [])[1] for _ in range(5)]
    assert fresh == [True, True, True, False, False]
    assert made == [0.5, 0.4, 0.0]
