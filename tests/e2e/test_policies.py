"""Every policy over a real bundle: plain decoding's tokens, and what a simulation says of it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import bundles
import pytest
import torch
from drafting import RecordedDrafter, prompts

from yggc.simulate import Simulator, simulator_of
from yggc.traces import Traces, read, record, write
from yggrt.bundle import Bundle
from yggrt.cache import open_cache
from yggrt.core.errors import RequestError
from yggrt.core.schema import RankAcceptance
from yggrt.core.spec import format_tree_spec, parse_tree_spec, policy_names
from yggrt.drafters import Candidate
from yggrt.engine import Engine
from yggrt.gate import OpenGate
from yggrt.loading import load, load_parts, open_session
from yggrt.sampling.params import SamplingParams
from yggrt.sampling.sampler import Sampler
from yggrt.session import Parts, Session

pytestmark = pytest.mark.tiny

# Shapes with siblings at every depth, whatever the bundle's own drafter is worth.
RANKS = RankAcceptance(shares=((0.4, 0.2, 0.1, 0.05),) * 6, num_tests=(100,) * 6)
TREES = [
    "sequence:depth=8",
    "sequence:depth=8,confidence=0.5",
    "specinfer:expansion=1/1/3/1/1/1/1/1",
    "sequoia",
    "sequoia:rows=40,levels=5",
    "level:width=4,depth=4,verify=32",
    "medusa:nodes=31",
    "egt:width=8,depth=6,verify=40",
    "static:parents=0/0/1/1/2/2/3/3/4/4/5/5/6/6",
]


def random_specs(num: int, seed: int = 3) -> list[str]:
    """Specs of all policies that a drafter without a window has, of at most 64 rows."""
    rng = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < num:
        width, depth, rows = rng.randrange(1, 10), rng.randrange(1, 9), rng.randrange(2, 65)
        found[
            rng.choice(
                [
                    f"egt:width={width},depth={depth},children={rng.randrange(1, 12)},"
                    f"verify={rows},frontier={rng.choice(['global', 'level'])}",
                    f"level:width={width},depth={depth},verify={rows}",
                    f"sequence:depth={depth},confidence=0.{rng.randrange(1, 10)}",
                    f"sequence:depth={depth},verify={rows}",
                    f"sequoia:rows={rows}",
                    f"medusa:nodes={rows - 1}",
                    "specinfer:expansion="
                    + "/".join(str(rng.randrange(1, 3)) for _ in range(rng.randrange(1, 6))),
                    "static:parents="
                    + "/".join(str(rng.randrange(i + 1)) for i in range(rows - 1)),
                ]
            )
        ] = None
    return list(found)


@pytest.fixture(scope="module")
def bundle() -> Any:
    with Bundle.open(bundles.tiny("static")) as opened:
        yield opened


@pytest.fixture(scope="module")
def parts(bundle: Bundle) -> Parts:
    loaded = load_parts(
        bundle, open_cache(None), num_threads=1, mapped=False, on_note=lambda text: None
    )
    return replace(loaded, ranks=RANKS)


@pytest.fixture(scope="module")
def session(bundle: Bundle, parts: Parts) -> Session:
    return open_session(bundle, parts, parse_tree_spec("plain"))


def test_every_policy_is_here() -> None:
    missing = set(policy_names()) - {tree.partition(":")[0] for tree in TREES}
    assert missing <= {"plain", "lookahead", "comb"}


@pytest.mark.parametrize("tree", [*TREES, *random_specs(30)])
def test_trees_say_what_plain_decoding_says(parts: Parts, session: Session, tree: str) -> None:
    graphs: Any = parts.graphs
    spec = parts.resolve(parse_tree_spec(tree))
    for number, prompt in enumerate(prompts(4, (1, 2, 17, 30))):
        options = {"temperature": 0.6, "seed": number} if number % 2 else {}
        plain = session.generate(prompt, max_tokens=24, plain=True, ignore_eos=True, **options)
        own = session.generate(
            prompt, max_tokens=24, tree=tree, gated=False, ignore_eos=True, **options
        )
        assert own.ids == plain.ids
        drafter = RecordedDrafter(prompt, plain.ids, graphs.model.vocab_size)
        engine = Engine(
            graphs, graphs.new_cache(), drafter, spec, lambda rows, context: 1.0, 0.0, OpenGate()
        )  # fmt: skip
        sampler = None
        if options:
            params = SamplingParams(**options)
            sampler = Sampler(params, prompt, vocab_size=graphs.model.vocab_size, seed=number)
        ids = [engine.start(prompt, sampler=sampler)]
        while len(ids) < len(plain.ids):
            ids += engine.step().tokens
        assert ids[: len(plain.ids)] == plain.ids
        assert engine.stats.accepted > 0


class ForgetfulDrafter(RecordedDrafter):
    """Knows the texts, but its first guess is not always the right one."""

    ranks = (0, 0, 2, 0, 1, 9)

    def __init__(self, texts: Sequence[Sequence[int]], vocab_size: int) -> None:
        super().__init__((), (), vocab_size)
        self._texts = [list(text) for text in texts]

    def start(self, ids: Sequence[int]) -> None:
        super().start(ids)
        self._record = next(text for text in self._texts if text[: len(ids)] == list(ids))

    def _children(self, path_tokens: Sequence[int], num: int) -> list[Candidate]:
        found = super()._children(path_tokens, 10)
        tokens = [token for token, _ in found]
        place = (len(self._context) + len(path_tokens)) % len(self.ranks)
        tokens.insert(self.ranks[place], tokens.pop(0))
        return list(zip(tokens, [share for _, share in found], strict=True))[:num]


def recorded(bundle: Bundle, session: Session, temperature: float) -> Traces:
    return record(
        bundle,
        session,
        None,
        prompts(4, (3, 20)),
        100,
        temperature=temperature,
        seed=7,
        ignore_eos=True,
    )


@pytest.mark.parametrize("temperature", [0.0, 0.6])
@pytest.mark.parametrize("gated", [True, False])
def test_a_simulation_does_what_a_session_does(
    bundle: Bundle, parts: Parts, temperature: float, gated: bool, tmp_path: Path
) -> None:
    session = open_session(bundle, parts, parse_tree_spec("plain"))
    write(tmp_path / "t", recorded(bundle, session, temperature))
    traces = read(tmp_path / "t", bundle)
    graphs: Any = parts.graphs
    texts = [[*one.prompt, *one.output] for one in traces.recordings]
    parts = replace(
        parts,
        drafter=ForgetfulDrafter(texts, graphs.model.vocab_size),
        # Of a tiny model's passes the measured times are little but noise.
        latency=lambda rows, context: 1 + rows / 64,
        rest_s=0.0,
    )
    simulator = Simulator(parts, [(parts.drafter, traces.recordings)], 0.0, traces.noise)
    lengths = []
    for tree in TREES:
        spec = parse_tree_spec(tree)
        found = simulator.replay(spec, gated=gated)
        live = open_session(bundle, parts, spec)
        num_tokens = num_passes = 0
        for one in traces.recordings:
            done = live.generate(
                one.prompt,
                max_tokens=len(one.output),
                temperature=temperature,
                seed=7 if temperature else None,
                ignore_eos=True,
                gated=gated,
            )
            assert done.ids == one.output
            num_tokens += len(done.ids) - 1
            num_passes += done.stats.num_passes
        assert found.num_tokens == num_tokens
        if gated:
            # The last pass of an output may be cut short in a replay, and the gate hears of it.
            assert found.mean_acceptance_length == pytest.approx(num_tokens / num_passes, rel=0.02)
        else:
            assert found.num_passes == num_passes
        lengths.append(found.mean_acceptance_length)
    assert max(lengths) > 1.5
    assert len(set(lengths)) > 1


def test_traces_come_back_as_they_were_and_belong_to_their_bundle(
    bundle: Bundle, session: Session, parts: Parts, tmp_path: Path
) -> None:
    traces = recorded(bundle, session, 0.6)
    states = [torch.rand(len(one.prompt) + len(one.output) - 1, 5) for one in traces.recordings]
    with_states = replace(
        traces,
        recordings=tuple(
            one._replace(hidden=some) for one, some in zip(traces.recordings, states, strict=True)
        ),
    )
    path = tmp_path / "traces.safetensors"
    write(path, with_states)
    found = read(path, bundle)
    assert (found.digest, found.temperature, found.seed) == (bundle.digest, 0.6, 7)
    for one, other, some in zip(traces.recordings, found.recordings, states, strict=True):
        assert (list(one.prompt), one.output) == (other.prompt, other.output)
        assert other.hidden is not None
        assert torch.equal(other.hidden, some)
    other = replace(traces, digest="0" * 64)
    write(path, other)
    with pytest.raises(RequestError) as caught:
        read(path, bundle)
    assert "0" * 64 in caught.value.message
    assert bundle.digest in caught.value.message
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(RequestError, match="cannot be read as traces"):
        read(path, bundle)
    with pytest.raises(RequestError, match="cannot be read as traces"):
        read(tmp_path / "absent", bundle)


def test_the_bundles_own_recordings_are_simulated_by_drafters_that_do_not_know_them(
    bundle: Bundle,
) -> None:
    simulator = simulator_of(bundle, open_cache(None), None)
    assert len(simulator.folds) > 1
    one = simulator.replay(parse_tree_spec("egt:width=4,depth=4"))
    assert one.num_tokens == sum(
        len(recording.output) - 1 for _, recordings in simulator.folds for recording in recordings
    )
    assert [found.tree for found in simulator.predict([])] == ["plain"]


def test_a_tree_without_a_graph_is_refused_by_name(bundle: Bundle, parts: Parts) -> None:
    for tree in ("medusa:nodes=100", "specinfer:expansion=8/8/2", "sequoia:rows=65"):
        with pytest.raises(RequestError) as caught:
            open_session(bundle, parts, parse_tree_spec(tree))
        assert format_tree_spec(parse_tree_spec(tree)) in caught.value.message
        assert "the largest graph holds 64" in caught.value.message
        assert "--max-verify" in caught.value.tip


def test_an_installed_drafter_stands_in_for_the_bundles(session: Session) -> None:
    path, tree = bundles.tiny("static"), "lookahead:window=4,ngram=3,guesses=3"
    other = load(path, drafter="lookahead", tree=tree)
    for prompt in prompts(2, (3, 20)):
        plain = session.generate(prompt, max_tokens=60, plain=True, ignore_eos=True).ids
        done = other.generate(prompt, max_tokens=60, gated=False, ignore_eos=True)
        assert done.ids == plain
        assert done.stats.num_rows > 3 * done.stats.num_passes
    with pytest.raises(RequestError, match="'cuckoo'; there are lookahead, ngram"):
        load(path, drafter="cuckoo")


def yggc(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "yggc", *map(str, arguments)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_traces_and_simulation_as_commands(bundle: Bundle, tmp_path: Path) -> None:
    path, traces = bundles.tiny("static"), tmp_path / "t.safetensors"
    text = tmp_path / "long.txt"
    text.write_text(
        "a line that is long enough to be cut\nshort\nanother line, cut as well, too\n"
    )
    done = yggc(
        "traces", path, "-o", traces, "--prompts", text, "--prompt-tokens", 12, "-n", 30,
        "--ignore-eos", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["num_prompts"], report["num_tokens"]) == (2, 60)
    assert report["num_bytes"] < 2000
    done = yggc(
        "simulate", path, "--traces", traces, "--tree", "egt:width=2,depth=3",
        "--policies", "sequence,plain", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    trees = json.loads(done.stdout)["trees"]
    assert {"plain", "sequence:depth=8"} <= {one["tree"] for one in trees}
    assert all(one["mean_acceptance_length"] >= 1 and one["tpot_ms"] > 0 for one in trees)
    for arguments, message in (
        ([], "no tree to try"),
        (["--tree", "specinfer:expansion=8/8/2"], "the largest graph holds 64"),
        (["--traces", text, "--tree", "plain"], "cannot be read as traces"),
    ):
        done = yggc("simulate", path, *arguments)
        assert done.returncode == 2, done.stderr
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_policies_are_compared_in_one_command(tmp_path: Path) -> None:
    path, page = bundles.tiny("static"), tmp_path / "page.md"
    done = yggc(
        "compare", path, "--policies", "sequence,egt,medusa", "-n", 20, "--limit", 2,
        "--budget", 8, "--budget", 128, "--temperature", 0.6, "--ladder", "-o", page, "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [one["temperature"] for one in report["temperatures"]] == [0.6]
    for one in report["temperatures"]:
        rows = {row["policy"]: row for row in one["policies"]}
        assert set(rows) == {"plain", "sequence", "egt", "medusa"}
        assert rows["plain"]["speedup"] == 1 == rows["egt"]["behind"]
        assert all(len(row["speedup_interval"]) == 2 for row in rows.values())
        steps = [(row["step"], row["tree"].partition(":")[0]) for row in one["ladder"]]
        assert steps == [
            ("plain", "plain"), ("chain", "sequence"), ("tree", "egt"), ("pruned tree", "egt"),
        ]  # fmt: skip
        gains = [row["gain"] for row in one["ladder"]]
        assert gains[0] == 1
        assert all(gain > 0 for gain in gains)
        # No graph has 128 rows.
        assert [budget["rows"] for budget in one["budgets"]] == [8]
        assert {row["policy"] for row in one["budgets"][0]["policies"]} == {
            "sequence", "egt", "medusa",
        }  # fmt: skip
    assert "| egt |" in page.read_text()
    assert "| pruned tree |" in page.read_text()
