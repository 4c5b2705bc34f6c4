"""The engine over scripted graphs: trees emit what plain decoding emits, whatever is drafted."""

from __future__ import annotations

import pytest
from scripted import OracleDrafter, RandomDrafter, ScriptedGraphs, UselessDrafter

from yggrt.core.accept import greedy
from yggrt.core.errors import RequestError
from yggrt.core.spec import parse_tree_spec
from yggrt.drafters import Drafter
from yggrt.engine import Engine
from yggrt.gate import FREE, Cost, OpenGate, RunningGate

TREES = (
    "sequence:depth=8",
    "sequence:depth=1",
    "egt:width=4,depth=4,verify=16",
    "egt:width=3,depth=3,children=5,verify=8,frontier=level",
    "egt:width=8,depth=4,children=8,verify=16",
    "egt:width=1,depth=6,children=2,verify=5",
    "static:parents=0/0/1/1/2/2",
    "static:parents=0/0/0/1/2/4/5/7/7,verify=7",
)


def make(
    tree: str, drafter: Drafter, graphs: ScriptedGraphs, gate: OpenGate | RunningGate | None = None
) -> Engine:
    """An engine for which any number of rows costs the same, so that trees are as large as they
    may be."""
    spec = parse_tree_spec(tree)
    cache = graphs.new_cache()
    return Engine(graphs, cache, drafter, spec, lambda rows, context: 1.0, 0.0, gate or OpenGate())


def decode(engine: Engine, ids: list[int], *, reuse: bool = False) -> list[int]:
    """Every token up to the context limit."""
    tokens = [engine.start(ids, reuse=reuse)]
    while engine.room:
        tokens.extend(engine.step().tokens)
    return tokens


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("make_drafter", [RandomDrafter, OracleDrafter], ids=["random", "oracle"])
@pytest.mark.parametrize("num_prompt", [1, 2, 3, 4, 5, 9])
def test_tree_emits_what_plain_emits(tree, make_drafter, num_prompt):
    graphs = ScriptedGraphs()
    prompt = [(3 * i + num_prompt) % 6 for i in range(num_prompt)]
    expected = graphs.plain(prompt, graphs.max_model_len - num_prompt)
    engine = make(tree, make_drafter(), graphs)
    assert decode(engine, prompt) == expected
    assert engine.ids == (*prompt, *expected)
    stats = engine.stats
    assert stats.num_tokens == len(expected) - 1 == stats.accepted + stats.num_passes
    assert stats.accepted > 0
    assert stats.num_tests == sum(num * count for num, count in stats.tests_histogram.items())


@pytest.mark.parametrize("row_counts", [(1, 4, 8, 16), tuple(range(1, 17)), (1, 16), (1, 3, 32)])
def test_any_set_of_row_counts(row_counts):
    graphs = ScriptedGraphs(row_counts=row_counts)
    engine = make(TREES[2], OracleDrafter(), graphs)
    assert decode(engine, [1, 2, 3]) == graphs.plain([1, 2, 3], 61)


def test_plain_runs_one_row_and_never_asks_the_drafter():
    graphs = ScriptedGraphs()
    engine = make("plain", UselessDrafter(), graphs)
    assert decode(engine, [5, 0]) == graphs.plain([5, 0], 62)
    assert {call for call in graphs.calls if call[0] != "prefill"} == {("verify", 1)}
    assert engine.stats.num_plain_passes == engine.stats.num_passes == 61
    assert engine.stats.mean_acceptance_length == 1


def test_an_oracle_fills_every_pass():
    graphs = ScriptedGraphs(max_model_len=3 + 1 + 9 * 4)
    engine = make("sequence:depth=8", OracleDrafter(), graphs)
    decode(engine, [1, 2, 3])
    assert engine.stats.accepted_histogram == engine.stats.tests_histogram == {8: 4}
    assert engine.stats.mean_acceptance_length == 9
    assert engine.stats.alpha == 1
    assert ("commit", 8) not in graphs.calls, "a chain's rows lie in place already"


def test_a_tree_larger_than_its_row_counts_is_verified_in_the_next_one():
    graphs = ScriptedGraphs()
    engine = make("sequence:depth=8", OracleDrafter(), graphs)
    engine.start([1, 2, 3])
    assert engine.step().num_rows == 9
    assert graphs.calls[-1] == ("verify", 16)


@pytest.mark.parametrize("num_prompt", range(55, 64))
def test_context_limit_clips_the_tree(num_prompt):
    graphs = ScriptedGraphs()
    prompt = [i % 6 for i in range(num_prompt)]
    engine = make(TREES[2], OracleDrafter(), graphs)
    assert decode(engine, prompt) == graphs.plain(prompt, 64 - num_prompt)
    assert engine.room == 0
    with pytest.raises(RequestError, match="context of 64 tokens is full"):
        engine.step()


def test_prompts_that_do_not_fit_are_refused():
    engine = make("plain", RandomDrafter(), ScriptedGraphs())
    with pytest.raises(RequestError, match="64 tokens, the context holds 64"):
        engine.start([1] * 64)
    with pytest.raises(RequestError, match="no tokens"):
        engine.start([])


