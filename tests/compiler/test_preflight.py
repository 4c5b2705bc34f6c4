"""What is missing is named before anything long starts; a plan is made without building."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from yggc.config import BuildConfig, load_config
from yggc.errors import PreflightError
from yggc.preflight import preflight
from yggrt.core.footprint import Footprint


def configured(tmp_path: Path, **changes: object) -> BuildConfig:
    flags = {
        "verifier": "m.gguf",
        "output": str(tmp_path / "m.ygg"),
        "target": "cpu",
        "work_dir": str(tmp_path / "work"),
        "jobs": 1,
    }
    return load_config(None, flags | changes)[0]


def test_this_machine_passes(tmp_path: Path) -> None:
    checks = preflight(configured(tmp_path), Footprint(1000, 1000, 1000))
    assert {"python", "torch", "g++", "disk", "memory", "output directory"} <= {
        check.name for check in checks
    }
    assert not (tmp_path / "work").exists()


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(
        PreflightError, match=r"g\+\+: no-such-compiler not found, wanted"
    ) as refusal:
        preflight(configured(tmp_path))
    assert "apt-get install g++" in (refusal.value.tip or "")


def test_compiler_that_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "broken-g++"
    program.write_text(
        '#!/bin/sh\ncase "$1" in -dump*) echo 13.2.0;; *) echo "no cc1plus" >&2; exit 1;; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))
    with pytest.raises(PreflightError, match=r"13\.2\.0 fails: no cc1plus"):
        preflight(configured(tmp_path))


def test_compiler_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "old-g++"
    program.write_text('#!/bin/sh\ncase "$1" in -dump*) echo 7.5.0;; esac\n')
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))
    with pytest.raises(PreflightError, match=r"old-g\+\+ 7\.5\.0, wanted .* g\+\+ 9 or newer"):
        preflight(configured(tmp_path))


def test_sizes(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match=r"disk: .* GB free, wanted .*memory: .* available"):
        preflight(configured(tmp_path), Footprint(10**13, 0, 0))


@pytest.mark.parametrize("footprint", [Footprint(0, 10**13, 0), Footprint(0, 0, 10**13)])
def test_caches_and_workspace_count(tmp_path: Path, footprint: Footprint) -> None:
    with pytest.raises(PreflightError, match=r"^memory: .* GB available, wanted 1000\d\.\d GB"):
        preflight(configured(tmp_path), footprint)


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="absent does not exist, wanted an existing folder"):
        preflight(configured(tmp_path, output=str(tmp_path / "absent" / "m.ygg")))
    with pytest.raises(PreflightError, match="is a directory, wanted a file name"):
        preflight(configured(tmp_path, output=str(tmp_path)))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_folder(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(PreflightError, match="locked is not writable"):
        preflight(configured(tmp_path, output=str(tmp_path / "locked" / "m.ygg")))


def plan(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "yggc", "build", "--dry-run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_dry_run(llama_dir: Path, tmp_path: Path) -> None:
    work = ("--work-dir", str(tmp_path / "work"))
    output = ("-o", str(tmp_path / "m.ygg"))
    result = plan("--gpu", "a100", "--verifier", str(llama_dir), *output, *work, "--json")
    assert result.returncode == 0, result.stderr
    planned = json.loads(result.stdout)
    assert planned["config"]["dtype"] == "bfloat16"
    assert planned["config"]["max_model_len"] == 128
    assert planned["estimate"]["graphs"][0] == "verify_001"
    assert planned["estimate"]["compile_s"] > 0
    assert not (tmp_path / "m.ygg").exists()


def test_dry_run_knows_quantised_bytes(llama_dir: Path, tmp_path: Path) -> None:
    common = ("--gpu", "cpu", "--verifier", str(llama_dir), "-o", str(tmp_path / "m.ygg"))
    common += ("--work-dir", str(tmp_path / "work"), "--json")
    planned = {}
    for flags in ((), ("--quant", "int8"), ("--quant", "int4", "--kv-dtype", "int8")):
        result = plan(*common, *flags)
        assert result.returncode == 0, result.stderr
        planned[flags[1:2]] = json.loads(result.stdout)
    sizes = [planned[key]["estimate"] for key in ((), ("int8",), ("int4",))]
    weights = [size["weights_bytes"] for size in sizes]
    assert 3.5 < weights[0] / weights[1] < 4
    assert weights[1] > weights[2]
    # 16 codes and a scale in place of 16 floats
    assert sizes[0]["kv_bytes"] * 20 == sizes[2]["kv_bytes"] * 64
    assert planned["int4",]["config"]["activations"] == "int8"
    assert any("activations: auto is int8" in note for note in sizes[2]["notes"])


def test_refusals_of_the_model_are_one_line_and_a_tip(llama_dir: Path, tmp_path: Path) -> None:
    common = ("--gpu", "cpu", "--verifier", str(llama_dir), "-o", str(tmp_path / "m.ygg"))
    for flags in (("--quant", "keep"), ("--activations", "int8"), ("--kv-dtype", "fp8")):
        refused = plan(*common, "--work-dir", str(tmp_path / "work"), *flags)
        assert refused.returncode == 2
        error, tip = [
            line for line in refused.stderr.splitlines() if line.startswith(("ERROR", "TIP"))
        ]
        assert error.startswith("ERROR ")
        assert tip.startswith("TIP ")


def test_file_size_limit_is_not_taken_for_a_full_disk(llama_dir: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    command = [sys.executable, "-m", "yggc", "build", "--gpu", "cpu", "--verifier", str(llama_dir)]
    command += ["-o", str(tmp_path / "m.ygg"), "--work-dir", str(work), "--stop-after", "load"]
    limited = ["sh", "-c", 'ulimit -f 2; exec "$@"', "sh", *command]
    # A compiler of its own would meet the limit first.
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\necho 13.2.0\n")
    compiler.chmod(0o755)
    env = {**os.environ, "CXX": str(compiler)}
    done = subprocess.run(limited, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 2, done.stderr
    *_, error, tip = done.stderr.splitlines()
    assert error.startswith("ERROR a stage output cannot grow: this process may write files of")
    assert "ulimit -f unlimited" in tip
    assert not list((work / "load").iterdir())


def test_dry_run_of_a_wheel_fetches_nothing(tmp_path: Path) -> None:
    work = ("--work-dir", str(tmp_path / "work"))
    source = "pypi:tiny-model==1.0#tiny_model/tiny.gguf"
    result = plan("--gpu", "cpu", "--verifier", source, "-o", str(tmp_path / "m.ygg"), *work)
    assert result.returncode == 0, result.stderr
    assert "the model is not here yet" in result.stderr


def test_the_demo_makes_the_folder_it_writes_to() -> None:
    """A fresh clone has no `.cache`, and a build refuses a folder that does not exist."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        ["make", "-n", "demo"], cwd=root, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    [build] = [number for number, line in enumerate(lines) if "yggc build" in line]
    output = Path(lines[build].split(" -o ")[1].split()[0])
    assert any(line == f"mkdir -p {output.parent}/" for line in lines[:build])
