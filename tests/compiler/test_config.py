"""Recipes and flags: one configuration, every auto resolved, every mistake named."""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path

import msgspec
import pytest

from yggc import cli
from yggc.config import (
    OPTIONS,
    BuildConfig,
    buckets_up_to,
    for_target,
    load_config,
    recipe_targets,
    resolve_for_model,
)
from yggc.errors import RecipeError
from yggrt.cores import usable_cores

RECIPES = Path(__file__).parents[2] / "artifacts" / "recipes"
NEEDED = {"verifier": "m.gguf", "output": "out/m.ygg", "target": "cpu"}


def recipe(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    return path


def test_defaults() -> None:
    config, notes = load_config(None, NEEDED)
    assert config.name == "m"
    assert config.drafter == "ngram"
    assert config.buckets == (1, 4, 8, 16)
    assert (config.prefill_buckets, config.max_depth, config.graphs) == ((64, 256), 8, "static")
    assert 1 <= config.threads <= len(os.sched_getaffinity(0))
    assert config.threads == usable_cores()
    assert 1 <= config.jobs <= config.threads
    assert [note.partition(":")[0] for note in notes] == ["threads", "jobs"]


def test_buckets_by_their_largest() -> None:
    assert buckets_up_to(128) == [1, 4, 8, 16, 32, 64, 128]
    assert buckets_up_to(20) == [1, 4, 8, 16, 20]
    assert [buckets_up_to(rows) for rows in (1, 3, 4, None)] == [[1], [1, 3], [1, 4], None]


def test_flags_override_the_recipe(tmp_path: Path) -> None:
    path = recipe(
        tmp_path,
        'verifier = "./m.gguf"\noutput = "a.ygg"\ntarget = "cpu"\nthreads = 3\njobs = 2\n'
        'dtype = "bfloat16"\nbuckets = [1, 2]\n',
    )
    config, notes = load_config(path, {"threads": 5, "output": None})
    assert (config.threads, config.output, config.dtype) == (5, "a.ygg", "bfloat16")
    assert config.buckets == (1, 2)
    assert config.verifier == str(tmp_path / "m.gguf")
    assert notes == []


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_recipes(path: Path) -> None:
    targets = recipe_targets(path)
    assert targets == ("cpu",) or len(targets) == 4
    for target in targets:
        config = for_target(load_config(path, {"target": target})[0], target)
        assert config.name == (path.stem if target == "cpu" else f"{path.stem}-{target}")
        assert config.output == f"{config.name}.ygg"


def test_one_build_is_for_one_of_a_recipes_targets(tmp_path: Path) -> None:
    lines = 'verifier = "m.gguf"\noutput = "m-{target}.ygg"\n'
    several = recipe(tmp_path, f'{lines}target = ["a100", "h100"]\n')
    assert recipe_targets(several) == ("a100", "h100")
    with pytest.raises(RecipeError, match="is for a100, h100, a build is for one of them"):
        load_config(several, {})
    config, _ = load_config(several, {"target": "l4"})
    assert for_target(config, config.target).output == "m-l4.ygg"
    assert load_config(recipe(tmp_path, f'{lines}target = ["cpu"]\n'), {})[0].target == "cpu"
    for wrong in ('["a100", 3]', '["a100", "a100"]', "7"):
        with pytest.raises(RecipeError, match="wanted a name or a list of different names"):
            recipe_targets(recipe(tmp_path, f"{lines}target = {wrong}\n"))
    assert recipe_targets(recipe(tmp_path, lines)) == recipe_targets(None) == ()


def test_autos_on_a_gpu() -> None:
    config, _ = load_config(None, NEEDED | {"target": "h100", "quant": "int8"})
    resolved, notes = resolve_for_model(
        config, model_limit=512, stored_dtype="float32", is_gguf=False
    )
    assert (resolved.dtype, resolved.kv_dtype) == ("bfloat16", "bfloat16")
    assert resolved.activations == "float32"
    assert "dtype: auto is bfloat16, for a GPU" in notes


def test_unknown_key_lists_the_known(tmp_path: Path) -> None:
    path = recipe(tmp_path, 'buckts = [1]\nverifier = "x"\n')
    with pytest.raises(RecipeError, match="unknown key 'buckts'; known are") as refusal:
        load_config(path, {})
    assert all(key in refusal.value.message for key in OPTIONS)
    assert refusal.value.tip == "did you mean 'buckets'?"
    with pytest.raises(RecipeError, match="unknown key 'xyzzy'") as refusal:
        load_config(None, {"xyzzy": 1})
    assert "--help" in (refusal.value.tip or "")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threads": "two"}, "threads is 'two': expected `int`, got `str`"),
        ({"threads": 0}, "threads is 0, wanted at least 1"),
        ({"dtype": "float16"}, "dtype is 'float16': wanted auto or float32 or bfloat16"),
        ({"quant": "gptq"}, "quant is 'gptq': wanted auto or none or int8 or int4 or keep"),
        ({"activations": "int4"}, "activations is 'int4': wanted auto or float32 or int8"),
        ({"kv_dtype": "fp8"}, "kv_dtype is 'fp8': wanted auto or float32 or bfloat16 or int8"),
        ({"buckets": [1, "x"]}, r"buckets is \[1, 'x'\]"),
        ({"buckets": [4, 8]}, r"buckets is \[4, 8\], wanted ascending"),
        ({"buckets": [1, 8, 4]}, "wanted ascending"),
        ({"graphs": "both"}, "graphs is 'both'"),
        ({"drafter": "self:none"}, "drafter is 'self:none', wanted self:LAYERS"),
        ({"drafter": "self:0"}, "drafter is 'self:0', wanted self:LAYERS"),
        ({"drafter_quant": "int8"}, "drafter_quant is 'int8', but ngram drafts"),
        ({"drafter_sha256": "0" * 64}, "but ngram drafts, no model"),
        ({"drafter": "org/small", "drafter_sha256": "abc"}, "drafter_sha256 is 'abc', wanted 64"),
        ({"drafter": "self", "drafter_widths": [4, 8]}, r"drafter_widths is \[4, 8\]"),
        ({"drafter": "self", "drafter_widths": [1]}, "at least two ascending numbers"),
        ({"drafter": "self", "drafter_widths": [1, 200]}, "make 1601 rows, wanted at most 999"),
        ({"tree": "egt:width=4,depth=4,verify=32"}, "verifies 32 rows, the largest bucket has 16"),
        ({"tree": "bush"}, "tree: .*bush"),
        ({"tree": "sequence:depth=4;tail=ahead"}, "no model with rows of its own drafts"),
        ({"drafter": "self", "tree": "sequence:depth=4;streams=2"}, "streams is 2, there is 1"),
        ({"drafter": "self", "tree": "sequence:depth=4;head_rows=4"}, "the same as the default$"),
        (
            {"drafter": "self", "tree": "egt:width=8,depth=5,verify=16"},
            "runs 33 nodes through the drafter, its graphs hold 29",
        ),
        ({"verifier_sha256": "abc"}, "64 hexadecimal digits"),
        ({"max_model_len": -1}, "max_model_len is -1"),
        ({"verifier": None}, "no verifier"),
        ({"output": None}, "no output"),
        ({"target": None}, "no target"),
    ],
)
def test_refusals(changes: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message) as refusal:
        load_config(None, NEEDED | changes)
    assert refusal.value.tip


