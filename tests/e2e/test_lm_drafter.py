"""A language model drafts: real bundles, transformers beside them.

`self`: the tiny verifier drafts for itself. `self:1`: its first layer. `other`: a smaller random
model with a padded vocabulary and a context of 64.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bundles
import msgspec
import pytest
import torch
from drafting import decode, fill, full_tree_ids, prompts, random_tree
from transformers import AutoConfig, AutoModelForCausalLM

from yggrt.bundle import Bundle
from yggrt.core.errors import RequestError
from yggrt.core.plans import format_plan, plans
from yggrt.core.schema import DRAFTER_KINDS, LmDrafter, Plan, TreeSpec
from yggrt.core.spec import parse_tree_spec
from yggrt.core.tree import TokenTree
from yggrt.drafters import lm
from yggrt.engine import Engine
from yggrt.gate import OpenGate
from yggrt.loading import load
from yggrt.policies import policy_for
from yggrt.session import Session

pytestmark = pytest.mark.tiny

DRAFTERS = {"self": "self", "self1": "self:1", "other": "other"}
TREES = [
    "sequence:depth=8",
    "static:parents=0/0/1/1/2/2/3/3/4/4/5/5/6/6",
    "egt:width=4,depth=4,children=8,verify=16,frontier=global",
    "egt:width=4,depth=4,children=8,verify=16,frontier=level",
    "egt:width=1,depth=6,children=3",
    "egt:width=6,depth=5,children=12,verify=16",
]


def built(name: str) -> Path:
    source = DRAFTERS[name]
    return bundles.tiny_drafted(name, str(bundles.small_model()) if source == "other" else source)


@functools.cache
def session_of(name: str) -> Session:
    return load(built(name))


@pytest.fixture(params=list(DRAFTERS))
def session(request: pytest.FixtureRequest) -> Session:
    return session_of(request.param)


@pytest.mark.parametrize("tree", TREES)
def test_trees_say_what_plain_decoding_says(session: Session, tree: str) -> None:
    for prompt in prompts(4, (1, 2, 17, 30)):
        plain = decode(session, prompt, 40, plain=True)
        assert decode(session, prompt, 40, tree=tree) == plain
        assert decode(session, prompt, 40, tree=tree, gated=True) == plain


def test_plain_decoding_is_that_of_transformers(session: Session, tiny_reference: Any) -> None:
    for prompt in prompts(3, (1, 5, 40)):
        assert decode(session, prompt, 30, plain=True) == bundles.greedy_ids(
            tiny_reference, prompt, 30
        )


def test_a_node_has_the_bits_that_the_verifier_computes_for_it() -> None:
    """The same weights: growing a tree in steps and verifying it at once are one function."""
    session = session_of("self")
    graphs: Any = session.graphs
    draft: Any = new_drafter(session)._graphs
    rng = random.Random(17)
    for length in (1, 15, 70, 250):
        prefix = [rng.randrange(400) for _ in range(length)]
        tree = random_tree(rng, 29, 400, max_depth=5)
        cache, small = graphs.new_cache(), draft.new_cache()
        fill(graphs, cache, prefix)
        fill(draft, small, prefix)
        wanted = graphs.verify(cache, tree, length).logits
        row = 0
        while row < tree.num_nodes:
            # As many as do not hang below each other.
            nodes = [row]
            while nodes[-1] + 1 < tree.num_nodes and len(nodes) < rng.randrange(1, 5):
                if tree.parents[nodes[-1] + 1] in nodes:
                    break
                nodes.append(nodes[-1] + 1)
            tokens = [tree.tokens[node] for node in nodes]
            found = draft.draft(small, tokens, [tree.path(node) for node in nodes], length).logits
            assert torch.equal(found, wanted[nodes])
            row = nodes[-1] + 1


@pytest.mark.parametrize("tree", ["sequence:depth=8", "egt:width=4,depth=8,children=8,verify=33"])
def test_the_verifier_agrees_with_itself(tree: str) -> None:
    """Every pass accepts as much as its tree has on the greedy path, from the first pass on."""
    session = session_of("self")
    for prompt in prompts(3, (1, 3, 20)):
        done = session.generate(prompt, max_tokens=64, tree=tree, gated=False, ignore_eos=True)
        assert done.stats.alpha == 1
        if tree.startswith("sequence"):
            assert set(done.stats.accepted_histogram) == {8}
        else:
            assert min(done.stats.accepted_histogram) >= 1


@pytest.mark.parametrize("plan", plans("lm", "cpu"), ids=format_plan)
def test_every_plan_grows_the_same_trees(plan: Plan) -> None:
    """Rows that were run earlier have the bits that they would have had later."""
    session = session_of("self1")
    shape = "egt:width=4,depth=3,children=8,verify=13"
    prune = msgspec.structs.replace(Plan(), prune=plan.prune)
    for prompt in prompts(2, (2, 17)):
        plain = decode(session, prompt, 40, plain=True)
        same = session.generate(
            prompt, tree=with_plan(shape, prune), max_tokens=40, ignore_eos=True, gated=False
        )
        done = session.generate(
            prompt, tree=with_plan(shape, plan), max_tokens=40, ignore_eos=True, gated=False
        )
        assert done.ids == same.ids == plain
        assert done.stats.accepted_histogram == same.stats.accepted_histogram
        assert decode(session, prompt, 40, tree=with_plan(shape, plan), gated=True) == plain
        sampled = {"temperature": 0.8, "seed": 5}
        assert decode(session, prompt, 40, tree=with_plan(shape, plan), **sampled) == decode(
            session, prompt, 40, plain=True, **sampled
        )


def with_plan(shape: str, plan: Plan) -> TreeSpec:
    return msgspec.structs.replace(parse_tree_spec(shape), plan=plan)


def test_what_a_plan_runs_early_does_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verifier drafts for itself, so each of eight passes accepts down to a leaf and every
    guess of the next root is right."""
    session, prompt = session_of("self"), prompts(1, (12,))[0]
    drafter: Any = session._parts.drafter
    draft, run_root = drafter._graphs.draft, drafter._run_root
    rows: list[int] = []
    roots: list[None] = []

    def counted(cache: Any, tokens: Sequence[int], *rest: Any) -> Any:
        rows.append(len(tokens))
        return draft(cache, tokens, *rest)

    monkeypatch.setattr(drafter._graphs, "draft", counted)
    monkeypatch.setattr(drafter, "_run_root", lambda: (roots.append(None), run_root())[1])

    def drafted(plan: str) -> tuple[list[int], int]:
        tree = f"sequence:depth=4{plan}"
        rows.clear()
        roots.clear()
        done = session.generate(prompt, tree=tree, max_tokens=41, gated=False, ignore_eos=True)
        assert done.stats.accepted_histogram == {4: 8}
        return rows[:], len(roots)

    # The prompt runs with the first root. Three nodes, then the leaf and the bonus token together.
    assert drafted("") == ([1, 1, 1] + 7 * [2, 1, 1, 1], 8)
    # Three nodes, the leaf, then the bonus token alone.
    assert drafted(";tail=ahead") == (4 * [1] + 7 * 5 * [1], 8)
    # Three nodes, the leaf, what turns out to be the bonus token.
    assert drafted(";tail=ahead,head=post_verify,head_rows=4") == (8 * 5 * [1], 1)


