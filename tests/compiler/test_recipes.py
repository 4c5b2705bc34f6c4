"""Every shipped recipe can be planned where neither its target nor its models are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from yggc.config import for_target, load_config, recipe_targets
from yggc.dry_run import check_fit
from yggc.estimate import CUDA_BYTES, Estimate, estimate
from yggc.models.shipped import find_shipped, shipped_configs
from yggrt.core.errors import TargetError

RECIPES = sorted((Path(__file__).parents[2] / "artifacts" / "recipes").glob("*.toml"))
BY_NAME = {path.stem: path for path in RECIPES}


def plan(*arguments: str | Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """A dry run to which every index and hub is closed."""
    closed = "http://127.0.0.1:9"
    env = {**os.environ, "HF_ENDPOINT": closed, "PIP_INDEX_URL": closed}
    env |= {"HF_HOME": str(tmp_path / "hub")}
    command = [sys.executable, "-m", "yggc", "build", *map(str, arguments), "--dry-run"]
    command += ["--work-dir", str(tmp_path / "work")]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=env, cwd=tmp_path
    )


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_dry_run_needs_no_target_and_no_download(recipe: Path, tmp_path: Path) -> None:
    done = plan(recipe, "--json", tmp_path=tmp_path)
    assert done.returncode == 0, done.stderr
    planned = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["config"]["target"] for one in planned] == list(recipe_targets(recipe))
    for one in planned:
        needs = one["estimate"]
        assert "verify_001" in needs["graphs"]
        assert needs["fits"]
        for key in ("compile_s", "memory_bytes", "output_bytes", "work_bytes", "weights_bytes"):
            assert needs[key] > 0, key
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".whl", ".ygg", ".gguf")]
    assert not (tmp_path / "hub").exists()


def planned(name: str, target: str, tmp_path: Path, **flags: Any) -> tuple[Any, Estimate]:
    asked = {"target": target, "work_dir": str(tmp_path), "jobs": 1, **flags}
    return estimate(for_target(load_config(BY_NAME[name], asked)[0], target))


def test_pair_on_a_gpu_by_hand(tmp_path: Path) -> None:
    config, needs = planned("llama-2-7b-llama-68m", "a100", tmp_path)
    assert (config.dtype, config.kv_dtype) == ("bfloat16", "bfloat16")
    assert needs.num_parameters == 6_738_415_616
    small = 2 * 32000 * 768 + 2 * (4 * 768**2 + 3 * 768 * 3072 + 2 * 768) + 768
    assert needs.weights_bytes == 2 * (6_738_415_616 + small)
    # Keys and values of two bytes, 2048 tokens and the largest graph's 256 rows.
    assert needs.kv_bytes == (2048 + 256) * 2 * 2 * (32 * 4096 + 2 * 768)
    parts = needs.weights_bytes + needs.kv_bytes + needs.workspace_bytes
    assert needs.device_bytes == parts + CUDA_BYTES
    assert needs.device_memory_bytes == 40 * 10**9


@pytest.mark.parametrize(
    ("name", "parameters", "intermediate", "layers"),
    [
        ("llama-3.1-8b-eagle3", 8_030_261_248, 14336, 32),
        ("qwen3-8b-eagle3", 8_190_735_360, 12288, 36),
    ],
)
def test_head_on_a_gpu_by_hand(
    name: str, parameters: int, intermediate: int, layers: int, tmp_path: Path
) -> None:
    _, needs = planned(name, "h100", tmp_path)
    assert needs.num_parameters == parameters
    size, narrow, ids = 4096, 1024, 32000
    head = 3 * size * size + 2 * size * (size + 2 * narrow) + size * size
    head += 3 * size * intermediate + ids * size
    assert needs.weights_bytes == pytest.approx(2 * (parameters + head), rel=1e-5)
    assert needs.kv_bytes == (8192 + 256) * 2 * 2 * narrow * (layers + 1)


def test_what_the_wheel_holds_is_planned_as_if_it_were_here(tmp_path: Path) -> None:
    """135 M parameters of 5 bits, and of 8 and a half in the vocabulary's matrix."""
    config, needs = planned("smollm2-135m-cpu", "cpu", tmp_path, drafter="ngram")
    assert (config.quant, config.activations) == ("keep", "int8")
    vocabulary = 49152 * 576
    wanted = (needs.num_parameters - vocabulary) * 5 / 8 + vocabulary * 8.5 / 8
    assert needs.weights_bytes == pytest.approx(wanted, rel=0.01)
    assert needs.device_bytes == needs.device_memory_bytes == 0


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    recipe = BY_NAME["llama-2-13b-llama-68m"]
    refused = plan(recipe, "--gpu", "t4", tmp_path=tmp_path)
    assert refused.returncode == 2
    *_, error, tip = refused.stderr.splitlines()
    assert error.startswith("ERROR llama-2-13b-llama-68m-t4 does not fit t4: it takes weights 26.")
    assert error.endswith("the NVIDIA T4 has 16 GB")
    assert "--quant int8 or int4" in tip
    assert "a100" in tip
    small = plan(recipe, "--gpu", "t4", "--quant", "int4", tmp_path=tmp_path)
    assert small.returncode == 0, small.stderr
    assert "device memory: about" in small.stdout
    both = [planned(recipe.stem, target, tmp_path) for target in ("t4", "a100", "l4")]
    with pytest.raises(TargetError) as refusal:
        check_fit(both)
    assert refusal.value.message.count("does not fit") == 2


def test_a_model_that_is_nowhere_is_no_error(tmp_path: Path) -> None:
    done = plan("--verifier", "org/model", "--gpu", "h200", "-o", "m.ygg", tmp_path=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the model is not here yet" in done.stderr
    assert "graphs: verify_001" in done.stdout


def test_a_real_build_wants_one_target(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "yggc", "build", str(BY_NAME["qwen3-8b-eagle3"])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert "is for a100, a40, h100, h200, a build is for one of them" in done.stderr
    assert done.stderr.splitlines()[-1] == "TIP name it with --gpu"


def test_every_configuration_says_where_it_is_from() -> None:
    used = "".join(path.read_text() for path in RECIPES)
    for folder, stated in shipped_configs():
        assert stated.read_from, folder
        assert stated.license, folder
        assert stated.source in used, f"{folder} is of no recipe"
        assert stated.revision in used, f"{folder} is of another revision than its recipe's"
        assert find_shipped(stated.source, stated.revision) == (folder, stated)
        assert find_shipped(stated.source, "0" * 40) is None
