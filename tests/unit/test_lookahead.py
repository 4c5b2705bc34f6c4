"""Lookahead's window and pool over scripted graphs, against the definition."""

from __future__ import annotations

import random
from typing import Any

import pytest
from scripted import RandomDrafter, ScriptedGraphs

from yggrt.core.errors import RequestError
from yggrt.core.spec import format_tree_spec, parse_tree_spec
from yggrt.drafters.lookahead import POOL_SIZE, LookaheadDrafter
from yggrt.engine import Engine
from yggrt.gate import OpenGate, RunningGate

SPEC = "lookahead:window=5,ngram=4,guesses=3"


class WideGraphs(ScriptedGraphs):
    """Room for a window."""

    def __init__(self, **options: Any) -> None:
        super().__init__(row_counts=(1, 4, 32), max_model_len=200, **options)


def engine_of(graphs: Any, drafter: Any, gate: Any = None, spec: str = SPEC) -> Engine:
    return Engine(
        graphs, graphs.new_cache(), drafter, parse_tree_spec(spec),
        lambda rows, context: 1.0 + rows / 8, 0.0, gate or OpenGate(),
    )  # fmt: skip


def test_specs_round_trip():
    spec = parse_tree_spec(SPEC)
    assert (spec.width, spec.depth, spec.children, spec.verify) == (5, 3, 3, 1 + 3 * (5 + 3))
    assert format_tree_spec(spec) == SPEC


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lookahead:window=5,ngram=4", "guesses is missing"),
        ("lookahead:window=5,ngram=1,guesses=3", "wanted a whole number in 2"),
        ("lookahead:window=500,ngram=4,guesses=3", "1510 rows, at most 1024"),
        ("lookahead:width=5", "no key 'width'"),
    ],
)
def test_bad_specs(text: str, message: str):
    with pytest.raises(RequestError, match=message):
        parse_tree_spec(text)


def test_a_window_row_sees_its_own_sequence():
    """Row (r, i): context, root, level 0 up to column i, its column down to level r; at position
    root + 1 + r + i."""
    drafter = LookaheadDrafter()
    context = [3, 1, 4, 1, 5, 9, 2, 6]
    drafter.start(context)
    tree = drafter.tree(width=5, levels=3, guesses=3)
    window = [level.copy() for level in drafter._window]
    assert tree.num_nodes == 1 + 15
    for level in range(3):
        for column in range(5):
            row = 1 + 5 * level + column
            seen = [tree.tokens[r] for r in tree.path(row)]
            above = [window[r][column] for r in range(1, level + 1)]
            assert seen == [context[-1], *window[0][: column + 1], *above]
            assert tree.depths[row] == 1 + level + column


def test_answers_become_n_grams_and_the_next_level():
    drafter = LookaheadDrafter()
    drafter.start([1, 2, 3])
    tree = drafter.tree(width=2, levels=2, guesses=4)
    first, second = (level.copy() for level in drafter._window)
    answers = [50, 61, 62, 71, 72]
    drafter.learn(tree, answers)
    assert drafter._window == [second, [71, 72]]
    drafter.commit([first[0]])
    # The root begins the first column's n-gram: its guesses stand before the window.
    tree = drafter.tree(width=2, levels=2, guesses=4)
    guess = [tree.tokens[row] for row in tree.path(2)]
    assert guess == [first[0], second[0], 71] or first[0] == first[1]
    drafter.learn(tree.keep([0, 1]), [1, 2])
    assert drafter._window == [second, [71, 72]]


def test_the_pool_keeps_the_newest():
    drafter = LookaheadDrafter()
    drafter.start([7])
    for last in range(POOL_SIZE + 5):
        drafter._window = [[7], [8]]
        tree = drafter.tree(width=1, levels=2, guesses=0)
        drafter.learn(tree, [0, 0, last])
    assert list(drafter._pool[7]) == [(8, last) for last in range(5, POOL_SIZE + 5)]
    assert [token for token, _ in drafter.candidates([(8,)], 3)[0]] == [
        POOL_SIZE + 4, POOL_SIZE + 3, POOL_SIZE + 2,
    ]  # fmt: skip


@pytest.mark.parametrize("gate", [OpenGate, RunningGate])
@pytest.mark.parametrize("vocab_size", [2, 6])
def test_decoding_says_what_plain_decoding_says(gate: Any, vocab_size: int):
    for seed in range(12):
        graphs = WideGraphs(vocab_size=vocab_size)
        draw = random.Random(seed)
        prompt = [draw.randrange(vocab_size) for _ in range(1 + seed)]
        engine = engine_of(graphs, LookaheadDrafter(), gate())
        ids = [engine.start(prompt)]
        while engine.room:
            ids += engine.step().tokens
        assert ids == graphs.plain(prompt, len(ids))
        assert len(prompt) + len(ids) == graphs.max_model_len


def test_text_that_repeats_itself_is_foreseen():
    """The verifier counts round and round: after one round of Jacobi steps all is in the pool."""

    class Counting(WideGraphs):
        def next_token(self, row: int) -> int:
            return self.following[row]

        def _output(self, rows: list[int]) -> Any:
            return super()._output(rows)

    import scripted

    following: dict[int, int] = {}
    original = scripted.digest

    def digest(visible: Any, token: int, position: int) -> int:
        row = original(visible, token, position)
        following[row] = (token + 1) % 6
        return row

    graphs = Counting()
    graphs.following = following
    scripted.digest, kept = digest, scripted.digest
    try:
        engine = engine_of(graphs, LookaheadDrafter())
        engine.start([0, 1, 2])
        while engine.room > 8:
            engine.step()
    finally:
        scripted.digest = kept
    assert engine.stats.mean_acceptance_length > 2


def test_other_drafters_have_no_window():
    graphs = WideGraphs()
    engine = engine_of(graphs, RandomDrafter())
    engine.start([1, 2])
    with pytest.raises(RequestError, match="wants the drafter of that name"):
        engine.step()


def test_a_window_that_brings_nothing_is_closed_out():
    graphs = WideGraphs()
    drafter = LookaheadDrafter()
    engine = Engine(
        graphs, graphs.new_cache(), drafter, parse_tree_spec(SPEC),
        lambda rows, context: float(rows), 0.0, RunningGate(),
    )  # fmt: skip
    engine.start([1, 2, 3])
    while engine.room:
        engine.step()
    assert engine.stats.num_gated > 0.8 * engine.stats.num_passes
