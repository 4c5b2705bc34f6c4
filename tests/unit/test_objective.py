"""The objective on numbers that can be checked by hand; exact fractions throughout."""

from __future__ import annotations

from fractions import Fraction as F

import pytest

from yggrt.core.objective import choose_depth, choose_num_rows, running_tokens, survival

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
