"""Shares of a language model's candidates, and how its temperatures are fitted."""

from __future__ import annotations

import math
import random

import pytest
import torch

from yggrt.core.schema import LmDrafter
from yggrt.core.shares import NOISE_POOL
from yggrt.core.spec import draft_steps, parse_tree_spec
from yggrt.drafters.calibrate_lm import TEMPERATURES, Sample, fit_temperatures
from yggrt.drafters.children import best_children, coupled_children


class FixedNoise:
    """The same noise at every position: one value for each token."""

    def __init__(self, values: torch.Tensor, temperature: float) -> None:
        self.values, self.temperature = values, temperature

    def __call__(self, position: int, token_ids: torch.Tensor) -> torch.Tensor:
        return self.values[token_ids]


def gumbel(num: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(num, dtype=torch.float64, generator=generator)
    return -torch.log(-torch.log(uniform.clamp(1e-12, 1 - 1e-12)))


def test_shares_are_a_softmax_at_the_rows_temperature():
    logits = 3 * torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    temperatures = torch.tensor([0.5, 1.0, 4.0])
    for row, found in enumerate(best_children(logits, temperatures, 7)):
        wanted = torch.softmax(logits[row].double() / temperatures[row], 0)
        values, tokens = wanted.topk(7)
        assert [token for token, _ in found] == tokens.tolist()
        assert [share for _, share in found] == pytest.approx(values.tolist(), rel=1e-5)


@pytest.mark.parametrize("size", [40, 3 * NOISE_POOL])
def test_without_noise_coupled_shares_are_the_uncoupled_ones(size):
    logits = 3 * torch.randn(2, size, generator=torch.Generator().manual_seed(1))
    temperatures = torch.tensor([0.7, 2.0])
    silent = FixedNoise(torch.zeros(size, dtype=torch.float64), 1.0)
    coupled = coupled_children(logits, temperatures, 5, silent, [3, 4])
    for found, wanted in zip(coupled, best_children(logits, temperatures, 5), strict=True):
        assert [token for token, _ in found] == [token for token, _ in wanted]
        assert [s for _, s in found] == pytest.approx([s for _, s in wanted], rel=1e-5)


def test_coupled_shares_are_a_softmax_of_what_the_verifier_compares():
    logits = 2 * torch.randn(1, 30, generator=torch.Generator().manual_seed(2))
    noise = FixedNoise(gumbel(30, 3), temperature=1.5)
    [found] = coupled_children(logits, torch.tensor([0.8]), 30, noise, [0])
    wanted = torch.softmax((logits[0].double() + 1.5 * noise.values) / 0.8, 0)
    for token, share in found:
        assert share == pytest.approx(float(wanted[token]), rel=1e-6)
    assert sum(share for _, share in found) == pytest.approx(1.0)


@pytest.mark.parametrize("temperature", [0.02, 30.0])
def test_extreme_temperatures_stay_finite(temperature):
    logits = 40 * torch.randn(1, 2 * NOISE_POOL, generator=torch.Generator().manual_seed(4))
    scale = torch.tensor([temperature])
    noise = FixedNoise(gumbel(2 * NOISE_POOL, 5), 1.0)
    for [found] in (
        best_children(logits, scale, 8),
        coupled_children(logits, scale, 8, noise, [0]),
    ):
        assert all(0 <= share <= 1 for _, share in found)
        assert sum(share for _, share in found) <= 1 + 1e-5


def test_the_share_is_the_match_rate_where_the_model_of_it_holds():
    """The verifier's logits are the drafter's plus Gumbel noise of scale 0.6; both add T G.

    20,000 draws: the mean share may lie 4 standard errors (below 0.0142) from the match rate.
    """
    rng = torch.Generator().manual_seed(6)
    total_share = total_match = 0.0
    num = 20_000
    for _ in range(num):
        logits = 2 * torch.randn(1, 6, dtype=torch.float64, generator=rng)
        uniform = torch.rand(2, 6, dtype=torch.float64, generator=rng)
        ours, shared = -torch.log(-torch.log(uniform.clamp(1e-12, 1 - 1e-12)))
        noise = FixedNoise(shared, temperature=0.9)
        [[(token, share)]] = coupled_children(logits, torch.tensor([0.6]), 1, noise, [0])
        choice = int((logits[0] + 0.6 * ours + 0.9 * shared).argmax())
        total_share += share
        total_match += choice == token
    assert abs(total_share - total_match) / num < 4 * 0.5 / math.sqrt(num)


def samples(temperature: float, num: int, streak: int, seed: int) -> list[Sample]:
    """Tokens drawn from a softmax at `temperature` of random logits."""
    rng = random.Random(seed)
    made = []
    for _ in range(num):
        logits = [rng.gauss(0, 3) for _ in range(20)]
        weights = [math.exp(one / temperature) for one in logits]
        chosen = rng.choices(logits, weights)[0]
        sums = tuple(math.log(sum(math.exp(one / t) for one in logits)) for t in TEMPERATURES)
        made.append(Sample(chosen, sums, streak, chosen == max(logits)))
    return made


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5, 9.0])
def test_the_temperature_that_made_the_choices_is_found(temperature):
    found = fit_temperatures(samples(temperature, 4000, 0, 1), 1)
    assert found[0] == pytest.approx(temperature, rel=0.12)


def test_depths_are_fitted_on_what_a_tree_would_reach():
    made = samples(4.0, 3000, 0, 2) + samples(1.0, 3000, 1, 3) + samples(0.5, 20, 2, 4)
    first, second, third, fourth = fit_temperatures(made, 4)
    assert first > second
    assert second == pytest.approx(1.0, rel=0.12)
    # Twenty positions are too few: the depth above stands.
    assert third == fourth == second


def test_nothing_to_go_by_is_temperature_one():
    assert fit_temperatures([], 3) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("temperatures", [(), (0.0,), (1.0, -1.0), (float("inf"),)])
def test_temperatures_are_positive(temperatures):
    with pytest.raises(ValueError, match="wanted positive numbers"):
        LmDrafter(temperatures=temperatures)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("plain", ()),
        ("sequence:depth=3", (1, 1, 1)),
        ("egt:width=4,depth=3", (1, 4, 4)),
        ("egt:width=4,depth=1", (1,)),
        ("static:parents=0/0/1/1/2/2", (1, 2)),
        ("static:parents=0/1/0/2/2", (1, 1, 1)),
    ],
)
def test_nodes_that_a_tree_expands(text, steps):
    assert draft_steps(parse_tree_spec(text)) == steps