def test_a_plan_for_another_drafter_is_refused() -> None:
    session = load(bundles.tiny("static"))
    with pytest.raises(RequestError) as refused:
        session.generate([5, 6], tree="egt:width=2,depth=2;tail=ahead")
    assert "no model with rows of its own drafts" in refused.value.message
    with pytest.raises(RequestError) as refused:
        session.generate([5, 6], tree="egt:width=2,depth=2;streams=2")
    assert "streams is 2, there is 1 on cpu" in refused.value.message


def test_up_to_the_end_of_the_context() -> None:
    session = session_of("self")
    limit = session.graphs.max_model_len
    for length in (limit - 1, limit - 2, limit - 9, limit - 30):
        prompt = prompts(1, (length,))[0]
        plain = decode(session, prompt, 100, plain=True)
        assert len(plain) == limit - length
        for tree in TREES[:3]:
            assert decode(session, prompt, 100, tree=tree) == plain


def test_beyond_the_drafters_context_decoding_is_plain_and_says_so() -> None:
    session = session_of("other")
    for length in (40, 63, 64, 65, 100):
        prompt = prompts(1, (length,))[0]
        plain = decode(session, prompt, 60, plain=True)
        done = session.generate(prompt, max_tokens=60, tree=TREES[2], gated=False, ignore_eos=True)
        assert done.ids == plain
        passes = done.stats.num_beyond_drafter_passes
        assert passes > 0
        # From 65 tokens on, one token a pass.
        assert passes == length + 60 - max(length + 1, 65)


