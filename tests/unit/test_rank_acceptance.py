"""Acceptance by rank and depth, against drafters of known laws; shapes that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction as F

import pytest
from scripted import RandomDrafter, ScriptedGraphs

from yggrt.core.errors import RequestError
from yggrt.core.schema import RankAcceptance
from yggrt.core.spec import draft_steps, format_tree_spec, parse_tree_spec
from yggrt.core.static_trees import medusa_order, path_parents, sequoia_tree, tree_tokens
from yggrt.drafters import Candidate
from yggrt.drafters.calibrate import Recording
from yggrt.drafters.rank_acceptance import NUM_DEPTHS, NUM_RANKS, measure_ranks
from yggrt.policies import Measured, Room, resolve, settings_of

GRAPHS = ScriptedGraphs()
POOLED = (0.6, 0.2, 0.1)
SECONDS = {1: 1.0, 4: 1.1, 8: 1.2, 16: 2.0}


class Ranked(RandomDrafter):
    """The right token at the rank that its position says, none where that is `missing`."""

    missing = 4

    def children(self, path_tokens: Sequence[int], num: int) -> list[Candidate]:
        text = [*self.context, *path_tokens]
        right = GRAPHS.plain(text, 1)[0]
        others = [token for token in range(num) if token != right]
        rank = len(text) % 5
        tokens = [*others[:rank], right, *others[rank:]] if rank != self.missing else others
        return [(token, 0.9 / num) for token in tokens[:num]]


def recorded(num: int) -> list[Recording]:
    prompts = [[i % 6, 2, 3] for i in range(num)]
    return [Recording(prompt, GRAPHS.plain(prompt, 40)) for prompt in prompts]


def test_ranks_are_counted_where_the_tokens_above_were_candidates() -> None:
    recordings = recorded(2)
    ranks = measure_ranks([(Ranked(), recordings)], num_positions=80)
    # Outputs begin at position 3: ranks 3, none, 0, 1, 2, ... by position modulo 5.
    hits = [[0] * NUM_RANKS for _ in range(NUM_DEPTHS)]
    tests = [0] * NUM_DEPTHS
    for _ in recordings:
        for place in range(3, 43):
            for depth in range(min(NUM_DEPTHS, 43 - place)):
                tests[depth] += 1
                rank = (place + depth) % 5
                if rank == Ranked.missing:
                    break
                hits[depth][rank] += 1
    # A right token at least every fifth position: no path is longer than four.
    assert ranks.num_tests == tuple(num for num in tests if num)
    assert ranks.shares == tuple(
        tuple(hit / num for hit in row) for row, num in zip(hits, tests, strict=True) if num
    )
    total = sum(tests)
    assert ranks.pooled == pytest.approx([sum(row[i] for row in hits) / total for i in range(8)])


def test_few_positions_are_spread_over_all_recordings() -> None:
    ranks = measure_ranks([(Ranked(), recorded(4))], num_positions=40)
    assert ranks.num_tests[0] == 40


def test_without_recordings_nothing_is_known() -> None:
    assert measure_ranks([]) == RankAcceptance()
    assert RankAcceptance().pooled == ()


@pytest.mark.parametrize(
    ("shares", "num_tests"), [(((1.5,),), (1,)), (((0.6, 0.5),), (1,)), (((0.5,),), ())]
)
def test_impossible_shares_are_refused(shares, num_tests) -> None:
    with pytest.raises(ValueError, match=r"shares|depths"):
        RankAcceptance(shares=shares, num_tests=num_tests)


def measured(
    shares: tuple[tuple[float, ...], ...] = (POOLED,) * 7,
    max_expanded: int = 100,
    step_s: float = 0.0,
) -> Measured:
    return Measured(
        RankAcceptance(shares=shares, num_tests=(10,) * len(shares)),
        tuple(SECONDS),
        max_expanded,
        lambda rows, context: SECONDS[rows],
        0.0,
        lambda num, context: step_s,
    )


@pytest.mark.parametrize("rows", [4, 5, 8, 16])
def test_sequoia_is_the_programs_tree(rows: int) -> None:
    spec = resolve(parse_tree_spec(f"sequoia:rows={rows}"), measured())
    tokens, _ = sequoia_tree(POOLED, rows, 8)
    assert tree_tokens(spec.parents, POOLED) == pytest.approx(tokens)
    assert spec.verify == rows == len(spec.parents) + 1
    assert format_tree_spec(spec) == f"sequoia:rows={rows}"
    # Three ranks fill no more than 13 rows on three levels.
    flat = min(rows, 13)
    three = resolve(parse_tree_spec(f"sequoia:rows={flat},levels=3"), measured())
    assert three.parents == sequoia_tree(POOLED, flat, 3)[1]
    assert three.depth <= 2


def test_sequoia_without_a_size_takes_the_fastest() -> None:
    def rate(rows: int, levels: int, step_s: float) -> float:
        tokens, parents = sequoia_tree(POOLED, rows, levels)
        steps = len(draft_steps(parse_tree_spec("static:parents=" + "/".join(map(str, parents)))))
        return tokens / (SECONDS[rows] + step_s * steps)

    for step_s in (0.0, 0.2, 0.6):
        spec = resolve(parse_tree_spec("sequoia"), measured(step_s=step_s))
        best = max(
            rate(rows, levels, step_s)
            for rows in (4, 8, 16)
            for levels in range(2, 9)
            if levels <= rows <= sum(3**i for i in range(levels))
        )
        steps = len(draft_steps(spec))
        found = tree_tokens(spec.parents, POOLED) / (SECONDS[spec.verify] + step_s * steps)
        assert found == pytest.approx(best)
    assert resolve(parse_tree_spec("sequoia"), measured()).verify == 8
    assert len(draft_steps(resolve(parse_tree_spec("sequoia"), measured(step_s=0.6)))) < 3


def test_sequoia_keeps_to_what_the_drafter_holds() -> None:
    assert sum(draft_steps(resolve(parse_tree_spec("sequoia:rows=8"), measured()))) > 4
    few = resolve(parse_tree_spec("sequoia:rows=8"), measured(max_expanded=4))
    assert sum(draft_steps(few)) <= 4


def test_medusa_is_the_best_paths_of_the_accuracies_of_each_depth() -> None:
    shares = ((0.5, 0.2, 0.1), (0.4, 0.15))
    spec = resolve(parse_tree_spec("medusa:nodes=6"), measured(shares))
    assert spec.parents == path_parents([path for path, _ in medusa_order(shares, 6)])
    assert spec.parents == (0, 0, 1, 0, 2, 1)
    assert (spec.depth, spec.verify) == (2, 7)
    every = resolve(parse_tree_spec("medusa:nodes=15"), measured(shares))
    assert (len(every.parents), every.verify) == (9, 10)


def test_a_rank_that_did_better_than_the_one_before_comes_after_it_all_the_same() -> None:
    spec = resolve(parse_tree_spec("medusa:nodes=3"), measured(((0.3, 0.4, 0.0),)))
    assert spec.parents == (0, 0)


@pytest.mark.parametrize("tree", ["sequoia", "sequoia:rows=4", "medusa:nodes=3"])
def test_a_bundle_without_measured_acceptance_is_refused_by_name(tree: str) -> None:
    with pytest.raises(RequestError, match=f"tree {tree}: the bundle says nothing") as caught:
        resolve(parse_tree_spec(tree), measured(()))
    assert "yggrt tune" in caught.value.tip


def test_other_specs_are_their_own() -> None:
    for text in ("plain", "egt:width=2,depth=2", "specinfer:expansion=2/1", "sequence:depth=3"):
        assert resolve(parse_tree_spec(text), measured()) == parse_tree_spec(text)


def test_settings_fit_the_room() -> None:
    room = Room(row_counts=(1, 4, 8, 16), widths=(1, 4), max_depth=4, max_expanded=13)
    for name in ("egt", "level", "sequence", "specinfer", "sequoia", "medusa", "plain"):
        found = settings_of(name, room)
        assert found, name
        assert all(spec.policy == name and spec.verify <= 16 for spec in found)
        assert all(sum(draft_steps(spec)) <= 13 and spec.depth <= 4 for spec in found)
        assert all(parse_tree_spec(format_tree_spec(spec)) == spec for spec in found)
    assert settings_of("static", room) == []
    alone = Room(row_counts=(1,), widths=(1,), max_depth=4, max_expanded=13)
    assert [name for name in ("egt", "level", "sequoia", "plain") if settings_of(name, alone)] == [
        "plain"
    ]


def test_specinfer_on_paper_and_in_the_grammar() -> None:
    acceptance = (F(6, 10), F(2, 10), F(1, 10))
    spec = parse_tree_spec("specinfer:expansion=1/1/3/1/1/1/1/1")
    assert len(spec.parents) == 20
    assert tree_tokens(spec.parents, acceptance) == F(1067269, 390625)
    assert tree_tokens(parse_tree_spec("specinfer:expansion=2/2/1").parents, acceptance) == F(
        353, 125
    )
