"""Stage outputs on disk, addressed by the hash of their inputs; knows nothing of what the stages
do.

Layout: `<root>/<stage>/<hash>/` holds a finished output with `done.json`, `<hash>.partial/` one
being made and `<root>/locks/` one lock file per output. An output appears by a rename, so it is
whole or absent. A killed build leaves a `.partial` folder and no lock (the kernel drops it), which
the next build of the same output removes. Safe against killed processes and full disks; a power
cut may lose recent outputs, which sizes in `done.json` reveal.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from yggc.errors import PreflightError

DONE = "done.json"
# Digits of the inputs' hash that name an output.
NUM_DIGITS = 24
_OUTPUT = re.compile(rf"[0-9a-f]{{{NUM_DIGITS}}}(\.partial)?")


def hash_inputs(inputs: Any) -> str:
    """SHA-256 (hex) of the canonical JSON of plain values, Structs and dataclasses; TypeError for
    anything else.
    """
    plain = msgspec.to_builtins(inputs)
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def hash_file(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, slots=True)
class StageDir:
    """One stage output: `path` may be read when `done`."""

    path: Path
    lock: Path

    @property
    def partial(self) -> Path:
        return self.path.with_name(self.path.name + ".partial")

    @property
    def done(self) -> bool:
        """Whether the output is there and every file still has the size it had when it was
        finished.
        """
        try:
            sizes = json.loads((self.path / DONE).read_bytes())["files"]
            return all((self.path / name).stat().st_size == size for name, size in sizes.items())
        except (OSError, ValueError, KeyError):
            return False

    def ensure(self, produce: Callable[[Path], None]) -> Path:
        """`path`, made by `produce(folder)` if it is not done; a second process waits for the
        first and reuses it.

        An exception from `produce` leaves nothing behind.
        """
        if not self.done:
            with _locked(self.lock):
                if not self.done:
                    self._make(produce)
        # The time of last use, by which `sweep` chooses.
        os.utime(self.path / DONE)
        return self.path

    def discard(self) -> None:
        """Removes the output, so that it is made again."""
        with _locked(self.lock):
            shutil.rmtree(self.path, ignore_errors=True)

    def _make(self, produce: Callable[[Path], None]) -> None:
        for leftover in (self.partial, self.path):
            if leftover.exists():
                shutil.rmtree(leftover)
        self.partial.mkdir(parents=True)
        try:
            produce(self.partial)
            files = {
                str(path.relative_to(self.partial)): path.stat().st_size
                for path in sorted(self.partial.rglob("*"))
                if path.is_file()
            }
            (self.partial / DONE).write_text(json.dumps({"files": files}, indent=1))
            self.partial.rename(self.path)
        except BaseException:
            shutil.rmtree(self.partial, ignore_errors=True)
            raise


class WorkDir:
    """A folder of stage outputs that any number of builds may share."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def stage(self, name: str, inputs_hash: str) -> StageDir:
        """The output of stage `name` for these inputs, finished or not."""
        try:
            for folder in (self.root / "locks", self.root / name):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PreflightError(
                f"work directory {self.root}: cannot be made: {error.strerror}",
                "choose another with --work-dir",
            ) from error
        short = inputs_hash[:NUM_DIGITS]
        return StageDir(self.root / name / short, self.root / "locks" / f"{name}-{short}.lock")

    def sweep(self, older_than_s: float | None = None) -> int:
        """Removes what killed builds left and, given an age, outputs not used for that long; bytes
        freed.

        Outputs that another process is making are left alone, and so is everything that does not
        have the name of an output: the folder may hold other things too.
        """
        freed = 0
        if not (self.root / "locks").is_dir():
            return freed
        for stage in sorted(path for path in self.root.iterdir() if path.is_dir()):
            if stage.name == "locks" or not os.access(stage, os.R_OK | os.X_OK):
                continue
            for path in sorted(one for one in stage.iterdir() if _OUTPUT.fullmatch(one.name)):
                short = path.name.removesuffix(".partial")
                dead = path.name.endswith(".partial")
                if not dead and (older_than_s is None or not _unused_for(path, older_than_s)):
                    continue
                with _locked(
                    self.root / "locks" / f"{stage.name}-{short}.lock", wait=False
                ) as held:
                    if held and path.exists():
                        freed += sum(
                            file.lstat().st_size for file in path.rglob("*") if file.is_file()
                        )
                        shutil.rmtree(path)
        return freed


def _unused_for(path: Path, seconds: float) -> bool:
    try:
        return time.time() - (path / DONE).stat().st_mtime > seconds
    except FileNotFoundError:
        return False


@contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Holds an exclusive lock on `path`; yields False if `wait` is off and another process holds
    it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(descriptor)