def test_requests_that_share_a_prefix_equal_fresh_ones(session: Session) -> None:
    rng = random.Random(3)
    ids: list[int] = prompts(1, (12,))[0]
    for turn in range(6):
        kept = rng.randrange(len(ids) + 1)
        ids = [*ids[:kept], *(rng.randrange(3, 400) for _ in range(rng.randrange(1, 9)))]
        options: dict[str, Any] = {"tree": TREES[turn % 4], "plain": turn == 2}
        done = session.generate(
            ids, max_tokens=20, reuse=True, gated=False, ignore_eos=True, **options
        )
        again = session.generate(
            ids, max_tokens=20, reuse=False, gated=False, ignore_eos=True, **options
        )
        assert done.ids == again.ids
        # The drafter's rows were right too: the same drafts, accepted as often.
        if turn != 2:
            assert done.stats.accepted_histogram == again.stats.accepted_histogram
        ids = [*ids, *done.ids]


def test_rows_that_were_kept_draft_what_fresh_rows_draft(session: Session) -> None:
    """After trees of any acceptance and a rewind, children are those of a drafter that starts."""
    old, fresh = session._parts.drafter, new_drafter(session)
    prompt = prompts(1, (9,))[0]
    plain = decode(session, prompt, 30, plain=True)
    spec = parse_tree_spec(TREES[2])
    context = [*prompt, *plain[:1]]
    old.start(context)
    for num in (3, 1, 4, 2):
        # What is emitted was partly drafted, partly not, as acceptance would have it.
        policy_for(spec)(context[-1], spec, old)
        more = plain[len(context) - len(prompt) :][:num]
        old.commit(more)
        context += more
        if num == 4:
            context = context[: len(context) - 2]
            old.rewind(len(context))
        fresh.start(context)
        for paths in ([()], [(5,), (6,), (5, 7)]):
            assert old.candidates(paths, 6) == fresh.candidates(paths, 6)


def new_drafter(session: Session) -> lm.LmDrafter:
    """Another drafter over the session's graphs, with a cache of its own."""
    drafter: Any = session._parts.drafter
    parameters = LmDrafter(temperatures=drafter._children.temperatures)
    return lm.LmDrafter(drafter._graphs, parameters, 400)


# --- growth against transformers in float64 ---------------------------------------------------


def draft_reference(name: str) -> Any:
    """transformers' own drafter in float64."""
    if name == "other":
        folder, layers = bundles.small_model(), None
    else:
        folder, layers = bundles.tiny_model(), {"self": 2, "self1": 1}[name]
    config = AutoConfig.from_pretrained(folder)
    if layers:
        config.num_hidden_layers = layers
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, config=config, attn_implementation="eager", dtype=torch.float64
    )
    return model.eval()


class ReferenceDrafter:
    """Theory: children of a path are the most likely tokens after it, by one whole forward."""

    def __init__(self, model: Any, temperatures: Sequence[float], num_ids: int) -> None:
        self.model, self.temperatures, self.num_ids = model, temperatures, num_ids
        self.context: list[int] = []

    def logits(self, path: Sequence[int]) -> torch.Tensor:
        with torch.no_grad():
            out = self.model(torch.tensor([[*self.context, *path]])).logits[0, -1]
        return out[: self.num_ids]

    def shares(self, path: Sequence[int]) -> torch.Tensor:
        return torch.softmax(self.logits(path) / self.temperatures[len(path)], 0)


