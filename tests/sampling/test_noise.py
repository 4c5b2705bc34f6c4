"""Keyed noise: a function of its key alone, with the right law, and the token it picks."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import Any

import pytest
import torch

from yggrt.core.errors import RequestError
from yggrt.core.gumbel import gumbel, gumbel_nearly, portable_log
from yggrt.sampling import noise as noise_of
from yggrt.sampling.draw import FEW, LOUD_BITS, draw, most_likely
from yggrt.sampling.filters import Kept
from yggrt.sampling.noise import KeyedNoise, mix64, stream_key

NUM_LAW_TESTS = 10
ALPHA = 1e-3 / NUM_LAW_TESTS
KNOWN = ["0x1.eb1aee45ece26p-3", "0x1.27a15a07140c5p-2", "0x1.732d395061620p+0"]


def chi_square_p(observed: torch.Tensor, expected: torch.Tensor) -> float:
    """P of a value as large by chance; cells of fewer than 5 expected are merged into one."""
    rare = expected < 5
    if rare.any():
        observed = torch.cat([observed[~rare], observed[rare].sum().reshape(1)])
        expected = torch.cat([expected[~rare], expected[rare].sum().reshape(1)])
    statistic = ((observed - expected) ** 2 / expected).sum()
    degrees = torch.tensor((len(expected) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, statistic.double() / 2))


def test_splitmix_gives_its_published_numbers() -> None:
    # The first outputs of SplitMix64 from state 1234567 (Rosetta Code, "Pseudo-random
    # numbers/Splitmix64").
    words = [mix64((1234567 + i * 0x9E3779B97F4A7C15) % 2**64) for i in range(1, 6)]
    assert words == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_the_tensors_compute_the_documented_generator() -> None:
    for seed, choice, position in [(0, 0, 0), (2**64 - 1, 3, 77), (12345, 0, 100_000)]:
        found = KeyedNoise(seed, choice, 1.0).uniform(position, torch.arange(500))
        key = stream_key(seed, choice, position)
        for token in range(500):
            word = mix64((key + (token + 1) * 0x9E3779B97F4A7C15) % 2**64)
            # The order of signed words: 2^63 and up come first.
            upper = (word ^ 2**63) >> 12
            assert Fraction(float(found[token])) == Fraction(2 * upper + 1, 2**53)


def test_known_bits() -> None:
    """The same on every machine, today and tomorrow: a seed's tokens are a promise."""
    found = KeyedNoise(42, 0, 1.0).portable(7, torch.tensor([0, 1, 49151]))
    assert [value.hex() for value in found.tolist()] == KNOWN


def test_a_token_asked_for_alone_has_the_bits_it_has_among_others() -> None:
    noise = KeyedNoise(9, 1, 0.7)
    everything = noise.portable(5, torch.arange(3000))
    words, _ = noise.loud(5, 3000, LOUD_BITS)
    assert torch.equal(gumbel(noise_of.uniform_of(words.clone())), everything)
    for ids in ([17], [2999, 3], list(range(100, 131))):
        assert torch.equal(noise.portable(5, torch.tensor(ids)), everything[ids])
        quick = noise(5, torch.tensor(ids))
        assert torch.allclose(quick, everything[ids], rtol=0, atol=1e-13)
    assert noise.of_one(5, 17) == pytest.approx(float(everything[17]), abs=1e-12)


def test_every_part_of_the_key_matters() -> None:
    ids = torch.arange(200)
    base = KeyedNoise(1, 0, 1.0)(1, ids)
    for other in (KeyedNoise(2, 0, 1.0)(1, ids), KeyedNoise(1, 1, 1.0)(1, ids)):
        assert not (base == other).any()
    assert not (base == KeyedNoise(1, 0, 1.0)(2, ids)).any()
    assert base.unique().numel() == 200


