"""What the figures of a report show, against numbers worked out by hand."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from fractions import Fraction as F

import msgspec
import pytest
from report.lab import TREE, bench, bench_json, candidate, drafted_lab, lab, policies_json

from yggc.report_page.acceptance import promise_kept, reliability
from yggc.report_page.chain import Chain, alpha_of, cost_of
from yggc.report_page.iteration import iteration
from yggc.report_page.measured import Bench, ComparedPolicies
from yggc.report_page.policies import lengths_by_policy
from yggc.report_page.prediction import Pair, median_error, pairs, rank_correlation
from yggc.report_page.speedup_map import Cell, draw_map, recorded_map, replayed_map
from yggc.report_page.svg import svg_of
from yggc.report_page.times import curves, read_and_compute
from yggrt.core.schema import LatencyPoint

pytest.importorskip("matplotlib")


def test_curves_have_medians_ranges_the_monotone_fit_and_jumps() -> None:
    first, second = curves(lab())
    assert (first.kind, first.context, first.rows) == ("verify", 8, (1, 4, 8))
    assert first.median_ms == pytest.approx((10, 12, 18))
    assert first.spread_ms == pytest.approx((1, 1.2, 1.8))
    assert first.jumps == ((4, 8),)
    assert second.median_ms == pytest.approx((12, 13, 17))
    # At 8 rows the longer context was quicker: both become their mean.
    assert first.monotone_ms == pytest.approx((10, 12, 17.5))
    assert second.monotone_ms == pytest.approx((12, 13, 17.5))
    assert second.jumps == ()
    assert [one.kind for one in curves(drafted_lab())] == ["verify", "verify", "draft"]


@pytest.mark.parametrize(
    ("rows", "times", "line"),
    [
        ((1, 2, 4), (3, 4, 6), (2, 1)),
        ((1, 8), (5, 5), (5, 0)),
        # (a + b - 1)^2 + (a/2 + b - 1)^2 + (a/2 + 3b/2 - 1)^2: 1.5 a + 2.25 b = 2 and
        # 2.25 a + 4.25 b = 3.5.
        ((1, 2, 3), (1, 2, 2), (10 / 21, 4 / 7)),
    ],
)
def test_read_and_compute(
    rows: tuple[int, ...], times: tuple[float, ...], line: tuple[float, float]
) -> None:
    assert read_and_compute(rows, times) == pytest.approx(line)


def test_the_recorded_map_has_the_best_of_each_width_and_depth() -> None:
    other = candidate(TREE.replace("verify=4", "verify=5"), 2.1, 7.0, 1.5, None, None)
    assert recorded_map((*lab().schedule.candidates, other)) == {
        (2, 2): Cell(1.5, 2.1, 5),
        (1, 3): Cell(1.1, 1.8, 4),
        (1, 2): Cell(1.4, 1.7, 3),
    }
    assert recorded_map([]) == {}


def timed(ms_a_row: float) -> tuple[LatencyPoint, ...]:
    return tuple(
        LatencyPoint(graph=name, rows=rows, context=8, median_s=0.001 * ms, spread_s=0.0)
        for name, rows in (("w001", 1), ("w004", 4), ("w008", 8))
        for ms in [10 + ms_a_row * (rows - 1)]
    )


def test_the_replayed_map_where_rows_are_free_and_where_they_cost_too_much() -> None:
    free = msgspec.structs.replace(lab(rest_s=0.0), latency=timed(0.0))
    found = replayed_map(free)
    assert set(found) == {(w, d) for w in (1, 2, 4, 8) for d in (1, 2, 3, 4, 6, 8)}
    for (_, depth), cell in found.items():
        # Every pass takes T(1), so tokens a pass are all of the speed-up.
        assert cell.speedup == pytest.approx(cell.tokens_per_pass)
        assert 1 < cell.tokens_per_pass <= depth + 1
    assert found[1, 4].speedup > found[1, 1].speedup
    assert replayed_map(free) == found
    dear = replayed_map(msgspec.structs.replace(lab(rest_s=0.0), latency=timed(100.0)))
    assert {cell.speedup for cell in dear.values()} == {1.0}


def test_pairs_of_predicted_and_measured_time() -> None:
    build = [
        Pair("plain", 10.0, 10.0, "build"),
        Pair(TREE, 8.0, 10.0, "build"),
        Pair("sequence:depth=3", 9.0, 9.0, "build"),
    ]
    candidates = lab().schedule.candidates
    assert list(pairs(candidates, [])) == build
    assert list(pairs(candidates, [bench()])) == [
        *build, Pair("plain", 10.0, 11.0, "bench"), Pair(TREE, 8.0, 8.8, "bench"),
    ]  # fmt: skip
    # 0, 1/5 and 0; and of the bench 1/11 twice.
    assert median_error(build) == 0
    assert median_error(pairs(candidates, [bench()])) == pytest.approx(1 / 11)


def test_rank_correlation() -> None:
    assert rank_correlation([1, 2, 3, 4], [10, 20, 30, 99]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3, 4], [9, 8, 7, 1]) == pytest.approx(-1)
    # Ranks 1 2 3 4 5 and 1 2 3.5 5 3.5: 8 over the root of 10 times 9.5.
    assert rank_correlation([1, 2, 3, 4, 5], [5, 6, 7, 8, 7]) == pytest.approx(8 / 95**0.5)
    assert rank_correlation([1, 2], [1, 2]) is None
    assert rank_correlation([1, 2, 3], [4, 4, 4]) is None


def test_reliability_is_of_means_a_pass() -> None:
    low, high = reliability(bench())
    assert (low.expected, low.accepted, low.num_passes) == (0.25, 0.5, 40)
    assert (high.expected, high.accepted) == (pytest.approx(4 / 3), pytest.approx(7 / 6))
    assert promise_kept(bench()) == 1
    tree = {**bench_json()["tree"], "promised": []}
    assert promise_kept(msgspec.convert(bench_json(tree=tree), Bench)) is None


def test_lengths_of_policies_at_equal_rows() -> None:
    [found] = msgspec.convert(policies_json(), ComparedPolicies).temperatures
    assert lengths_by_policy(found) == {"egt": [(4, 1.5), (8, 2.0)], "sequence": [(4, 1.25)]}


def test_one_iteration_that_n_grams_draft() -> None:
    bars = iteration(lab(), context=8)
    assert [(one.lane, one.name) for one in bars] == [
        ("host", "draft"), ("verifier's graph", "verify 4 rows in 4"), ("host", "accept"),
        ("host", "commit"), ("host", "other"),
    ]  # fmt: skip
    assert [one.ms for one in bars] == pytest.approx([2, 12, 0.5, 0.3, 0.2])
    assert [one.start_ms for one in bars] == pytest.approx([0, 2, 14, 14.5, 14.8])


def test_one_iteration_that_a_model_drafts() -> None:
    made = drafted_lab()
    bars = iteration(made, context=8)
    assert [(one.lane, one.name) for one in bars][:3] == [
        ("drafter's graphs", "draft step 1, W = 1"), ("drafter's graphs", "draft step 2, W = 2"),
        ("host", "draft"),
    ]  # fmt: skip
    # The draft stage of 2 ms is shorter than its graphs: nothing is left for the host.
    assert [one.ms for one in bars[:3]] == pytest.approx([2, 3, 0])
    schedule = msgspec.structs.replace(made.schedule, stage_s={"draft": 0.006}, rest_s=0.5)
    longer = iteration(msgspec.structs.replace(made, schedule=schedule), context=8)
    assert [one.ms for one in longer] == pytest.approx([2, 3, 1, 12])


def test_one_iteration_of_plain_decoding_and_of_a_host_that_was_not_split() -> None:
    plain = iteration(lab(tree="plain", stage_s={}), context=8)
    assert [(one.name, one.ms) for one in plain] == [
        ("verify 1 rows in 1", pytest.approx(10)), ("all of the host", 1.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("alpha", "cost", "best", "at_best"),
    [
        (50, 2, 4, "1.7940"), (50, 10, 2, "1.4583"), (60, 5, 4, "1.9213"), (70, 5, 6, "2.3529"),
        (70, 20, 3, "1.5831"), (80, 2, 11, "3.8167"), (80, 5, 8, "3.0921"), (80, 10, 6, "2.4696"),
        (90, 5, 13, "4.6741"), (90, 10, 10, "3.4309"), (90, 20, 7, "2.3731"),
    ],
)  # fmt: skip
def test_the_best_chain_in_exact_numbers(alpha: int, cost: int, best: int, at_best: str) -> None:
    chain = Chain(F(alpha, 100), F(cost, 100), "")
    assert chain.best_depth == best
    assert f"{float(chain.speedup(best)):.4f}" == at_best
    assert chain.speedup_with_rows(best, lambda rows: F(7)) == chain.speedup(best)


def test_a_chain_whose_rows_cost() -> None:
    chain = Chain(F(1, 2), F(1, 10), "")
    # 3/2 tokens at 10 a token over 12 for two rows and a draft step of 1.
    assert chain.speedup_with_rows(1, {1: F(10), 2: F(12)}.__getitem__) == F(15, 13)
    assert Chain(F(1, 10), F(1, 10), "").best_depth == 0


def test_alpha_is_the_first_choices() -> None:
    found = alpha_of(lab(), bench())
    assert found is not None
    assert found[0] == 0.5
    assert "160 tests" in found[1]
    assert alpha_of(lab(), None) is None
    agreed = alpha_of(drafted_lab(), None)
    assert agreed is not None
    assert agreed[0] == 0.7


def test_cost_of_a_draft_step() -> None:
    assert cost_of(drafted_lab(), context=8)[0] == pytest.approx(2 / 10)
    # 2 ms for two levels over a plain pass of 10 ms.
    assert cost_of(lab(), context=8)[0] == pytest.approx(1 / 10)
    assert cost_of(lab(tree="plain"), context=8)[0] == 0


def test_a_figure_is_one_element_of_the_page() -> None:
    found = recorded_map(lab().schedule.candidates)
    title = 'a <"$b$"> & c'
    svg = svg_of(lambda figure: draw_map(figure, found), title, 4, 3)
    element = ElementTree.fromstring(svg)
    assert element.tag.endswith("svg")
    assert element.get("aria-label") == title
    assert "1.40" in svg
    assert "depth D" in svg
    assert "currentColor" in svg
    ids = [one.get("id") for one in element.iter() if one.get("id")]
    assert all(f"#{name}" in svg for name in ids)
    assert svg == svg_of(lambda figure: draw_map(figure, found), title, 4, 3)