def reference_tree(drafter: ReferenceDrafter, spec: TreeSpec) -> dict[tuple[int, ...], float]:
    """Growth as it is defined: in every step the `width` best paths that are not in the tree and
    hang below an expanded one (global), or below one of the newest (level)."""
    scores: dict[tuple[int, ...], float] = {(): 1.0}
    pool: dict[tuple[int, ...], float] = {}
    newest: list[tuple[int, ...]] = [()]
    for _ in range(spec.depth):
        if spec.frontier == "level":
            pool = {}
        for path in newest:
            values, tokens = drafter.shares(path).topk(spec.children)
            for value, token in zip(values.tolist(), tokens.tolist(), strict=True):
                pool[*path, token] = scores[path] * value
        newest = sorted(pool, key=lambda path: -pool[path])[: spec.width]
        for path in newest:
            scores[path] = pool.pop(path)
    return scores


def paths_of(tree: TokenTree) -> dict[tuple[int, ...], float]:
    return {
        tuple(tree.tokens[i] for i in tree.path(row)[1:]): tree.scores[row]
        for row in range(tree.num_nodes)
    }


@pytest.mark.parametrize("frontier", ["global", "level"])
@pytest.mark.parametrize("name", list(DRAFTERS))
def test_growth_is_that_of_a_float64_reference(name: str, frontier: str) -> None:
    drafter: Any = session_of(name)._parts.drafter
    reference = ReferenceDrafter(draft_reference(name), drafter._children.temperatures, 400)
    for text in ("width=4,depth=4,children=8", "width=1,depth=5,children=5", "width=3,depth=3"):
        spec = parse_tree_spec(f"egt:{text},frontier={frontier}")
        for prompt in prompts(3, (1, 6, 33), seed=9):
            reference.context = prompt
            drafter.start(prompt)
            found = paths_of(policy_for(spec)(prompt[-1], spec, drafter))
            wanted = reference_tree(reference, spec)
            assert found.keys() == wanted.keys()
            for path, score in wanted.items():
                assert math.isclose(found[path], score, rel_tol=1e-3, abs_tol=1e-9)


# --- the verifier's noise ---------------------------------------------------------------------


class KeyedNoise:
    """Gumbel noise by position and token."""

    def __init__(self, seed: int, temperature: float) -> None:
        self.seed, self.temperature = seed, temperature

    def __call__(self, position: int, token_ids: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed * 1000 + position)
        uniform = torch.rand(512, dtype=torch.float64, generator=generator)
        return -torch.log(-torch.log(uniform.clamp(1e-12, 1 - 1e-12)))[token_ids]


class KeyedSampler:
    """The verifier's choice: the largest of logits / T + G."""

    def __init__(self, noise: KeyedNoise) -> None:
        self.noise = noise

    def __call__(self, out: Any) -> Any:
        def choose(row: int, position: int) -> int:
            logits = out.logits[row].double()
            gumbel = self.noise(position, torch.arange(len(logits)))
            return int((logits / self.noise.temperature + gumbel).argmax())

        return choose


def sampled(session: Session, tree: str, sampler: KeyedSampler) -> tuple[Engine, list[int]]:
    graphs: Any = session.graphs
    drafter = new_drafter(session)
    engine = Engine(
        graphs, graphs.new_cache(), drafter, parse_tree_spec(tree),
        lambda rows, context: 1.0, 0.0, OpenGate(),
    )  # fmt: skip
    ids = [engine.start([5, 6, 7, 8], sampler=sampler)]
    while len(ids) < 60:
        ids += engine.step().tokens
    return engine, ids[:60]


@pytest.mark.parametrize("seed", range(3))
def test_coupled_drafts_change_no_token(session: Session, seed: int) -> None:
    sampler = KeyedSampler(KeyedNoise(seed, temperature=3.0))
    _, plain = sampled(session, "plain", sampler)
    for tree in TREES[:4]:
        engine, ids = sampled(session, tree, sampler)
        assert ids == plain
        if session is session_of("self"):
            # The same law and the same noise: the same choice.
            assert engine.stats.alpha == 1
    assert plain != sampled(session, "plain", KeyedSampler(KeyedNoise(seed + 10, 3.0)))[1]