def test_the_logarithm_is_right_to_two_ulp() -> None:
    rng = random.Random(4)
    values = [rng.random() for _ in range(2000)]
    values += [1 - rng.random() * 2.0 ** -rng.randrange(1, 53) for _ in range(2000)]
    values += [37 * rng.random() for _ in range(500)]
    values += [2.0**-53, 1 - 2.0**-53, math.sqrt(0.5), 1.0, 0.5, 2.0]
    found = portable_log(torch.tensor(values, dtype=torch.float64)).tolist()
    for value, log in zip(values, found, strict=True):
        # math.log is within one ulp.
        assert abs(log - math.log(value)) <= 3 * math.ulp(math.log(value)), value


def test_noise_lies_within_its_bounds() -> None:
    ends = torch.tensor([2.0**-53, 1 - 2.0**-53], dtype=torch.float64)
    low, high = gumbel(ends).tolist()
    assert noise_of.GUMBEL_MIN <= low < noise_of.GUMBEL_MIN + 1e-8
    assert noise_of.GUMBEL_MAX >= high > noise_of.GUMBEL_MAX - 1e-8
    for bits in (1, 3, LOUD_BITS):
        words, loud = KeyedNoise(3, 0, 1.0).loud(2, 40_000, bits)
        loud = loud.clone()
        noise = gumbel(noise_of.uniform_of(words))
        assert float(noise[~loud].max()) <= noise_of.loudness(bits) <= noise[loud].min() + 2e-9
        assert int(loud.sum()) == pytest.approx(40_000 / 2**bits, rel=0.5)