def test_missing_and_broken_recipe(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no such file"):
        load_config(tmp_path / "none.toml", {})
    with pytest.raises(RecipeError, match="cannot be read as TOML"):
        load_config(recipe(tmp_path, "threads ="), {})
    (tmp_path / "recipe.toml").write_bytes(b'name = "\xff"')
    with pytest.raises(RecipeError, match="cannot be read as TOML"):
        load_config(tmp_path / "recipe.toml", {})


@pytest.mark.parametrize(
    ("stored", "is_gguf", "dtype"),
    [
        ("float32", False, "float32"),
        ("bfloat16", False, "bfloat16"),
        ("float16", False, "bfloat16"),
        ("float32", True, "float32"),
    ],
)
def test_auto_dtype(stored: str, is_gguf: bool, dtype: str) -> None:
    config, _ = load_config(None, NEEDED)
    resolved, notes = resolve_for_model(
        config, model_limit=512, stored_dtype=stored, is_gguf=is_gguf
    )
    assert (resolved.dtype, resolved.max_model_len) == (dtype, 512)
    assert (resolved.quant, resolved.activations, resolved.kv_dtype) == (
        "none",
        "float32",
        "float32",
    )
    assert len(notes) == 2 + is_gguf


@pytest.mark.parametrize(
    ("asked", "is_quantised", "quant", "activations"),
    [
        ({}, True, "keep", "int8"),
        ({"activations": "float32"}, True, "keep", "float32"),
        ({"quant": "keep"}, True, "keep", "int8"),
        ({"quant": "none"}, True, "none", "float32"),
        ({"quant": "int4"}, True, "int4", "int8"),
        ({"quant": "int8", "activations": "int8"}, False, "int8", "int8"),
        ({}, False, "none", "float32"),
    ],
)
def test_auto_quant(
    asked: dict[str, str], is_quantised: bool, quant: str, activations: str
) -> None:
    config, _ = load_config(None, NEEDED | asked)
    resolved, notes = resolve_for_model(
        config,
        model_limit=512,
        stored_dtype="float32",
        is_gguf=is_quantised,
        is_quantised=is_quantised,
    )
    assert (resolved.quant, resolved.activations) == (quant, activations)
    said = "".join(notes)
    assert ("activations: auto is int8" in said) == (
        activations == "int8" and "activations" not in asked
    )
    assert ("quant: auto" in said) == ("quant" not in asked and is_quantised)


@pytest.mark.parametrize(
    ("asked", "is_gguf", "message"),
    [
        (
            {"quant": "keep"},
            False,
            "quant is keep, wanted a GGUF file.*the verifier is no such file",
        ),
        ({"quant": "keep"}, True, "quant is keep, .*has no matrix that can be kept"),
        ({"activations": "int8"}, False, "activations is int8, wanted quantised matrices"),
        ({"activations": "int8", "quant": "none"}, True, "quant is none"),
    ],
)
def test_refused_for_the_model(asked: dict[str, str], is_gguf: bool, message: str) -> None:
    config, _ = load_config(None, NEEDED | asked)
    with pytest.raises(RecipeError, match=message) as refusal:
        resolve_for_model(config, model_limit=512, stored_dtype="float32", is_gguf=is_gguf)
    assert refusal.value.tip


def test_length_of_the_model() -> None:
    config, _ = load_config(None, NEEDED | {"max_model_len": 4096})
    with pytest.raises(RecipeError, match="max_model_len is 4096, the model allows 2048"):
        resolve_for_model(config, model_limit=2048, stored_dtype="float32", is_gguf=False)
    auto, _ = load_config(None, NEEDED | {"max_model_len": "auto"})
    resolved, _ = resolve_for_model(auto, model_limit=8192, stored_dtype="float32", is_gguf=False)
    assert resolved.max_model_len == 2048


def test_packable_leaves_this_machine_out() -> None:
    config, _ = load_config(None, NEEDED)
    packed = config.packable()
    assert {"output", "work_dir", "jobs"}.isdisjoint(packed)
    assert json.loads(json.dumps(packed))["buckets"] == [1, 4, 8, 16]
    again = packed | {"output": "x", "work_dir": "y", "jobs": 1}
    assert msgspec.convert(again, BuildConfig).threads == config.threads


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"graphs": "dynamic", "buckets": [1, 3]}, "largest bucket 3, wanted 1 or at least 4"),
        ({"prefill_buckets": [256, 2560]}, "a bucket of 2560 rows, wanted at most 999"),
        ({"prefill_buckets": [256, 64]}, "ascending row counts"),
        ({"max_model_len": 1}, "max_model_len is 1, wanted at least 2"),
    ],
)
def test_row_counts_that_no_graph_can_have(changes: dict[str, object], message: str) -> None:
    flags = {"verifier": "m", "output": "m.ygg", "target": "cpu", **changes}
    with pytest.raises(RecipeError, match=message):
        load_config(None, flags)


