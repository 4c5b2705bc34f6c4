"""Targets are named, matched with this machine, and refused with what was asked and found."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from yggc.targets import GPU_TARGETS, HostGpu, find_gpu_target, host_gpus, resolve_target
from yggrt.core.errors import TargetError


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts an nvidia-smi that prints the given text in front of PATH."""

    def install(text: str, status: int = 0) -> None:
        (tmp_path / "answer").write_text(text)
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n/bin/cat {tmp_path}/answer\nexit {status}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    return install


def test_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert host_gpus() == ()
    with pytest.raises(TargetError) as refusal:
        resolve_target("a100", dry_run=False)
    assert refusal.value.message == (
        "asked for a100 (compute capability 8.0), this machine has no NVIDIA GPU"
    )
    assert "NVIDIA A100" in (refusal.value.tip or "")
    assert resolve_target("cpu", dry_run=False) == ("cpu", [])
    name, notes = resolve_target("auto", dry_run=False)
    assert name == "cpu"
    assert notes[0].startswith("target: auto is cpu")


def test_dry_run_may_ask_for_any() -> None:
    assert resolve_target("h200", dry_run=True) == ("h200", [])


def test_other_gpu(nvidia_smi: Callable[..., None]) -> None:
    nvidia_smi("NVIDIA H200, 9.0, 143771\n")
    assert host_gpus() == (HostGpu("NVIDIA H200", "9.0", 143771 << 20),)
    with pytest.raises(TargetError, match=r"this machine has NVIDIA H200 \(9\.0\)"):
        resolve_target("a100", dry_run=False)


def test_right_gpu_but_no_back_end(nvidia_smi: Callable[..., None]) -> None:
    nvidia_smi("NVIDIA H200, 9.0, 143771\n")
    with pytest.raises(TargetError, match="no CUDA back end"):
        resolve_target("h200", dry_run=False)
    name, notes = resolve_target("auto", dry_run=False)
    assert name == "cpu"
    assert "NVIDIA H200 is not used" in notes[0]


def test_driver_missing(nvidia_smi: Callable[..., None]) -> None:
    nvidia_smi("NVIDIA-SMI has failed", status=9)
    assert host_gpus() == ()


@pytest.mark.parametrize(
    ("driver_name", "capability", "mebibytes", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", "8.0", 40960, "a100"),
        ("NVIDIA A100-SXM4-80GB", "8.0", 81920, "a100-80gb"),
        ("NVIDIA A10G", "8.6", 23028, "a10g"),
        ("NVIDIA A10", "8.6", 23028, "a10"),
        ("NVIDIA L4", "8.9", 23034, "l4"),
        ("NVIDIA GeForce RTX 4090", "8.9", 24564, "rtx4090"),
        ("NVIDIA H100 80GB HBM3", "9.0", 81559, "h100"),
        ("Tesla T4", "7.5", 15360, "t4"),
        ("Tesla V100-SXM2-32GB", "7.0", 32768, "v100-32gb"),
    ],
)
def test_names_of_the_driver(driver_name: str, capability: str, mebibytes: int, name: str) -> None:
    gpu = HostGpu(driver_name, capability, mebibytes << 20)
    assert [target.name for target in GPU_TARGETS if target.is_gpu(gpu)] == [name]


def test_unknown_name() -> None:
    with pytest.raises(TargetError, match="unknown target 'a1000'; known are cpu, auto, v100"):
        find_gpu_target("a1000")


def run_yggc(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "yggc", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_targets_command() -> None:
    listed = json.loads(run_yggc("targets", "--json").stdout)
    names = [target["name"] for target in listed["targets"]]
    assert names == ["cpu", *(target.name for target in GPU_TARGETS)]
    assert listed["host"]["cores"] >= 1
    assert "rtx4090" in run_yggc("targets").stdout


def test_refusal_on_the_command_line(tmp_path: Path) -> None:
    output = tmp_path / "m.ygg"
    refused = run_yggc("build", "--gpu", "a1000", "--verifier", "x", "-o", str(output))
    assert refused.returncode == 2
    assert refused.stderr.startswith("ERROR unknown target 'a1000'")
    assert "Traceback" not in refused.stderr
    traced = run_yggc("build", "--gpu", "a1000", "--verifier", "x", "-o", str(output), "-v")
    assert "Traceback" in traced.stderr
    assert not output.exists()


def test_wrong_arguments_are_one_line_and_a_tip() -> None:
    for arguments in (("-t", "0"), ("--max-model-len", "0"), ("--calibration-tokens", "x")):
        refused = run_yggc("build", *arguments)
        assert refused.returncode == 2
        error, tip = refused.stderr.splitlines()
        assert error.startswith("ERROR invalid value for '")
        assert arguments[0] in error
        assert tip == "TIP `yggc build --help` describes the options"


def test_help_imports_no_torch() -> None:
    script = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None;"
        "sys.argv = ['yggc', 'build', '--help']; from yggc.cli import main; main()"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "--verifier" in result.stdout
