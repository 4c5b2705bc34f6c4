"""Heads with random weights draft for tiny verifiers, n-grams beside them: real bundles,
transformers beside them.
"""

from __future__ import annotations

import functools
import json
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bundles
import pytest
import torch
from drafting import decode, prompts
from safetensors.torch import load_file

from yggc.models.eagle import EagleConfig, EagleForCausalLM, HeadForCausalLM
from yggc.models.eagle3 import Eagle3Config, Eagle3ForCausalLM
from yggrt.bundle import Bundle
from yggrt.core.schema import EagleDrafter as Parameters
from yggrt.core.spec import parse_tree_spec
from yggrt.drafters.eagle import EagleDrafter
from yggrt.engine import Engine
from yggrt.gate import OpenGate
from yggrt.loading import load
from yggrt.session import Session

pytestmark = pytest.mark.tiny

TREES = [
    "sequence:depth=8",
    "static:parents=0/0/1/1/2/2/3/3/4/4/5/5/6/6",
    "egt:width=4,depth=4,children=8,verify=16,frontier=global",
    "egt:width=4,depth=4,children=8,verify=16,frontier=level",
    "egt:width=6,depth=5,children=12,verify=16",
]


@dataclass(frozen=True)
class Kind:
    """A kind of head: its bundle, the widths of its draft graphs, and what it was made of."""

    build: Callable[[], Path]
    widths: frozenset[int]
    verifier: Callable[[], Path]
    folder: Callable[[], Path]
    load: Callable[[dict[str, Any]], HeadForCausalLM]

    @functools.cached_property
    def bundle(self) -> Path:
        return self.build()

    @functools.cached_property
    def session(self) -> Session:
        return load(self.bundle)

    @functools.cached_property
    def reference(self) -> Any:
        return bundles.reference(self.verifier())

    @functools.cached_property
    def draft_ids(self) -> list[int]:
        state = load_file(self.folder() / "model.safetensors")
        found: list[int] = state["draft_ids"].tolist()
        return found

    @functools.cached_property
    def head(self) -> HeadForCausalLM:
        """The head in eager mode, with what is the verifier's."""
        head = self.load(json.loads((self.folder() / "config.json").read_bytes()))
        state = load_file(self.folder() / "model.safetensors")
        ids = state.pop("draft_ids")
        embedding = self.reference.get_input_embeddings().weight.data
        state["model.embed_tokens.weight"] = embedding
        # Tied: the verifier's output head is its embedding.
        state.setdefault("lm_head.weight", embedding[ids])
        head.load_state_dict(state)
        return head.eval()

    def features(self, context: list[int]) -> torch.Tensor:
        """The verifier's [len(context), hidden]."""
        found = self.reference(torch.tensor([context]), output_hidden_states=True)
        if isinstance(self.head, Eagle3ForCausalLM):
            given = [found.hidden_states[layer][0] for layer in self.head.config.taps]
            return self.head.fuse(torch.cat(given, dim=-1))
        features: torch.Tensor = found.hidden_states[-1][0]
        return features


def built() -> Path:
    head = f"{bundles.random_head()}+ngram"
    return bundles.tiny_drafted("eagle", head, "--drafter-quant", "none")


KINDS = {
    "eagle": Kind(
        built,
        frozenset({1, 4, 8}),
        bundles.tiny_model,
        bundles.random_head,
        lambda config: EagleForCausalLM(EagleConfig(**config)),
    ),
    "eagle3": Kind(
        bundles.deep_drafted,
        frozenset({1, 8}),
        bundles.deep_model,
        bundles.random_head3,
        lambda config: Eagle3ForCausalLM(Eagle3Config(**config)),
    ),
}


@pytest.fixture(params=KINDS, scope="module")
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def session(kind: Kind) -> Session:
    return kind.session


def yggrt_command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "yggrt", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_trees_say_what_plain_decoding_says(
    session: Session, tree: str, temperature: float
) -> None:
    for prompt in prompts(4, (1, 2, 17, 70)):
        options = {"temperature": temperature, "seed": 7}
        plain = decode(session, prompt, 40, plain=True, **options)
        assert decode(session, prompt, 40, tree=tree, **options) == plain
        assert decode(session, prompt, 40, tree=tree, gated=True, **options) == plain


def test_up_to_the_end_of_the_context(session: Session) -> None:
    limit = session.graphs.max_model_len
    for length in (limit - 1, limit - 2, limit - 9, limit - 30):
        [prompt] = prompts(1, (length,))
        plain = decode(session, prompt, 100, plain=True)
        assert len(plain) == limit - length
        for tree in TREES[:3]:
            assert decode(session, prompt, 100, tree=tree) == plain


def test_requests_that_share_a_prefix_draft_what_fresh_ones_draft(session: Session) -> None:
    rng = random.Random(3)
    [ids] = prompts(1, (12,))
    for turn in range(6):
        kept = rng.randrange(len(ids) + 1)
        ids = [*ids[:kept], *(rng.randrange(3, 400) for _ in range(rng.randrange(1, 9)))]
        options: dict[str, Any] = {"tree": TREES[turn % 4], "plain": turn == 2}
        options |= {"max_tokens": 20, "gated": False, "ignore_eos": True}
        done = session.generate(ids, reuse=True, **options)
        again = session.generate(ids, reuse=False, **options)
        assert done.ids == again.ids
        if turn != 2:
            assert done.stats.accepted_histogram == again.stats.accepted_histogram
        ids = [*ids, *done.ids]