def scores_of(rng: random.Random, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    scores = torch.randn(size, generator=generator) * rng.choice([0.1, 1, 3, 8, 100, 2e4])
    if rng.random() < 0.3:
        scores = scores.round()
    if rng.random() < 0.5:
        scores[torch.rand(size, generator=generator) < rng.random()] = -math.inf
        scores[rng.randrange(size)] = rng.choice([0.0, 50.0])
    return scores


def test_discarding_changes_no_token() -> None:
    """Against noise for the whole vocabulary, at all shapes of distributions."""
    rng = random.Random(6)
    for trial in range(200):
        size = rng.choice([1, 2, 8, 300, 300, FEW + 1, FEW + 1, 20_000])
        scores = scores_of(rng, size)
        noise = KeyedNoise(trial, 0, 1.0)
        wanted = int((scores.double() + noise.portable(trial, torch.arange(size))).argmax())
        kept = Kept.all(scores)
        assert draw(kept, noise, trial) == wanted
        assert draw(kept.select((scores > -math.inf).nonzero().squeeze(1)), noise, trial) == wanted
        assert draw(kept, noise, trial, likely=int(scores.argmax())) == wanted
        assert draw(kept, noise, trial, likely=rng.randrange(size)) == wanted


def test_sums_that_quick_logarithms_cannot_tell_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal noise on equal scores is a tie, which the lowest id wins."""
    same = torch.full((50,), 0.3, dtype=torch.float64)
    monkeypatch.setattr(KeyedNoise, "uniform", lambda self, position, ids: same[ids])
    scores = torch.full((50,), -math.inf)
    scores[[7, 9, 31]] = 2.5
    in_it = Kept.all(scores).select(torch.tensor([7, 9, 31]))
    assert draw(in_it, KeyedNoise(1, 0, 1.0), 0) == 7
    assert most_likely(scores) == 7


def test_nothing_to_choose_from() -> None:
    noise = KeyedNoise(1, 0, 1.0)
    for scores, words in (
        (torch.full((9,), -math.inf), "no token"),
        (torch.zeros(9) * math.nan, "a logit is nan"),
        (torch.zeros(9) + math.inf, "a logit is inf"),
    ):
        with pytest.raises(RequestError, match=words):
            draw(Kept.all(scores), noise, 0)
        with pytest.raises(RequestError, match=words):
            most_likely(scores)


def bulk(scores: torch.Tensor, seeds: range, choice: int, position: int) -> torch.Tensor:
    """`draw` for many seeds at once: scores [seeds, vocab] to tokens [seeds]."""
    keys = [noise_of._signed(stream_key(seed, choice, position)) for seed in seeds]
    steps = torch.arange(1, scores.shape[1] + 1) * noise_of._signed(0x9E3779B97F4A7C15)
    words = torch.tensor(keys).unsqueeze(1) + steps
    noise_of._mix_in_place(words, torch.empty_like(words))
    noise = gumbel_nearly(noise_of.uniform_of(words))
    return (scores.double() + noise).argmax(1)


def conditional(num: int) -> list[torch.Tensor]:
    """Logits of the next of eight tokens after 0, 1 and 2 tokens: [8] * place + [8]."""
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(*[8] * (place + 1), generator=generator) * 1.2 for place in range(num)]


def triples(seeds: range, choice: int = 0) -> torch.Tensor:
    """Three tokens per seed, each from logits that depend on those before: [seeds, 3]."""
    first, second, third = conditional(3)
    a = bulk(first.expand(len(seeds), 8), seeds, choice, 5)
    b = bulk(second[a], seeds, choice, 6)
    c = bulk(third[a, b], seeds, choice, 7)
    return torch.stack([a, b, c], 1)


def test_the_joint_law_of_three_tokens() -> None:
    """200,000 draws, 512 cells. Two draws in a thousand of all law tests fail by chance, once."""
    num = 200_000
    found = triples(range(num))
    observed = torch.bincount(found @ torch.tensor([64, 8, 1]), minlength=512).double()
    probs = [logits.double().softmax(-1) for logits in conditional(3)]
    joint = (probs[0][:, None, None] * probs[1][:, :, None] * probs[2]).flatten()
    assert chi_square_p(observed, num * joint) > ALPHA


def test_bulk_draws_are_the_samplers_own() -> None:
    first, second, third = conditional(3)
    found = triples(range(300)).tolist()
    for seed, (a, b, c) in enumerate(found):
        noise = KeyedNoise(seed, 0, 1.0)
        assert [
            draw(Kept.all(first), noise, 5),
            draw(Kept.all(second[a]), noise, 6),
            draw(Kept.all(third[a, b]), noise, 7),
        ] == [
            a,
            b,
            c,
        ]


@pytest.mark.parametrize("related", ["next seed", "next choice", "next position", "far seed"])
def test_related_keys_are_independent(related: str) -> None:
    """Pairs of tokens under keys that differ in one part follow the product of their laws."""
    num = 60_000
    logits = conditional(1)[0].expand(num, 8)
    seeds = range(1000, 1000 + num)
    other: dict[str, tuple[range, int, int]] = {
        "next seed": (range(1001, 1001 + num), 0, 3),
        "next choice": (seeds, 1, 3),
        "next position": (seeds, 0, 4),
        "far seed": (range(2**63, 2**63 + num), 0, 3),
    }
    pairs = bulk(logits, seeds, 0, 3) * 8 + bulk(logits, *other[related])
    probs = conditional(1)[0].double().softmax(0)
    observed = torch.bincount(pairs, minlength=64).double()
    assert chi_square_p(observed, num * (probs[:, None] * probs).flatten()) > ALPHA


def test_upper_bits_are_even_over_tokens_and_positions() -> None:
    counts: Any = torch.zeros(256, dtype=torch.float64)
    noise = KeyedNoise(77, 0, 1.0)
    for position in range(20):
        upper = (noise.uniform(position, torch.arange(50_000)) * 256).long()
        counts += torch.bincount(upper, minlength=256)
    assert chi_square_p(counts, torch.full((256,), counts.sum().item() / 256)) > ALPHA


def test_a_wrong_law_is_noticed() -> None:
    """The test's power: noise at 1.05 times its strength fails."""
    num = 200_000
    logits = conditional(1)[0]
    tokens = bulk((logits / 1.05).expand(num, 8), range(num), 0, 0)
    expected = num * logits.double().softmax(0)
    assert chi_square_p(torch.bincount(tokens, minlength=8).double(), expected) < ALPHA
