"""The objective on numbers that can be checked by hand; exact fractions throughout."""

from __future__ import annotations

import random
from fractions import Fraction as F

import pytest

from yggrt.core.objective import (
    RATIO,
    Objective,
    best_chain_depth,
    chain_operations,
    chain_speedup,
    chain_tokens,
    choose_depth,
    choose_num_rows,
    draft_seconds,
    least_value,
    long_run_choices,
    running_tokens,
    speedup,
    survival,
)

VALUES = [F(60, 100), F(42, 100), F(30, 100), F(24, 100), F(168, 1000), F(168, 1000)]
SECONDS = {1: 20, 2: 20, 3: 21, 4: 22, 5: 24, 6: 27, 7: 31}
DRAFT_S = F(4)


def test_speedup_of_every_row_count():
    tokens = running_tokens(VALUES)
    speedups = [tokens[rows - 1] * SECONDS[1] / (DRAFT_S + SECONDS[rows]) for rows in range(1, 8)]
    assert [f"{float(speedup):.5f}" for speedup in speedups] == [
        "0.83333", "1.33333", "1.61600", "1.78462", "1.82857", "1.76000", "1.65486",
    ]  # fmt: skip
    assert tokens[-1] == F(2896, 1000)


def test_rows_with_most_tokens_per_second_not_with_most_tokens():
    assert choose_num_rows(VALUES, SECONDS, SECONDS.__getitem__, DRAFT_S) == 5
    assert choose_num_rows(VALUES, (1, 3, 7), SECONDS.__getitem__, DRAFT_S) == 7
    assert choose_num_rows(VALUES, (7, 1), lambda rows: F(rows), F(0)) == 1


def test_ties_take_the_smaller_row_count():
    assert choose_num_rows([F(1)], (1, 2), lambda rows: F(rows), F(0)) == 1
    assert choose_num_rows([F(1, 2)], (2, 4, 8), lambda rows: F(1), F(0)) == 2


def test_a_row_count_beyond_the_tree_is_weighed_with_the_whole_tree():
    assert choose_num_rows([F(1, 2)] * 2, (1, 8), lambda rows: F(1), F(0)) == 8
    assert choose_num_rows([], (1, 8), lambda rows: F(1), F(0)) == 1


def test_survival_is_the_product_of_hazards():
    assert survival([F(9, 10), F(8, 10), F(5, 10), F(5, 10)]) == [
        F(9, 10), F(18, 25), F(9, 25), F(9, 50),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("step_s", "speedups", "best"),
    [
        (2, ["1.00000", "1.72727", "2.18333", "2.29231", "2.25714"], 3),
        (4, ["1.00000", "1.58333", "1.87143", "1.86250", "1.75556"], 2),
    ],
)
def test_depth_from_hazards(step_s, speedups, best):
    hazards = [F(9, 10), F(8, 10), F(5, 10), F(5, 10)]
    tokens = running_tokens(survival(hazards))
    found = [tokens[depth] * 20 / F(step_s * depth + 20) for depth in range(5)]
    assert [f"{float(speedup):.5f}" for speedup in found] == speedups
    assert choose_depth(hazards, lambda depth: F(step_s * depth + 20)) == best


@pytest.mark.parametrize(
    ("alpha", "depth", "tokens", "operations"),
    [
        (F(6, 10), 2, F(49, 25), "1.53"),
        (F(7, 10), 3, F(2533, 1000), "1.58"),
        (F(8, 10), 2, F(61, 25), "1.23"),
        (F(8, 10), 5, F(11529, 3125), "1.63"),
        (F(9, 10), 2, F(271, 100), "1.11"),
        (F(9, 10), 10, (1 - F(9, 10) ** 11) / (1 - F(9, 10)), "1.60"),
    ],
)
def test_chains_with_a_free_drafter(alpha, depth, tokens, operations):
    assert chain_tokens(alpha, depth) == tokens == chain_speedup(alpha, depth, F(0))
    assert f"{float(chain_operations(alpha, depth, F(0))):.2f}" == operations


DEPTHS = (1, 2, 3, 4, 5, 7, 10)


@pytest.mark.parametrize(
    ("tenths", "tokens"),
    [
        (5, "1.50000 1.75000 1.87500 1.93750 1.96875 1.99219 1.99902"),
        (6, "1.60000 1.96000 2.17600 2.30560 2.38336 2.45801 2.49093"),
        (7, "1.70000 2.19000 2.53300 2.77310 2.94117 3.14117 3.26742"),
        (8, "1.80000 2.44000 2.95200 3.36160 3.68928 4.16114 4.57050"),
        (9, "1.90000 2.71000 3.43900 4.09510 4.68559 5.69533 6.86189"),
    ],
)
def test_expected_tokens_of_chains(tenths, tokens):
    alpha = F(tenths, 10)
    found = [chain_tokens(alpha, depth) for depth in DEPTHS]
    assert found == [(1 - alpha ** (depth + 1)) / (1 - alpha) for depth in DEPTHS]
    assert [f"{float(one):.5f}" for one in found] == tokens.split()


