"""Which bundles `yggc matrix` wants built again: a real bundle beside its recipe, and copies of
its manifest under other names beside theirs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bundles
import msgspec
import pytest

from yggc.config import for_target, load_config
from yggc.inputs import build_inputs
from yggc.matrix import build_matrix

pytestmark = pytest.mark.tiny

ARTIFACTS = bundles.ROOT / "artifacts"
RECIPE = ARTIFACTS / "recipes/tiny-cpu.toml"
PAIR = ARTIFACTS / "recipes/llama-2-7b-llama-68m.toml"


@pytest.fixture(scope="module")
def bundle() -> Path:
    return bundles.tiny_recipe()


@pytest.fixture(scope="module")
def manifest(bundle: Path) -> dict[str, Any]:
    with zipfile.ZipFile(bundle) as archive:
        found: dict[str, Any] = json.loads(archive.read("manifest.json"))
    return found


class Lab:
    """Three recipes, the last of which is for two targets and has a model of its own; and
    manifests of the four bundles that were made of them.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.recipes = [folder / f"{name}.toml" for name in ("one", "two", "three")]
        text = RECIPE.read_text().replace("../models/tiny-llama", "./shared")
        for name in ("shared", "own"):
            shutil.copytree(ARTIFACTS / "models/tiny-llama", folder / name)
        self.recipes[0].write_text(text.replace('"tiny-cpu"', '"one"'))
        self.recipes[1].write_text(text.replace('"tiny-cpu"', '"two"'))
        several = text.replace('"tiny-cpu"', '"three-{target}"').replace("./shared", "./own")
        self.recipes[2].write_text(several.replace('"cpu"', '["cpu", "h100"]'))
        self.manifests: dict[str, dict[str, Any]] = {}
        asked = [*((recipe, "cpu") for recipe in self.recipes), (self.recipes[2], "h100")]
        for recipe, target in asked:
            config = for_target(load_config(recipe, {"target": target})[0], target)
            one = json.loads(json.dumps(manifest))
            one["name"], one["target"]["name"] = config.name, target
            if target == "h100":
                # Made of other operators than the bundle that the copies are of.
                one["inputs"] = msgspec.to_builtins(build_inputs(config))
            self.manifests[config.name] = one

    def against(self) -> list[Path]:
        paths = []
        for name, one in self.manifests.items():
            path = self.folder / f"{name}.json"
            path.write_text(json.dumps(one))
            paths.append(path)
        return paths

    def changed(self) -> dict[str, tuple[str, ...]]:
        """Reasons by name of the entries that have changed."""
        entries, unknown = build_matrix(self.recipes, self.against())
        assert not unknown
        assert [entry.target for entry in entries] == ["cpu", "cpu", "cpu", "h100"]
        assert all(entry.changed == bool(entry.reasons) for entry in entries)
        return {entry.name: entry.reasons for entry in entries if entry.changed}


@pytest.fixture
def lab(tmp_path: Path, manifest: dict[str, Any]) -> Lab:
    return Lab(tmp_path, manifest)