def test_a_tree_that_no_graph_holds_is_refused():
    with pytest.raises(RequestError, match="verifies 17 rows, the largest graph holds 16"):
        make("egt:width=4,depth=4", RandomDrafter(), ScriptedGraphs())


@pytest.mark.parametrize("kept", [0, 1, 2, 7, 11, 30])
def test_a_shared_prefix_is_not_computed_again(kept):
    graphs = ScriptedGraphs()
    drafter = RandomDrafter()
    engine = make(TREES[2], drafter, graphs)
    engine.start([1, 2, 3])
    while len(engine.ids) < 32:
        engine.step()
    prompt = [*engine.ids[:kept], 5, 5, 4]
    shared = next(i for i, (a, b) in enumerate(zip(prompt, engine.ids, strict=False)) if a != b)
    graphs.calls.clear()
    tokens = decode(engine, prompt, reuse=True)
    assert tokens == graphs.plain(prompt, 64 - len(prompt))
    assert engine.stats.num_reused == shared
    assert sum(num for call, num in graphs.calls if call == "prefill") == len(prompt) - shared
    assert drafter.context == [*prompt, *tokens]


def test_a_prompt_that_was_decoded_already_runs_its_last_token_again():
    graphs = ScriptedGraphs()
    engine = make(TREES[2], RandomDrafter(), graphs)
    decode(engine, [1, 2, 3])
    prompt = list(engine.ids[:20])
    assert decode(engine, prompt, reuse=True) == graphs.plain(prompt, 44)
    assert engine.stats.num_reused == 19


def test_a_conversation_runs_the_last_emitted_token_with_the_next_prompt():
    graphs = ScriptedGraphs()
    engine = make(TREES[2], RandomDrafter(), graphs)
    engine.start([1, 2, 3])
    while len(engine.ids) < 20:
        engine.step()
    num_before = len(engine.ids)
    prompt = [*engine.ids, 4, 4]
    assert decode(engine, prompt, reuse=True) == graphs.plain(prompt, 64 - len(prompt))
    assert engine.stats.num_reused == num_before - 1


def test_without_reuse_nothing_is_kept():
    graphs = ScriptedGraphs()
    engine = make(TREES[2], RandomDrafter(), graphs)
    first = decode(engine, [1, 2, 3])
    assert decode(engine, [1, 2, 3]) == first
    assert engine.stats.num_reused == 0


def test_rows_are_chosen_by_tokens_per_second():
    graphs = ScriptedGraphs(max_model_len=200)
    spec = parse_tree_spec("egt:width=4,depth=4,verify=16")
    steep = {1: 1.0, 4: 1.1, 8: 5.0, 16: 9.0}
    drafter = OracleDrafter(edge=lambda num: 0.6 if num == 1 else 1 / num)
    engine = Engine(
        graphs,
        graphs.new_cache(),
        drafter,
        spec,
        lambda rows, context: steep[rows],
        0.0,
        OpenGate(),
    )
    decode(engine, [1, 2, 3])
    assert set(engine.stats.rows_histogram) <= {1, 2, 3, 4}


def test_a_useless_drafter_costs_little():
    graphs = ScriptedGraphs(max_model_len=1024)
    seconds = {1: 1.0, 4: 1.2, 8: 1.6, 16: 2.2}
    spec = parse_tree_spec("egt:width=4,depth=4,verify=16")
    engine = Engine(
        graphs,
        graphs.new_cache(),
        UselessDrafter(),
        spec,
        lambda rows, context: seconds[rows],
        0.0,
        RunningGate(),
    )
    engine.start([1, 2, 3])
    while engine.room:
        engine.step()
    stats = engine.stats
    assert stats.accepted == 0
    assert stats.num_gated > 0.9 * stats.num_passes
    total = sum(seconds[bucket] for call, bucket in graphs.calls if call == "verify")
    assert total <= 1.03 * stats.num_tokens * seconds[1]


def test_a_useless_drafter_that_costs_time_costs_little():
    """A draft takes as long as a pass; what it promises is little, so trust alone stays high."""
    graphs = ScriptedGraphs(max_model_len=1024)
    spec = parse_tree_spec("egt:width=4,depth=4,verify=16")
    drafter = UselessDrafter(edge=lambda num: 0.01)
    seconds = {1: 1.0, 4: 1.2, 8: 1.6, 16: 2.2}
    engine = Engine(
        graphs, graphs.new_cache(), drafter, spec, lambda rows, context: seconds[rows],
        0.0, RunningGate(), draft_step=lambda nodes, context: 0.25,
    )  # fmt: skip
    assert decode(engine, [1, 2, 3]) == graphs.plain([1, 2, 3], 1021)
    stats = engine.stats
    assert stats.accepted == 0
    assert stats.num_gated > 0.95 * stats.num_passes
    assert stats.num_drafted + stats.num_gated == stats.num_passes
    verify_s = sum(seconds[bucket] for call, bucket in graphs.calls if call == "verify")
    assert verify_s + stats.num_drafted * 1.0 <= 1.03 * stats.num_tokens