@pytest.mark.parametrize(
    ("alpha", "cost", "speedups", "best", "at_best"),
    [
        (50, 2, "1.4706 1.6827 1.7689 1.7940 1.7898 1.7475 1.6659", 4, "1.7940"),
        (50, 10, "1.3636 1.4583 1.4423 1.3839 1.3125 1.1719 0.9995", 2, "1.4583"),
        (60, 5, "1.5238 1.7818 1.8922 1.9213 1.9067 1.8207 1.6606", 4, "1.9213"),
        (70, 5, "1.6190 1.9909 2.2026 2.3109 2.3529 2.3268 2.1783", 6, "2.3529"),
        (70, 20, "1.4167 1.5643 1.5831 1.5406 1.4706 1.3088 1.0891", 3, "1.5831"),
        (80, 2, "1.7647 2.3462 2.7849 3.1126 3.3539 3.6501 3.8088", 11, "3.8167"),
        (80, 5, "1.7143 2.2182 2.5670 2.8013 2.9514 3.0823 3.0470", 8, "3.0921"),
        (80, 10, "1.6364 2.0333 2.2708 2.4011 2.4595 2.4477 2.2853", 6, "2.4696"),
        (90, 5, "1.8095 2.4636 2.9904 3.4126 3.7485 4.2188 4.5746", 13, "4.6741"),
        (90, 10, "1.7273 2.2583 2.6454 2.9251 3.1237 3.3502 3.4309", 10, "3.4309"),
        (90, 20, "1.5833 1.9357 2.1494 2.2751 2.3428 2.3731 2.2873", 7, "2.3731"),
    ],
)
def test_walltime_of_chains(alpha, cost, speedups, best, at_best):
    alpha, cost = F(alpha, 100), F(cost, 100)
    found = [f"{float(chain_speedup(alpha, depth, cost)):.4f}" for depth in DEPTHS]
    assert found == speedups.split()
    assert best_chain_depth(alpha, cost, 60) == best
    assert f"{float(chain_speedup(alpha, best, cost)):.4f}" == at_best


def test_values_that_a_wrong_formula_in_circulation_misses():
    assert chain_speedup(F(8, 10), 4, F(1, 10)) == F(2101, 875)
    assert chain_speedup(F(0), 4, F(1, 10)) == 1 / F(14, 10)
    assert chain_speedup(F(1), 4, F(1, 10)) == 5 / F(14, 10)
    # Accepted tokens over drafted ones are not the acceptance of each.
    assert (chain_tokens(F(8, 10), 4) - 1) / 4 == F(369, 625)


@pytest.mark.parametrize("cost", [F(1, 10), F(1, 2), F(9, 10)])
def test_a_chain_pays_just_when_acceptance_exceeds_its_cost(cost):
    assert best_chain_depth(cost, cost, 40) == 0
    assert best_chain_depth(cost + F(1, 100), cost, 40) > 0
    assert chain_speedup(F(7, 10), 1, cost) == F(17, 10) / (1 + cost)


def test_time_of_drafting_and_speedup():
    assert [draft_seconds(depth, F(3), F(2)) for depth in (0, 1, 2, 4)] == [0, 3, 5, 9]
    pass_s = draft_seconds(4, F(3), F(2)) + 20 + F(1)
    assert speedup(F(3), F(20), pass_s) == F(3 * 20, 30)


def test_the_ratio_of_each_context_is_not_the_best_of_the_text():
    small_or_big = [
        (F(1, 2), [(F(1), F(10)), (F(7, 5), F(15))]),
        (F(1, 2), [(F(4), F(12)), (F(6), F(20))]),
    ]
    per_context = [max(options, key=lambda o: o[0] / o[1]) for _, options in small_or_big]
    assert per_context == [(1, 10), (4, 12)]
    assert sum(o[0] for o in per_context) / sum(o[1] for o in per_context) == F(5, 22)
    choices, rate = long_run_choices(small_or_big)
    assert (choices, rate) == ([0, 1], F(7, 30))
    objective = Objective("lagrangian", rate)
    assert objective.value(F(4), F(12)) == F(12, 10) < objective.value(F(6), F(20)) == F(4, 3)
    every = [
        (F(a[0] + b[0]), F(a[1] + b[1]))
        for a in small_or_big[0][1] for b in small_or_big[1][1]
    ]  # fmt: skip
    assert rate == max(tokens / seconds for tokens, seconds in every)


def test_a_lagrangian_adds_rows_while_they_bring_more_than_their_time_is_worth():
    objective = Objective("lagrangian", F(1, 10))
    rows = choose_num_rows(VALUES, SECONDS, SECONDS.__getitem__, DRAFT_S, objective)
    marginal = [
        VALUES[k - 1] > F(1, 10) * (SECONDS[k + 1] - SECONDS[k]) for k in range(1, 7)
    ]  # fmt: skip
    assert rows == 1 + marginal.index(False) == 5
    # What is spent before the choice does not change it.
    assert choose_num_rows(VALUES, SECONDS, SECONDS.__getitem__, F(99), objective) == rows
    with pytest.raises(ValueError, match="rate above 0"):
        Objective("lagrangian")


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("objective", [RATIO, Objective("lagrangian", F(1, 2))])
def test_nodes_below_the_least_value_fill_no_larger_graph(seed, objective):
    rng = random.Random(seed)
    counts, rest = (1, 4, 8, 16), F(rng.randrange(3), 4)
    times = sorted(rng.sample(range(4, 40), 4))
    seconds = {rows: F(time, 4) for rows, time in zip(counts, times, strict=True)}
    least = least_value(seconds, rest, objective)
    for _ in range(20):
        values = sorted((F(rng.randrange(1, 20), 20) for _ in range(15)), reverse=True)
        taken = choose_num_rows(values, counts, seconds.__getitem__, rest, objective)
        if taken > 1:
            before = max(count for count in counts if count < taken)
            added = values[before - 1 : taken - 1]
            assert sum(added) / len(added) >= least


def test_the_least_value_of_free_rows_is_nothing():
    assert least_value({1: 1.0, 4: 1.0, 8: 1.0}, 0.0) == 0
    assert least_value({1: 1.0}, 0.0) == 0
    assert least_value({1: 1.0, 5: 1.4}, 1.0) == pytest.approx(0.05)
    assert least_value({1: 1.0, 5: 1.4}, 1.0, Objective("lagrangian", 0.8)) == pytest.approx(0.08)
