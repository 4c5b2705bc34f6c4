"""The quota of control groups, of both versions, as files say it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from yggrt import cores


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("own", "files", "quota"),
    [
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2.0),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {}, None),
        # The tightest of a group and those that it is in.
        ("0::/a/b\n", {"cpu.max": "max 100000", "a/cpu.max": "150000 100000",
                       "a/b/cpu.max": "400000 100000"}, 1.5),
        # A path of the host: what is seen is the root alone.
        ("0::/kubepods/pod7\n", {"cpu.max": "300000 100000"}, 3.0),
        ("4:cpu,cpuacct:/\n3:memory:/\n",
         {"cpu/cpu.cfs_quota_us": "250000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2.5),
        ("4:cpu,cpuacct:/d\n",
         {"cpu/d/cpu.cfs_quota_us": "-1\n", "cpu/d/cpu.cfs_period_us": "100000\n"}, None),
        ("3:memory:/\n", {"cpu/cpu.cfs_quota_us": "1", "cpu/cpu.cfs_period_us": "1"}, None),
        ("0::/\n", {"cpu.max": "nonsense"}, None),
    ],
)  # fmt: skip
def test_quota(tmp_path: Path, own: str, files: dict[str, str], quota: float | None) -> None:
    root = write(tmp_path / "cgroup", files)
    listed = tmp_path / "own"
    listed.write_text(own)
    assert cores.quota_processors(root, listed) == quota


def test_without_control_groups(tmp_path: Path) -> None:
    assert cores.quota_processors(tmp_path, tmp_path / "none") is None


@pytest.mark.parametrize(("quota", "num"), [(None, 6), (2.0, 2), (2.9, 2), (0.5, 1), (64.0, 6)])
def test_processors_within_the_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, num: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    monkeypatch.setattr(cores, "quota_processors", lambda: quota)
    assert cores.usable_processors() == num
