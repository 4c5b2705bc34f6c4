"""Temperature and the filters against transformers' own warpers: the same bits."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from yggrt.sampling import filters
from yggrt.sampling.filters import Kept

Filter = Callable[[torch.Tensor], torch.Tensor]


def random_scores(seed: int) -> torch.Tensor:
    """Flat and steep, with and without ties and tokens that are out."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    size = rng.choice([1, 2, 5, 40, 400, 3000, 20_000])
    scores = torch.randn(size, generator=generator) * rng.choice([0.01, 0.5, 2, 5, 20])
    if seed % 3 == 0:
        scores = (scores * 4).round() / 4
    if seed % 4 == 0:
        out = torch.rand(size, generator=generator) < 0.7
        out[rng.randrange(size)] = False
        scores = scores.masked_fill(out, -math.inf)
    if seed % 11 == 0:
        scores.fill_(1.5)
    return scores


@pytest.fixture
def stable_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of equal scores transformers' top-p keeps is left to an unstable sort; a stable one
    makes it definite.
    """
    plain = torch.sort
    monkeypatch.setattr(
        torch, "sort", lambda *args, **options: plain(*args, **{**options, "stable": True})
    )


def same(found: torch.Tensor, warper: Filter, scores: torch.Tensor) -> bool:
    wanted = warper(torch.zeros(1, 1, dtype=torch.int64), scores[None])[0]  # type: ignore[call-arg]
    return torch.equal(found, wanted)


@pytest.mark.parametrize("temperature", [0.001, 0.3, 0.6, 1.5, 100.0])
def test_temperature(temperature: float) -> None:
    for seed in range(20):
        scores = random_scores(seed)
        assert same(
            filters.heat(scores, temperature), TemperatureLogitsWarper(temperature), scores
        )


@pytest.mark.parametrize("num", [1, 2, 7, 50, 5000])
def test_top_k(num: int) -> None:
    for seed in range(60):
        scores = random_scores(seed)
        assert same(filters.top_k(Kept.all(scores), num).dense(), TopKLogitsWarper(num), scores)


@pytest.mark.parametrize("mass", [1e-6, 0.1, 0.5, 0.9, 0.95, 0.999, 0.999999])
def test_top_p(mass: float, stable_sort: None) -> None:
    for seed in range(150):
        scores = random_scores(seed)
        before = scores.clone()
        assert same(
            filters.top_p(Kept.all(scores), mass).dense(), TopPLogitsWarper(mass), scores
        ), seed
        assert torch.equal(scores, before)


def test_top_p_keeps_as_many_of_equal_scores_as_transformers() -> None:
    """Without a stable sort it keeps others of the same score, as many."""
    for seed in range(0, 150, 3):
        scores = random_scores(seed)
        found = filters.top_p(Kept.all(scores), 0.9).dense()
        wanted = TopPLogitsWarper(0.9)(torch.zeros(1, 1, dtype=torch.int64), scores[None])[0]
        assert torch.equal(found.sort().values, wanted.sort().values)


@pytest.mark.parametrize("share", [1e-6, 0.02, 0.1, 0.5, 1.0])
def test_min_p(share: float) -> None:
    for seed in range(60):
        scores = random_scores(seed)
        assert same(
            filters.min_p(Kept.all(scores), share).dense(), MinPLogitsWarper(share), scores
        )


def test_all_in_the_order_of_transformers(stable_sort: None) -> None:
    for seed in range(150):
        scores = random_scores(seed)
        rng = random.Random(seed)
        temperature, num = rng.uniform(0.2, 2), rng.choice([3, 40, 1000])
        mass, share = rng.uniform(0.3, 0.99), rng.uniform(0.001, 0.2)
        found = filters.top_k(Kept.all(filters.heat(scores, temperature)), num)
        found = filters.min_p(filters.top_p(found, mass), share)
        wanted = scores[None]
        for warper in (
            TemperatureLogitsWarper(temperature),
            TopKLogitsWarper(num),
            TopPLogitsWarper(mass),
            MinPLogitsWarper(share),
        ):
            wanted = warper(torch.zeros(1, 1, dtype=torch.int64), wanted)
        assert torch.equal(found.dense(), wanted[0])


def test_top_p_sorts_the_whole_vocabulary_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """On steep distributions, which a language model's mostly are."""
    sizes = []
    plain = torch.Tensor.sort
    monkeypatch.setattr(
        torch.Tensor,
        "sort",
        lambda self, **options: sizes.append(len(self)) or plain(self, **options),
    )
    generator = torch.Generator().manual_seed(1)
    for _ in range(50):
        filters.top_p(Kept.all(torch.randn(20_000, generator=generator) * 8), 0.9)
    assert sum(size == 20_000 for size in sizes) <= 5