def matrix(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "yggc", "matrix", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_bundle_is_its_recipes(bundle: Path) -> None:
    [entry], unknown = build_matrix([RECIPE], [bundle])
    assert (entry.name, entry.target, entry.changed) == ("tiny-cpu", "cpu", False)
    assert not unknown


def test_nothing_has_changed(lab: Lab) -> None:
    assert lab.changed() == {}


def test_one_recipe(lab: Lab) -> None:
    text = lab.recipes[1].read_text()
    lab.recipes[1].write_text(f"# A comment changes nothing.\n{text}")
    assert lab.changed() == {}
    lab.recipes[1].write_text(text.replace("max_model_len = 256", "max_model_len = 128"))
    assert lab.changed() == {"two": ("recipe: max_model_len is 128, was 256",)}
    lab.recipes[1].write_text(text.replace('"ngram"', '"self:1+ngram"'))
    assert lab.changed() == {"two": ("recipe: drafter is self:1+ngram, was ngram",)}


def test_one_source(lab: Lab) -> None:
    weights = lab.folder / "own/model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    changed = lab.changed()
    assert changed.keys() == {"three-cpu", "three-h100"}
    for [reason] in changed.values():
        assert reason.startswith("verifier: model.safetensors has sha256 ")
    (lab.folder / "own/chat_template.jinja").unlink()
    assert "chat_template.jinja is gone" in lab.changed()["three-cpu"][0]


def test_calibration_prompts_count_by_their_bytes(lab: Lab) -> None:
    prompts = lab.folder / "prompts.jsonl"
    shutil.copy(ARTIFACTS / "prompts/calibration.jsonl", prompts)
    text = lab.recipes[0].read_text()
    lab.recipes[0].write_text(f'{text}calibration = "./prompts.jsonl"\n')
    assert lab.changed() == {}
    prompts.write_text(prompts.read_text() + "\n")
    [reason] = lab.changed()["one"]
    assert reason.startswith("recipe: calibration is ")


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda one: one.update(built_by="yggc 0.0.9"), "compiler: yggc 0.1.0, was yggc 0.0.9"),
        (
            lambda one: one["inputs"].update(compiler_digest="0" * 64),
            "compiler: sources ",
        ),
        (
            lambda one: one["target"]["must_match"].update(torch="2.12.0+cpu"),
            "torch: 2.13.0, was 2.12.0",
        ),
        (lambda one: one["inputs"].update(transformers="5.0.0"), "transformers: 5."),
        (lambda one: one.update(inputs=None, format_version=5), "recipe: format 5 of the bundle"),
    ],
    ids=["compiler", "sources", "torch", "transformers", "older format"],
)
def test_one_bundle_of_another_compiler(
    lab: Lab, edit: Callable[[dict[str, Any]], None], reason: str
) -> None:
    edit(lab.manifests["two"])
    [(name, reasons)] = lab.changed().items()
    assert name == "two"
    [found] = reasons
    assert found.startswith(reason)