def test_bundles_with_a_head_are_tuned_and_examined(kind: Kind, tmp_path: Path) -> None:
    out = tmp_path / "tuned.ygg"
    done = yggrt_command("tune", kind.bundle, "-o", out, "--json")
    assert done.returncode == 0, done.stderr
    before, after = (Bundle.open(path).manifest for path in (kind.bundle, out))
    assert after.schedule.drafter == before.schedule.drafter
    assert after.schedule.ngram == before.schedule.ngram is not None
    draft = {graph.name for graph in after.graphs if graph.kind == "draft"}
    assert {p.rows for p in after.latency if p.graph in draft} == kind.widths
    examined = json.loads(yggrt_command("doctor", kind.bundle, "--json").stdout)
    assert "cost of drafting" in [one["name"] for one in examined["findings"]]


# --- what the head says, against the module in eager mode ---------------------------------------


def head_of(kind: Kind) -> EagleDrafter:
    """Another drafter over the session's head, without n-grams and with a cache of its own."""
    tables = Bundle.open(kind.bundle).manifest.schedule.drafter
    assert isinstance(tables, Parameters)
    drafter: Any = kind.session._parts.drafter
    return EagleDrafter(drafter._first._graphs, tables)


def naive_logits(kind: Kind, context: list[int], path: Sequence[int]) -> torch.Tensor:
    """The definition, one token at a time: the verifier's features up to the root, the head's own
    below it; logits after the last of `path`."""
    head = kind.head
    with torch.no_grad():
        features = kind.features(context)
        read = torch.cat([torch.zeros(1, features.shape[1]), features[:-1]])
        for end in range(len(path) + 1):
            tokens = torch.tensor([[*context, *path[:end]]])
            out = head.model(
                inputs_embeds=head.join(head.model.embed_tokens(tokens), read[None])
            ).last_hidden_state[0]
            read = torch.cat([read, out[-1:]])
        logits: torch.Tensor = head.lm_head(head.norm(out[-1]))
        return logits


def test_nodes_say_what_the_module_says(kind: Kind, session: Session) -> None:
    graphs: Any = session.graphs
    for length in (1, 3, 6, 40, 90):
        [context] = prompts(1, (length,), seed=length)
        cache = graphs.new_cache()
        fresh = head_of(kind)
        # The root is not among the tokens that the verifier has run.
        for at in range(0, length - 1, 16):
            part = context[at : min(at + 16, length - 1)]
            hidden = graphs.prefill(cache, part, at).hidden
            fresh.observe(at, hidden, range(len(part)))
        fresh.start(context)
        for paths in ([()], [(5,), (6,)], [(5, 7), (5, 8), (6, 1)], [(5, 8, 2)]):
            found = fresh.logits(paths)
            for path, logits in zip(paths, found, strict=True):
                wanted = naive_logits(kind, context, path)
                assert (logits - wanted).abs().max() <= 1e-4 * wanted.abs().max()


def test_accepted_tokens_are_read_again_with_the_verifiers_features(
    kind: Kind, session: Session
) -> None:
    """After steps of any acceptance the head's rows are those of the definition."""
    fresh = head_of(kind)
    [context] = prompts(1, (9,))
    full = [*context, *decode(session, context, 30, plain=True)]
    graphs: Any = session.graphs
    cache = graphs.new_cache()
    parts = [graphs.prefill(cache, full[at : at + 13], at) for at in (0, 13, 26)]
    hidden = torch.cat([part.hidden for part in parts])
    fresh.start(full[:9])
    fresh.observe(0, hidden[:8], range(8))
    at = 9
    for num in (3, 1, 12, 2, 5):
        fresh.candidates([()], 4)
        fresh.candidates([(full[at],), (5,)], 4)
        fresh.observe(at - 1, hidden[at - 1 :], range(num))
        fresh.commit(full[at : at + num])
        at += num
        [found] = fresh.logits([()])
        wanted = naive_logits(kind, full[:at], ())
        assert (found - wanted).abs().max() <= 1e-4 * wanted.abs().max()


def test_ids_are_the_verifiers(kind: Kind, session: Session) -> None:
    known = set(kind.draft_ids)
    drafter: Any = session._parts.drafter
    for prompt in prompts(3, (4,)):
        cache = session.graphs.new_cache()
        hidden = session.graphs.prefill(cache, prompt[:-1], 0).hidden
        drafter._first.observe(0, hidden, range(3))
        drafter._first.start(prompt)
        [children] = drafter._first.candidates([()], 384)
        assert {token for token, _ in children} == known
        assert sum(share for _, share in children) <= 1


def test_acceptance_is_the_agreement_with_the_same_roots(kind: Kind, session: Session) -> None:
    """Chains of one node: what decoding accepts is what the definition says at its roots."""
    checked = 0
    for prompt in prompts(6, (5, 20), seed=9):
        plain = decode(session, prompt, 60, plain=True)
        full = [*prompt, *plain]
        # Only the head: n-grams would have a say in the tree.
        engine = Engine(
            session.graphs, session.graphs.new_cache(), head_of(kind),
            parse_tree_spec("sequence:depth=1"), lambda rows, context: 1.0, 0.0, OpenGate(),
        )  # fmt: skip
        engine.start(prompt)
        while len(engine.ids) < len(full) - 1:
            at = len(engine.ids)
            step = engine.step()
            with torch.no_grad():
                wanted = int(naive_logits(kind, full[:at], ()).argmax())
            agrees = kind.draft_ids[wanted] == full[at]
            assert step.num_accepted == agrees
            checked += 1
    assert checked > 200