def test_coupled_children_are_ranked_by_what_the_verifier_adds() -> None:
    name = "other"
    drafter: Any = new_drafter(session_of(name))
    reference = ReferenceDrafter(draft_reference(name), drafter._children.temperatures, 400)
    noise = KeyedNoise(7, temperature=2.0)
    prompt = prompts(1, (8,))[0]
    reference.context = prompt
    drafter.start(prompt)
    drafter.couple(noise)
    for path in ((), (9,), (9, 30)):
        [found] = drafter.candidates([path], 8)
        law = torch.log_softmax(reference.logits(path) / noise.temperature, 0)
        gumbel = noise(len(prompt) + len(path), torch.arange(400))
        assert [token for token, _ in found] == (law + gumbel).topk(8).indices.tolist()
        shares = [share for _, share in found]
        assert shares == sorted(shares, reverse=True)
        assert 0 < sum(shares) <= 1 + 1e-9
    drafter.couple(None)
    [greedy] = drafter.candidates([()], 8)
    assert [t for t, _ in greedy] == reference.logits(()).topk(8).indices.tolist()


# --- what the bundle holds --------------------------------------------------------------------


def test_the_verifiers_own_layers_are_stored_once() -> None:
    with Bundle.open(bundles.tiny("static")) as plain, Bundle.open(built("self1")) as drafted:
        before, after = plain.manifest, drafted.manifest
    assert after.weights.keys() - before.weights.keys() <= {
        name for name in after.weights if "rotary" in name
    }
    assert not any(name.startswith("drafter.") for name in after.weights)
    assert after.drafter is not None
    assert len(after.drafter.kv_layers) == 1
    assert {source.role for source in after.sources} == {"verifier", "drafter"}
    kinds = [graph.kind for graph in after.graphs if graph.kind in DRAFTER_KINDS]
    assert sorted(kinds) == ["draft", "draft", "draft_prefill"]
    timed = {point.graph for point in after.latency}
    assert {graph.name for graph in after.graphs if graph.kind == "draft"} <= timed
    drafter = after.schedule.drafter
    assert isinstance(drafter, LmDrafter)
    assert len(drafter.temperatures) == 8


def test_another_model_brings_its_own() -> None:
    with Bundle.open(built("other")) as bundle:
        manifest = bundle.manifest
    assert manifest.drafter is not None
    assert (manifest.model.vocab_size, manifest.drafter.vocab_size) == (400, 448)
    assert (manifest.model.max_model_len, manifest.drafter.max_model_len) == (256, 64)
    own = {name for name in manifest.weights if name.startswith("drafter.")}
    bound = {
        name
        for graph in manifest.graphs
        if graph.kind in DRAFTER_KINDS
        for name in graph.constants.values()
    }
    assert own <= bound
    assert any("layers.0" in name for name in own)


def test_tokens_that_the_verifier_lacks_are_never_drafted() -> None:
    drafter: Any = session_of("other")._parts.drafter
    for prompt in prompts(6, (1, 4)):
        drafter.start(prompt)
        for children in drafter.candidates([(), (3,), (4,)], 400):
            assert len(children) == 400
            assert max(token for token, _ in children) < 400


def test_a_drafter_that_never_matches_is_left_out() -> None:
    """A random model drafts for another: the gate closes, and says so."""
    prompt = prompts(1, (3,))[0]
    done = session_of("other").generate(
        prompt, max_tokens=61, tree="egt:width=4,depth=4,children=8,verify=16", ignore_eos=True
    )
    assert done.stats.num_gated_passes > 0.6 * done.stats.num_passes
    assert "gated" in done.stats.line()


def test_every_bundle_takes_full_trees_of_another_drafter(session: Session) -> None:
    prompt = prompts(1, (7,))[0]
    plain = decode(session, prompt, 24, plain=True)
    assert full_tree_ids(session, TREES[2], prompt, plain) == plain


def test_batches_of_any_size_and_order_give_the_same_children(session: Session) -> None:
    """Nodes that nobody asked to run before, repeated ones, and more than a graph holds."""
    drafter: Any = new_drafter(session)
    context = prompts(1, (10,))[0]
    paths = [(5,), (5, 6), (7, 8, 9), (), (5,), (11,), (12,)]
    drafter.start(context)
    together = drafter.candidates(paths, 5)
    for path, found in zip(paths, together, strict=True):
        drafter.start(context)
        assert drafter.candidates([path], 5) == [found]
    for order in itertools.islice(itertools.permutations(range(len(paths))), 0, 5040, 700):
        drafter.start(context)
        shuffled = drafter.candidates([paths[i] for i in order], 5)
        assert shuffled == [together[i] for i in order]