def test_operators_of_one_kind_of_device(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited = shutil.copytree(bundles.ROOT / "kernels", tmp_path / "kernels")
    with (edited / "triton/linear.py").open("a") as file:
        file.write("# edited\n")
    monkeypatch.setattr("yggc.inputs.TRITON_DIR", edited / "triton")
    assert lab.changed().keys() == {"three-h100"}
    monkeypatch.undo()
    with (edited / "cpu/linear.h").open("a") as file:
        file.write("// edited\n")
    monkeypatch.setattr("yggc.inputs.OPERATOR_SOURCES", tuple(sorted(edited.glob("cpu/*"))))
    assert lab.changed().keys() == {"one", "two", "three-cpu"}


def test_torch_for_another_device_is_the_same_version(lab: Lab) -> None:
    match = lab.manifests["three-h100"]["target"]["must_match"]
    match["torch"] = match["torch"].partition("+")[0] + "+cu130"
    assert lab.changed() == {}


def test_threads_of_auto_are_the_building_machines(lab: Lab) -> None:
    lab.manifests["one"]["inputs"]["options"]["threads"] = 999
    assert lab.changed() == {}
    lab.recipes[0].write_text(lab.recipes[0].read_text() + "threads = 3\n")
    assert lab.changed() == {"one": ("recipe: threads is 3, was 999",)}


def test_models_on_the_hub_by_their_commits(lab: Lab) -> None:
    """Without a hub: a commit says which files they are."""
    config = for_target(load_config(PAIR, {"target": "a100"})[0], "a100")
    sources = []
    for role, text in (("verifier", config.verifier), ("drafter", config.draft_model)):
        repo, _, commit = text.partition("@")
        sources.append({"role": role, "kind": "hub", "location": repo, "revision": commit,
                        "license": "", "files": []})  # fmt: skip
    one = lab.manifests["one"]
    one["name"], one["target"]["name"], one["sources"] = config.name, "a100", sources
    one["inputs"] = msgspec.to_builtins(build_inputs(config))
    path = lab.folder / "pair.json"

    def entries(recipe: Path) -> dict[str, tuple[str, ...]]:
        path.write_text(json.dumps(one))
        return {entry.name: entry.reasons for entry in build_matrix([recipe], [path])[0]}

    found = entries(PAIR)
    assert found.pop(config.name) == ()
    assert set(found.values()) == {("no bundle before",)}
    sources[1]["revision"] = "f" * 40
    [reason] = entries(PAIR)[config.name]
    assert reason == "drafter: JackFram/llama-68m is at 964a5d77df90, was at ffffffffffff"
    recipe = lab.folder / "pair.toml"
    recipe.write_text(PAIR.read_text().replace(config.verifier, "meta-llama/Llama-2-7b-hf"))
    assert "it is not pinned to a commit" in entries(recipe)[config.name][0]


def test_what_a_ci_matrix_takes(lab: Lab, bundle: Path) -> None:
    paths = lab.against()
    lab.recipes[1].write_text(lab.recipes[1].read_text().replace("256", "128"))
    done = matrix(*lab.recipes, "--against", *paths, "--json")
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    found = json.loads(line)
    assert list(found) == ["include"]
    assert [entry["changed"] for entry in found["include"]] == [False, True, False, False]
    assert found["include"][1] == {
        "recipe": str(lab.recipes[1]),
        "target": "cpu",
        "name": "two",
        "changed": True,
        "reasons": ["recipe: max_model_len is 128, was 256"],
    }
    repeated = [part for path in paths for part in ("--against", path)]
    only = matrix(*lab.recipes, *repeated, "--json", "--changed-only")
    assert json.loads(only.stdout) == {"include": [found["include"][1]]}
    for target, names in (("h100", ["three-h100"]), ("cpu", ["one", "two", "three-cpu"])):
        of_target = matrix(*lab.recipes, *repeated, "--json", "--target", target)
        shown = [entry["name"] for entry in json.loads(of_target.stdout)["include"]]
        assert shown == names
    unknown = matrix(*lab.recipes, *repeated, "--json", "--target", "h1000")
    assert unknown.returncode == 2
    assert "h1000" in unknown.stderr
    folder = lab.folder / "before"
    folder.mkdir()
    shutil.copy(bundle, folder)
    (folder / "notes.txt").write_text("no bundle")
    plain = matrix(RECIPE, "--against", folder)
    assert plain.stdout == f"tiny-cpu ({RECIPE}, cpu): unchanged\n"
    stray = matrix(lab.recipes[0], "--against", folder)
    assert "no bundle before" in stray.stdout
    assert "tiny-cpu for cpu is of no recipe here" in stray.stderr


def test_refusals_are_one_line_and_a_tip(lab: Lab, bundle: Path) -> None:
    first, second = lab.against()[:2]
    broken = lab.folder / "broken.toml"
    broken.write_text("name =")
    wrong = lab.folder / "wrong.toml"
    wrong.write_text(RECIPE.read_text().replace('"cpu"', '"a1000"'))
    cut = lab.folder / "cut.ygg"
    cut.write_bytes(bundle.read_bytes()[:5000])
    gone = lab.folder / "gone.toml"
    gone.write_text(lab.recipes[0].read_text().replace("./shared", "./nowhere"))
    recipe = lab.recipes[0]
    same = lab.folder / "same.json"
    shutil.copy(first, same)
    for arguments, message in (
        ((broken,), "cannot be read as TOML"),
        ((wrong,), "unknown target 'a1000'"),
        ((lab.folder / "none.toml",), "no such file"),
        ((recipe, recipe), "both make 'one' for cpu"),
        ((recipe, "--against", cut), "truncated"),
        ((recipe, "--against", lab.folder / "none.ygg"), "cannot be opened"),
        ((recipe, "--against", RECIPE), "wanted a bundle"),
        ((recipe, "--against", first, second, same), "are both 'one' for cpu"),
        ((gone, "--against", first), "no such file or directory"),
        ((recipe, bundle), "is no recipe, wanted .toml files"),
    ):
        done = matrix(*arguments, "--json")
        assert done.returncode == 2, done.stdout
        assert done.stdout == ""
        error, tip = done.stderr.splitlines()
        assert error.startswith("ERROR ")
        assert message in error
        assert tip.startswith("TIP ")
