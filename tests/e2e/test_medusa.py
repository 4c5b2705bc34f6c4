"""Medusa heads that were fitted to a tiny verifier draft for it, alone and with n-grams beside
them: a real bundle, transformers and the heads' definition in float64 beside it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import bundles
import pytest
import torch
from drafting import decode, prompts
from safetensors.torch import load_file

from yggc import traces
from yggc.simulate import simulator_of
from yggrt.bundle import Bundle
from yggrt.cache import open_cache
from yggrt.core.schema import MedusaDrafter as Parameters
from yggrt.core.schema import RankAcceptance
from yggrt.core.spec import parse_tree_spec
from yggrt.drafters.medusa import MedusaDrafter
from yggrt.engine import Engine
from yggrt.gate import OpenGate
from yggrt.loading import load
from yggrt.session import Session

pytestmark = pytest.mark.tiny

NUM_HEADS, NUM_IDS = 3, 384


@functools.cache
def bundle() -> Path:
    return bundles.medusa_drafted()


# Shapes with siblings at every depth, whatever the heads are worth on calibration answers.
RANKS = RankAcceptance(((0.5, 0.2, 0.1), (0.4, 0.2, 0.1), (0.3, 0.1, 0.1)), (10, 10, 10))


@functools.cache
def session() -> Session:
    found = load(bundle())
    found._parts = dataclasses.replace(found._parts, ranks=RANKS)
    return found


@functools.cache
def parameters() -> Parameters:
    found = Bundle.open(bundle()).manifest.schedule.drafter
    assert isinstance(found, Parameters)
    return found


@functools.cache
def state() -> dict[str, torch.Tensor]:
    return load_file(bundles.fitted_medusa() / "model.safetensors")


@functools.cache
def verifier() -> Any:
    return bundles.reference(bundles.tiny_model()).double()


def trees() -> list[str]:
    """Of each kind that a search would try."""
    return [
        "sequence:depth=3",
        "sequence:depth=6",
        "egt:width=4,depth=3,children=8,verify=13,frontier=global",
        "egt:width=4,depth=4,children=8,verify=16,frontier=level",
        "medusa:nodes=3",
        "medusa:nodes=15",
    ]


def alone() -> MedusaDrafter:
    """The heads without n-grams."""
    return MedusaDrafter(parameters(), session().graphs.top_shares)  # type: ignore[attr-defined]


def engine(tree: str, drafter: Any = None) -> Engine:
    spec = session()._parts.resolve(parse_tree_spec(tree))
    return Engine(
        session().graphs, session().graphs.new_cache(), drafter or alone(), spec,
        lambda rows, context: 1.0, 0.0, OpenGate(),
    )  # fmt: skip


@torch.no_grad()
def defined(context: list[int]) -> torch.Tensor:
    """Logits [tokens, heads, ids] of the definition in float64: of head k from the last hidden
    state of each token."""
    hidden = verifier().model(torch.tensor([context])).last_hidden_state[0]
    output = verifier().get_output_embeddings().weight[state()["draft_ids"]]
    found = []
    for head in range(NUM_HEADS):
        weight, bias, out = (
            state()[f"heads.{head}.{name}"].double()
            for name in ("blocks.0.linear.weight", "blocks.0.linear.bias", "out.weight")
        )
        z = hidden @ weight.T + bias
        found.append((hidden + z / (1 + torch.exp(-z))) @ out.T @ output.T)
    return torch.stack(found, dim=1)


def guesses(context: list[int]) -> list[list[int]]:
    """The most likely id of each head after each token of the context."""
    ids: list[list[int]] = state()["draft_ids"][defined(context).argmax(-1)].tolist()
    return ids


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_trees_say_what_plain_decoding_says(temperature: float) -> None:
    for prompt in prompts(4, (1, 2, 17, 70)):
        options = {"temperature": temperature, "seed": 7}
        plain = decode(session(), prompt, 40, plain=True, **options)
        for tree in trees():
            assert decode(session(), prompt, 40, tree=tree, **options) == plain
            assert decode(session(), prompt, 40, tree=tree, gated=True, **options) == plain


def test_heads_without_ngrams_say_what_plain_decoding_says() -> None:
    for prompt in prompts(3, (1, 20), seed=9):
        plain = decode(session(), prompt, 40, plain=True)
        for tree in trees():
            one = engine(tree)
            ids = [one.start(prompt)]
            while len(ids) < len(plain):
                ids += one.step().tokens
            assert ids[: len(plain)] == plain


def test_graphs_give_the_logits_of_the_definition() -> None:
    """Of every row of a verify pass, and of the last of a prefill."""
    graphs: Any = session().graphs
    for length in (1, 9, 16, 40):
        [context] = prompts(1, (length,), seed=length)
        wanted = defined(context).flatten(1)
        cache = graphs.new_cache()
        for at in range(0, length, 16):
            end = min(at + 16, length)
            hidden = graphs.prefill(cache, context[at:end], at).hidden
            assert hidden.shape == (1, NUM_HEADS * NUM_IDS)
            assert (hidden[0] - wanted[end - 1]).abs().max() <= 1e-4 * wanted.abs().max()
        one = engine("plain")
        one.start(context)
        rows = min(length, 16)
        tree = chain(context[:rows])
        hidden = graphs.verify(graphs.new_cache(), tree, 0).hidden
        assert hidden.shape == (rows, NUM_HEADS * NUM_IDS)
        assert (hidden - wanted[:rows]).abs().max() <= 1e-4 * wanted.abs().max()


def chain(tokens: list[int]) -> Any:
    from yggrt.core.tree import TokenTree

    num = len(tokens)
    return TokenTree(tuple(tokens), tuple(range(-1, num - 1)), (1.0,) * num)


def test_chains_are_accepted_as_far_as_the_definition_is_right() -> None:
    """Head k of the token before the root guesses the token k behind the root: what a pass accepts
    is how many of them are plain decoding's in a row. The heads were fitted to six of the
    prompts."""
    accepted = [0] * (NUM_HEADS + 1)
    for prompt in prompts(8, (5, 20), seed=9):
        plain = decode(session(), prompt, 60, plain=True)
        full = [*prompt, *plain]
        right = guesses(full)
        one = engine(f"sequence:depth={NUM_HEADS}")
        one.start(prompt)
        while len(one.ids) < len(full) - NUM_HEADS:
            root = len(one.ids) - 1
            wanted = 0
            while wanted < NUM_HEADS and right[root - 1][wanted] == full[root + 1 + wanted]:
                wanted += 1
            assert one.step().num_accepted == wanted
            accepted[wanted] += 1
    assert accepted[0] > 5, accepted
    assert accepted[NUM_HEADS] > 20, accepted


def test_shares_are_calibrated_and_ids_the_verifiers() -> None:
    found = parameters()
    assert found.num_heads == NUM_HEADS
    assert found.token_ids == tuple(state()["draft_ids"].tolist())
    assert 0 < found.agreement < 1
    drafter = alone()
    one = engine("plain", drafter)
    one.start(prompts(1, (6,))[0])
    children = drafter.candidates([(), (5,), (9,), (5, 7), (1, 2, 3)], NUM_IDS)
    assert children[1] == children[2] != children[0]
    for row in children[:4]:
        assert {token for token, _ in row} == set(found.token_ids)
        assert sum(share for _, share in row) <= 1 + 1e-6
    assert children[4] == []


def test_up_to_the_end_of_the_context() -> None:
    limit = session().graphs.max_model_len
    for length in (limit - 1, limit - 2, limit - 9):
        [prompt] = prompts(1, (length,))
        plain = decode(session(), prompt, 100, plain=True)
        assert len(plain) == limit - length
        for tree in trees()[1:4]:
            assert decode(session(), prompt, 100, tree=tree) == plain


def test_requests_that_share_a_prefix_draft_what_fresh_ones_draft() -> None:
    rng = random.Random(3)
    [ids] = prompts(1, (12,))
    for turn in range(6):
        kept = rng.randrange(len(ids) + 1)
        ids = [*ids[:kept], *(rng.randrange(3, 400) for _ in range(rng.randrange(1, 9)))]
        options: dict[str, Any] = {"tree": trees()[turn % 5], "plain": turn == 2}
        options |= {"max_tokens": 20, "gated": False, "ignore_eos": True}
        done = session().generate(ids, reuse=True, **options)
        again = session().generate(ids, reuse=False, **options)
        assert done.ids == again.ids
        if turn != 2:
            assert done.stats.accepted_histogram == again.stats.accepted_histogram
        ids = [*ids, *done.ids]


def yggrt_command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "yggrt", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_bundles_with_medusa_heads_are_tuned_examined_and_described(tmp_path: Path) -> None:
    out = tmp_path / "tuned.ygg"
    done = yggrt_command("tune", bundle(), "-o", out, "--json")
    assert done.returncode == 0, done.stderr
    before, after = (Bundle.open(path).manifest for path in (bundle(), out))
    assert after.schedule.drafter == before.schedule.drafter
    assert after.schedule.ngram == before.schedule.ngram is not None
    assert {graph.kind for graph in after.graphs} == {"verify", "prefill"}
    assert any(one.tree != "plain" for one in after.schedule.candidates)
    examined = json.loads(yggrt_command("doctor", bundle(), "--json").stdout)
    assert "time of a pass" in [one["name"] for one in examined["findings"]]
    shown = json.loads(yggrt_command("inspect", bundle(), "--json").stdout)
    assert shown["drafter"]["architecture"] == "ygg_medusa"
    assert shown["draft_model"] == "float32 weights, float32 activations"
    assert shown["schedule"]["drafter"]["kind"] == "medusa"
    logits = 4 * 16 * NUM_HEADS * NUM_IDS
    assert shown["memory"]["workspace_bytes"] > logits
    checked = yggrt_command("verify", bundle(), "-n", "16")
    assert checked.returncode == 0, checked.stderr


def test_traces_are_replayed_as_a_session_decodes(tmp_path: Path) -> None:
    """The file has no logits of heads; they are made of its ids."""
    some = prompts(3, (5, 20), seed=4)
    with Bundle.open(bundle()) as opened:
        found = traces.record(opened, session(), None, some, 40, ignore_eos=True)
        path = tmp_path / "traces.safetensors"
        traces.write(path, found)
        simulator = simulator_of(opened, open_cache(None), traces.read(path, opened))
    for tree in trees()[:4]:
        done = [
            session().generate(one, tree=tree, max_tokens=40, gated=False, ignore_eos=True)
            for one in some
        ]
        replayed = simulator.replay(parse_tree_spec(tree), gated=False)
        assert replayed.num_passes == sum(one.stats.num_passes for one in done)
