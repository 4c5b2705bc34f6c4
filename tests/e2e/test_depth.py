"""The depth predictor of real bundles: constants swapped without a compile, the same tokens."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import bundles
import msgspec
import pytest
import torch
from drafting import decode, prompts, random_tree

from yggc.depth.hazards import Predictor
from yggc.depth.prompts import calibration_prompts
from yggc.depth.rows import gives_features, read_rows
from yggc.depth.run import write_trained
from yggc.depth.swap import swap_constants
from yggc.depth.tree import base_tree, full_depth
from yggc.errors import RecipeError
from yggc.report_page.measured import TrainedDepth
from yggrt.bundle import Bundle
from yggrt.cache import open_cache
from yggrt.core.consistency import check_manifest
from yggrt.core.errors import BundleError
from yggrt.core.schema import DepthPredictor, LookaheadDrafter, Manifest, MedusaDrafter
from yggrt.core.spec import format_tree_spec, parse_tree_spec
from yggrt.drafters.calibrate import Recording
from yggrt.graphs import AotGraphs
from yggrt.loading import load, load_graphs

pytestmark = pytest.mark.tiny

TREE = "egt:width=4,depth=6,children=8,verify=16,frontier=global"
HIDDEN, DEPTH = 64, 8


def predictor(seed: int = 3) -> Predictor:
    """Random, with hazards all over (0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    encode = torch.randn(64, HIDDEN, generator=generator) / HIDDEN**0.5
    decode = torch.randn(DEPTH, 64, generator=generator) / 2
    return Predictor(encode, torch.zeros(64), decode, torch.full((DEPTH,), 0.5))


def record(**changes: Any) -> DepthPredictor:
    values: dict[str, Any] = {
        "tree": TREE, "temperature": 0.0, "rows": (1, 2, 3, 4, 6, 8, 10), "is_on": True,
        "base_tokens": 1.0, "worth": (1.0,) * 6,
        "num_traces": 300, "num_prompts": 20, "log_loss": 0.5, "constant_log_loss": 0.6,
        "calibration_error": (0.01,) * 6, "against": "sequence:depth=2", "num_measured": 8,
        "gain": 1.1, "gain_interval": (1.05, 1.15), **changes,
    }  # fmt: skip
    return DepthPredictor(**values)


def command(package: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The command where there is no compiler to be found."""
    return subprocess.run(
        [sys.executable, "-m", package, *map(str, arguments)],
        capture_output=True, text=True, check=False, env={**os.environ, "PATH": ""},
    )  # fmt: skip


def loaded(bundle: Bundle) -> AotGraphs:
    return load_graphs(
        bundle, open_cache(None), num_threads=1, mapped=False, on_note=lambda note: None
    )


@pytest.fixture(scope="module")
def built() -> Path:
    return bundles.tiny("static")


def texts(path: Path, num: int) -> Path:
    draw = random.Random(0)
    words = ["red", "blue", "tree", "river", "stone", "cloud", "seven", "moon", "lamp", "wind"]
    lines = (" ".join(draw.choices(words, k=draw.randint(2, 5))) for _ in range(num))
    path.write_text("\n".join(lines))
    return path


def test_swapped_constants_are_what_the_graphs_compute_with(built: Path) -> None:
    with Bundle.open(built) as bundle:
        graphs = loaded(bundle)
        cache, draw, given = graphs.new_cache(), random.Random(1), predictor()
        out = graphs.prefill(cache, [5, 6, 7, 8], 0)
        assert out.hazards.tolist() == [[0.5] * DEPTH]
        with swap_constants(bundle) as swap:
            assert (swap.num_units, swap.num_heads) == (64, DEPTH)
            swap(given)
            out = graphs.prefill(cache, [5, 6, 7, 8], 0)
            torch.testing.assert_close(out.hazards, given.hazards(out.hidden[-1:]))
            for num in (1, 4, 16, 33):
                out = graphs.verify(cache, random_tree(draw, num, 400, 6), 4)
                torch.testing.assert_close(out.hazards, given.hazards(out.hidden))
                assert out.hazards.std() > 0.02
        out = graphs.verify(cache, random_tree(draw, 4, 400, 3), 4)
        assert out.hazards.eq(0.5).all()


@pytest.mark.parametrize("tree", [TREE, "sequence:depth=6"])
@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_tokens_are_plain_decodings(
    built: Path, tmp_path: Path, tree: str, temperature: float
) -> None:
    path = tmp_path / "on.ygg"
    with Bundle.open(built) as bundle:
        write_trained(path, bundle, predictor(), record(tree=tree, temperature=temperature))
    session = load(path)
    # Whatever this machine's times are, rows cost something here.
    session._parts = replace(session._parts, latency=lambda rows, context: 1 + rows / 5)
    depths: set[int] = set()
    for prompt in prompts(6, (1, 2, 17, 70)):
        options = {"temperature": temperature, "seed": 7}
        plain = decode(session, prompt, 48, plain=True, **options)
        assert decode(session, prompt, 48, gated=True, **options) == plain
        engine: Any = session._engine
        depths |= engine.stats.depth_histogram.keys()
        assert session.last is not None
        assert parse_tree_spec(session.last.stats.tree) == parse_tree_spec(tree)
    # The gate may close, but not before some depths were tried.
    assert len(depths) > 2
    # Requests that it was not trained for have the bundle's own tree.
    own = session.tree
    for other in ({"temperature": 1.0}, {"gated": False}, {"tree": "sequence:depth=2"}):
        decode(session, [5, 6], 12, **{"gated": True, "temperature": temperature, **other})
        assert session.last is not None
        wanted = parse_tree_spec(str(other["tree"])) if "tree" in other else own
        assert parse_tree_spec(session.last.stats.tree) == wanted
    named = load(path, tree="sequence:depth=3")
    decode(named, [5, 6], 12, gated=True, temperature=temperature)
    assert named.last is not None
    assert named.last.stats.tree == "sequence:depth=3"


def test_a_predictor_is_trained_measured_and_shipped(built: Path, tmp_path: Path) -> None:
    out, kept, weights = tmp_path / "out.ygg", tmp_path / "traces.safetensors", tmp_path / "w"
    pytest.importorskip("onnx")
    common = ("--max-tokens", "24", "--epochs", "6", "--traces", kept)
    done = command(
        "yggc", "train", "depth", built, "-o", out, *common, "--weights", weights, "--json"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    with Bundle.open(built) as before, Bundle.open(out, full=True) as after:
        one, other = before.manifest, after.manifest
        for name in one.weights:
            same = b"".join(before.weight_chunks(name)) == b"".join(after.weight_chunks(name))
            assert same == (not name.startswith("predictor.")), name
        code = {
            name: member for name, member in one.members.items() if name != "weights.safetensors"
        }
        assert {name: other.members[name] for name in code} == code
        assert (other.graphs, other.schedule.tree) == (one.graphs, one.schedule.tree)
        depth = other.schedule.depth
        assert depth is not None
        assert msgspec.to_builtins(depth) == found["predictor"] | {
            name: tuple(found["predictor"][name])
            for name in ("rows", "worth", "calibration_error", "gain_interval")
        }
        # As a report reads it.
        assert msgspec.convert(found, TrainedDepth).predictor == depth
        assert depth.is_on == (depth.gain_interval[0] > 1)
        assert parse_tree_spec(depth.tree).depth == len(depth.worth) == DEPTH
        assert depth.num_measured >= 2
        # What was trained is what the graphs compute, and what the files hold.
        from yggc.depth.files import read_predictor

        facts = {"hidden_size": HIDDEN, "max_depth": DEPTH, "tree": depth.tree, "temperature": 0.0}
        trained = read_predictor(weights, facts)
        graphs_of = loaded(after)
        result = graphs_of.prefill(graphs_of.new_cache(), [5, 6, 7], 0)
        torch.testing.assert_close(result.hazards, trained.hazards(result.hidden[-1:]))
    names = [row["name"] for row in found["ablations"]]
    assert names[:4] == [
        "constant hazards", "hidden", "hidden, entropy", "hidden, last accepted length"
    ]  # fmt: skip
    assert {"hidden, 5% of the traces", "hidden, without penalty", "who knows L"} <= set(names)
    assert found["ablations"][1]["log_loss"] == pytest.approx(depth.log_loss)
    assert sum(found["depth_shares"]) == pytest.approx(1)
    assert [one["category"] for one in found["categories"]] == ["recordings"]
    shown = command("yggrt", "inspect", out)
    assert f"{'on' if depth.is_on else 'off'}: {depth.gain:.3f}x" in " ".join(shown.stdout.split())
    # The same traces again, and a predictor that was trained before.
    again = command(
        "yggc", "train", "depth", built, "-o", out, *common, "--from", weights
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert "answer" not in again.stderr
    assert f"{depth.num_traces} traces of {depth.num_prompts} prompts" in again.stdout
    refused = command("yggc", "train", "depth", out, "-o", tmp_path / "no.ygg", *common)
    assert refused.returncode == 2
    with Bundle.open(built) as first, Bundle.open(out) as second:
        assert first.digest in refused.stderr
        assert second.digest in refused.stderr
    assert not (tmp_path / "no.ygg").exists()


def test_where_a_head_and_ngrams_draft(tmp_path: Path) -> None:
    """Rows that the predictor reads are not those that the head reads."""
    built, out = bundles.deep_drafted(), tmp_path / "out.ygg"
    with Bundle.open(built) as bundle:
        assert gives_features(bundle.manifest)
        [prompt] = prompts(1, (7,))
        reference = bundles.reference(bundles.deep_model())
        output = bundles.greedy_ids(reference, prompt, 20)
        [rows] = read_rows(bundle, loaded(bundle), [Recording(prompt, output)])
        with torch.no_grad():
            states = reference(torch.tensor([[*prompt, *output][:-1]]), output_hidden_states=True)
        wanted = states.hidden_states[-1][0, len(prompt) - 1 :]
        torch.testing.assert_close(rows.inputs, wanted, rtol=1e-3, atol=1e-3)
        assert not torch.allclose(rows.recording.hidden[len(prompt) - 1 :], wanted, atol=0.1)
        logits = states.logits[0, len(prompt) - 1 :]
        entropy = torch.distributions.Categorical(logits=logits).entropy()
        torch.testing.assert_close(rows.entropy, entropy, rtol=1e-3, atol=1e-3)
    done = command(
        "yggc", "train", "depth", built, "-o", out, "--prompts", texts(tmp_path / "p.txt", 24),
        "--max-tokens", "24", "--epochs", "4", "--temperature", "0.6",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "measured" in done.stdout
    with Bundle.open(out) as bundle:
        depth = bundle.manifest.schedule.depth
        assert depth is not None
        assert depth.temperature == 0.6
    assert command("yggrt", "verify", out).returncode == 0


def manifest_of(path: Path) -> Manifest:
    with Bundle.open(path) as bundle:
        return bundle.manifest


def test_trees_without_a_depth_to_choose_are_refused(built: Path) -> None:
    manifest = manifest_of(built)
    for tree in ("plain", "static:parents=0/0/1"):
        with pytest.raises(RecipeError, match=f"--tree is {tree}.*no depth to choose"):
            base_tree(manifest, tree)
    schedule = msgspec.structs.replace(manifest.schedule, tree="plain")
    with pytest.raises(RecipeError, match="the bundle's tree is plain"):
        base_tree(msgspec.structs.replace(manifest, schedule=schedule), None)
    schedule = msgspec.structs.replace(manifest.schedule, drafter=LookaheadDrafter())
    with pytest.raises(RecipeError, match="drafter lookahead"):
        base_tree(msgspec.structs.replace(manifest, schedule=schedule), None)
    planned = base_tree(manifest, "egt:width=4,depth=4;prune=off")
    assert format_tree_spec(planned) == "egt:width=4,depth=4,children=8,verify=17,frontier=global"
    heads = MedusaDrafter(temperatures=(1.0,), coverage=(1.0,))
    schedule = msgspec.structs.replace(manifest.schedule, drafter=heads)
    with pytest.raises(RecipeError, match="Medusa heads draft in this bundle"):
        base_tree(msgspec.structs.replace(manifest, schedule=schedule), None)


def test_the_full_depth_is_what_all_parts_hold() -> None:
    spec = parse_tree_spec("egt:width=4,depth=2,children=8,frontier=level")
    full = full_depth(spec, 8, 64, 1 << 30)
    assert (full.depth, full.verify, full.children, full.frontier) == (8, 33, 8, "level")
    assert full_depth(spec, 8, 16, 1 << 30).verify == 16
    # 1 + 4 (D - 1) nodes run through the drafter.
    assert full_depth(spec, 8, 64, 20).depth == 5
    with pytest.raises(RecipeError, match="wanted two or more to choose from"):
        full_depth(spec, 8, 64, 4)


def test_too_few_prompts_are_refused_and_evaluation_prompts_left_out(
    built: Path, tmp_path: Path
) -> None:
    path = texts(tmp_path / "p.txt", 14)
    lines = path.read_text().splitlines()
    excluded = tmp_path / "evaluation.txt"
    excluded.write_text("\n".join(lines[:3]))
    with Bundle.open(built) as bundle:
        found, left_out = calibration_prompts(bundle, [path], [excluded], None)
        assert left_out == sum(line in lines[:3] for line in lines) >= 3
        assert len(found) == len(lines) - left_out
        with pytest.raises(RecipeError, match="9 calibration prompts in --prompts, 0 left out"):
            calibration_prompts(bundle, [path], [], 9)
        recorded, _ = calibration_prompts(bundle, [], [], None)
        assert len(recorded) == len(bundle.manifest.schedule.recordings)


def test_too_few_traces_are_refused(built: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.ygg"
    done = command(
        "yggc", "train", "depth", built, "-o", out, "--max-tokens", "8", "--limit", "12"
    )
    assert done.returncode == 2
    assert "traces of 12 prompts, wanted 200 or more" in done.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rows": (4,) * 6}, "for a tree of 6 levels"),
        ({"tree": "sequence:depth=9"}, "has 9 levels, wanted 1 to 8"),
        ({"tree": "oak:depth=6"}, "no tree policy 'oak'"),
        ({"smoothing": 1.0}, "smoothing 1.0"),
        ({"gain_interval": (0.9, 1.2)}, "is on with a gain of"),
    ],
)
def test_records_that_contradict_themselves_are_refused(
    built: Path, changes: dict[str, Any], problem: str
) -> None:
    manifest = manifest_of(built)
    schedule = msgspec.structs.replace(manifest.schedule, depth=record(**changes))
    with pytest.raises(BundleError, match=problem):
        check_manifest(msgspec.structs.replace(manifest, schedule=schedule), "x.ygg")