def test_a_profile_takes_every_flag_that_its_build_may_have() -> None:
    """Its fingerprint covers what the graphs depend on: a flag that it lacked could not be met."""
    after_profiling = {"tree", "objective", "profile", "calibration", "calibration_tokens"}
    of_builds_alone = after_profiling | {"stop_after", "dry_run", "policies"}
    taken = [set(inspect.signature(one).parameters) for one in (cli.profile_command, cli.build)]
    assert taken[0] == taken[1] - of_builds_alone


def test_paths_are_packed_as_the_recipe_writes_them(tmp_path: Path) -> None:
    recipe = tmp_path / "deep" / "recipe.toml"
    recipe.parent.mkdir()
    recipe.write_text(
        'verifier = "../model"\ndrafter = "./small+ngram"\ncalibration = "/prompts.jsonl"\n'
        'output = "m.ygg"\ntarget = "cpu"\n'
    )
    config, _ = load_config(recipe, {})
    assert config.verifier == str(tmp_path / "model")
    packed = config.packable()
    assert packed["verifier"] == "../model"
    assert packed["drafter"] == "./small+ngram"
    assert packed["calibration"] == "/prompts.jsonl"
    assert str(tmp_path) not in json.dumps(packed)
    assert "recipe_paths" not in packed
    flagged, _ = load_config(recipe, {"verifier": "other"})
    assert flagged.packable()["verifier"] == "other"
    with pytest.raises(RecipeError, match="unknown key 'recipe_paths'"):
        load_config(None, NEEDED | {"recipe_paths": {}})