def test_a_drafted_tree_is_verified_more_willingly_the_more_it_cost():
    """What drafting took is spent whatever is verified."""
    rows = []
    steep = {1: 1.0, 4: 1.4, 8: 2.2, 16: 3.8}
    for draft_s in (0.0, 5.0):
        graphs = ScriptedGraphs(max_model_len=200)
        spec = parse_tree_spec("egt:width=4,depth=4,verify=16")
        drafter = OracleDrafter(edge=lambda num: 0.9 if num == 1 else 0.8 / num)
        engine = Engine(
            graphs, graphs.new_cache(), drafter, spec, lambda rows, context: steep[rows],
            0.0, OpenGate(), draft_step=lambda nodes, context, s=draft_s: s / 4,
        )  # fmt: skip
        decode(engine, [1, 2, 3])
        rows.append(engine.stats.num_rows / engine.stats.num_passes)
    assert rows[1] > rows[0]


@pytest.mark.parametrize("trust", [1.0, 0.5])
def test_nodes_that_no_graph_pays_for_are_not_expanded(trust):
    """Half of 0.5 s for 4 rows over 1.2 s a pass: from 0.052 on a node counts."""
    asked = []

    class Listener(OracleDrafter):
        def candidates(self, paths, num):
            asked.extend(paths)
            return super().candidates(paths, num)

    gate = OpenGate()
    gate.trust = trust
    graphs = ScriptedGraphs(row_counts=(1, 5))
    spec = parse_tree_spec("egt:width=4,depth=8,children=1,verify=5")
    seconds = {1: 1.0, 5: 1.5}
    engine = Engine(
        graphs, graphs.new_cache(), Listener(edge=lambda num: 0.5), spec,
        lambda rows, context: seconds[rows], 0.2, gate,
    )  # fmt: skip
    assert decode(engine, [1, 2, 3]) == graphs.plain([1, 2, 3], 61)
    # The only node at depth d has 0.5 ** d.
    assert max(map(len, asked)) == (3 if trust < 1 else 4)


def test_a_tree_that_the_drafter_cannot_hold_is_refused():
    drafter = RandomDrafter()
    drafter.max_expanded = 12
    make("egt:width=4,depth=3", drafter, ScriptedGraphs())
    with pytest.raises(
        RequestError, match="runs 13 nodes through the drafter, its graphs hold 12"
    ):
        make("egt:width=4,depth=4,verify=16", drafter, ScriptedGraphs())


@pytest.mark.parametrize("limit", [1, 3, 10, 40])
def test_beyond_the_drafters_context_decoding_is_plain(limit):
    graphs = ScriptedGraphs()
    drafter = OracleDrafter()
    drafter.max_model_len = limit
    engine = make(TREES[2], drafter, graphs)
    assert decode(engine, [1, 2, 3]) == graphs.plain([1, 2, 3], 61)
    assert engine.stats.num_beyond > 0
    assert engine.stats.num_drafted + engine.stats.num_beyond == engine.stats.num_passes
    assert (engine.stats.accepted > 0) == (limit > 3)


def test_the_drafter_hears_of_the_verifiers_noise_before_each_sequence():
    heard = []

    class Listener(RandomDrafter):
        def couple(self, noise):
            heard.append((noise, list(self.context)))

    class Sampler:
        noise = "noise"

        def __call__(self, out):
            return greedy(out)

    graphs = ScriptedGraphs()
    spec = parse_tree_spec(TREES[0])
    parts = (
        graphs,
        graphs.new_cache(),
        Listener(),
        spec,
        lambda rows, context: 1.0,
        0.0,
        OpenGate(),
    )
    engine = Engine(*parts)
    engine.start([1, 2])
    engine.start([1, 2, 3], sampler=Sampler())
    engine.start([1, 2, 4], reuse=True, sampler=Sampler())
    assert heard == [(None, [1, 2]), ("noise", [1, 2, 3]), ("noise", [1, 2, 4])]


def test_stage_times_add_up():
    engine = make(TREES[2], RandomDrafter(), ScriptedGraphs())
    decode(engine, [1, 2, 3])
    assert all(seconds > 0 for seconds in engine.stats.stage_s.values())


def test_a_plain_pass_is_spared_what_the_host_drafts() -> None:
    """Of a pass of 2 s beside verifying 1 s is drafting; a step of the model takes half a second,
    a row one."""
    costs: list[Cost] = []

    class Heard(OpenGate):
        def record(self, expected: float, accepted: int, cost: Cost = FREE) -> None:
            costs.append(cost)

    graphs = ScriptedGraphs(row_counts=(1, 2))
    engine = Engine(
        graphs, graphs.new_cache(), OracleDrafter(graphs=graphs),
        parse_tree_spec("sequence:depth=1"), lambda rows, context: float(rows), 2.0, Heard(),
        draft_step=lambda num, context: 0.5, draft_host_s=1.0,
    )  # fmt: skip
    engine.start([1, 2])
    engine.step()
    assert costs[0].draft == (0.5 + 1.0) / (2.0 - 1.0 + 1.0)
    assert costs[0].rows in (0.0, 0.5)
