"""`yggrt tune`, `yggrt doctor` and `yggc profile` on real bundles of a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import bundles
import msgspec
import pytest
from bundle.small import FILES, manifest, sources

from yggrt.bundle import Bundle, write_bundle
from yggrt.core.schema import FORMAT_VERSION

pytestmark = pytest.mark.tiny


def command(package: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", package, *map(str, arguments)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def opened(path: Path) -> Any:
    with Bundle.open(path) as bundle:
        weights = {name: b"".join(bundle.weight_chunks(name)) for name in bundle.manifest.weights}
        code = {
            name: one.sha256
            for name, one in bundle.manifest.members.items()
            if name != "weights.safetensors"
        }
        return bundle.manifest, weights, code


def test_a_tuned_bundle_has_new_times_and_the_same_weights_and_answers(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    out = tmp_path / "tuned.ygg"
    done = command("yggrt", "tune", tiny_bundle, "-o", out, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["tree"]["after"] in [one["tree"] for one in report["candidates"]]
    before, old_weights, old_code = opened(tiny_bundle)
    after, new_weights, new_code = opened(out)
    assert new_weights == old_weights
    assert new_code == old_code
    assert after.format_version == FORMAT_VERSION
    assert (after.graphs, after.golden, after.text) == (before.graphs, before.golden, before.text)
    assert after.target.must_match == before.target.must_match
    assert after.target.tuned_for.read_bandwidth > 0
    contexts = {point.context for point in after.latency}
    assert contexts == {4, 32, 128, 255}
    verify = {graph.name for graph in after.graphs if graph.kind == "verify"}
    assert {p.rows for p in after.latency if p.graph in verify} == {1, 4, 16, 64}
    assert after.profile.num_rounds >= 2
    assert after.schedule.recordings == before.schedule.recordings
    measured = [one for one in after.schedule.candidates if one.measured_tpot_ms]
    assert measured[0].tree == after.schedule.tree
    assert {"plain", after.schedule.tree} <= {one.tree for one in measured}
    verified = command("yggrt", "verify", out)
    assert verified.returncode == 0, verified.stderr
    assert "all equal" in verified.stdout


def test_a_tree_can_be_kept_and_a_bundle_replaced_by_its_tuned_self(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    out = tmp_path / "copy.ygg"
    out.write_bytes(tiny_bundle.read_bytes())
    tree = "sequence:depth=3"
    done = command("yggrt", "tune", out, "-o", out, "--tree", tree, "--objective", "lagrangian")
    assert done.returncode == 0, done.stderr
    schedule = opened(out)[0].schedule
    assert (schedule.tree, schedule.objective) == (tree, "lagrangian")
    assert schedule.rate > 0
    bad = command("yggrt", "tune", out, "-o", tmp_path / "x.ygg", "--tree", "oak:depth=1")
    assert bad.returncode == 2
    assert "oak" in bad.stderr
    assert not (tmp_path / "x.ygg").exists()


def test_a_bundle_for_another_machine_is_refused_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    target = manifest().target
    must = msgspec.structs.replace(target.must_match, isa=("avx2", "nonesuch"))
    foreign = msgspec.structs.replace(
        manifest(), target=msgspec.structs.replace(target, must_match=must)
    )
    path, out = tmp_path / "foreign.ygg", tmp_path / "out.ygg"
    write_bundle(path, foreign, sources(), FILES)
    for arguments in (("tune", path, "-o", out), ("doctor", path)):
        done = command("yggrt", *arguments)
        assert done.returncode == 2
        assert "the CPU lacks nonesuch" in done.stderr
        assert "Traceback" not in done.stderr
    assert not out.exists()
    assert command("yggrt", "tune", path).returncode == 2


def test_bundles_in_which_a_model_drafts_are_tuned_and_examined(tmp_path: Path) -> None:
    built, out = bundles.tiny_drafted("self", "self"), tmp_path / "tuned.ygg"
    done = command("yggrt", "tune", built, "-o", out, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    trees = {one["tree"] for one in report["candidates"]}
    assert "plain" in trees
    assert any(tree.startswith(("sequence", "egt")) for tree in trees)
    before, after = opened(built)[0], opened(out)[0]
    assert after.schedule.drafter == before.schedule.drafter
    # The model's passes are measured as the verifier's are.
    draft = {graph.name for graph in after.graphs if graph.kind == "draft"}
    assert {p.rows for p in after.latency if p.graph in draft} == {1, 4}
    assert command("yggrt", "verify", out).returncode == 0
    kept = command("yggrt", "tune", built, "-o", out, "--tree", "sequence:depth=2")
    assert kept.returncode == 0, kept.stderr
    examined = json.loads(command("yggrt", "doctor", out, "--json").stdout)
    assert "cost of drafting" in [one["name"] for one in examined["findings"]]


def test_the_doctor_measures_and_says_what_to_do(tiny_bundle: Path) -> None:
    done = command("yggrt", "doctor", tiny_bundle, "--json")
    assert done.returncode in (0, 1), done.stderr
    report = json.loads(done.stdout)
    assert report["ok"] == (done.returncode == 0)
    names = [one["name"] for one in report["findings"]]
    assert names[:5] == ["other processes", "threads", "huge pages", "time of a pass", "jumps"]
    assert "break-even" in names
    assert all(one["advice"] for one in report["findings"] if one["verdict"] != "ok")
    text = command("yggrt", "doctor", tiny_bundle)
    assert "a plain pass takes" in text.stdout


def test_a_build_takes_a_saved_profile_and_no_other(tmp_path: Path) -> None:
    bundles.tiny("static")
    recipe = bundles.CACHE / "tiny-static.toml"
    saved = tmp_path / "cpu.json"
    common = ("--gpu", "cpu", "--work-dir", bundles.WORK)
    done = command("yggc", "profile", recipe, *common, "-o", saved, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["digest"] == json.loads(saved.read_text())["digest"]
    out = tmp_path / "out.ygg"
    built = command("yggc", "build", recipe, *common, "-o", out, "--profile", saved)
    assert built.returncode == 0, built.stderr
    latency = msgspec.to_builtins(opened(out)[0].latency)
    assert list(latency) == found["latency"]
    refused = command(
        "yggc", "build", recipe, *common, "-o", out, "--profile", saved, "--threads", "1"
    )
    assert refused.returncode == 2
    assert found["digest"][:16] in refused.stderr
    assert "num_threads differ" in refused.stderr
    saved.write_text("{}")
    broken = command("yggc", "build", recipe, *common, "-o", out, "--profile", saved)
    assert broken.returncode == 2
    assert "is no profile" in broken.stderr
