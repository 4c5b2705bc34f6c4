"""The n-gram drafter: its evidence against a brute-force search, its bookkeeping, and its
calibration.
"""

from __future__ import annotations

import random

import msgspec
import pytest

from yggrt.core.schema import NUM_EVIDENCE
from yggrt.core.schema import NgramDrafter as Parameters
from yggrt.drafters.calibrate import Recording, calibrate_ngram, held_out
from yggrt.drafters.ngram import (
    AGREEING,
    DEFAULT_PARAMETERS,
    DIFFERING,
    MAX_OCCURRENCES,
    ONCE,
    RECENCY,
    NgramDrafter,
)

CORPUS = ((1, 2, 3, 4, 5), (9, 2, 3, 4, 6), (9, 9, 3, 4, 5))
WITH_CORPUS = msgspec.structs.replace(
    DEFAULT_PARAMETERS, corpus=CORPUS, corpus_acceptance=((0.2,) * NUM_EVIDENCE,) * 2
)


def drafter_over(ids, parameters: Parameters = DEFAULT_PARAMETERS) -> NgramDrafter:
    drafter = NgramDrafter(parameters)
    drafter.start(ids)
    return drafter


def occurrences(ids: list[int], suffix: list[int]) -> list[int]:
    """What followed `suffix` in `ids`, newest first."""
    length = len(suffix)
    places = range(len(ids) - 1, length - 1, -1)
    return [ids[place] for place in places if ids[place - length : place] == suffix]


def brute_force(ids: list[int], path: list[int], max_match: int) -> list[tuple[int, int, dict]]:
    levels, seen = [], set()
    suffix = [*ids, *path]
    for length in range(min(max_match, len(suffix)), 0, -1):
        following = occurrences(ids, suffix[-length:])[:MAX_OCCURRENCES]
        new = [token for token in following if token not in seen]
        if new:
            weights: dict[int, float] = {}
            for age, token in enumerate(new):
                weights[token] = weights.get(token, 0) + RECENCY**age
            kind = DIFFERING if len(weights) > 1 else ONCE if len(new) == 1 else AGREEING
            levels.append((length - 1, kind + (3 if seen else 0), pytest.approx(weights)))
            seen.update(new)
    return levels


@pytest.mark.parametrize("seed", range(30))
def test_evidence_is_what_a_search_finds(seed):
    rng = random.Random(seed)
    ids = [rng.randrange(3) for _ in range(rng.randrange(1, 40))]
    path = [rng.randrange(3) for _ in range(rng.randrange(4))]
    assert list(drafter_over(ids).evidence(path)) == brute_force(ids, path, 8)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("parameters", [DEFAULT_PARAMETERS, WITH_CORPUS], ids=["plain", "corpus"])
def test_candidates_are_distinct_ordered_and_sum_to_at_most_one(seed, parameters):
    rng = random.Random(seed)
    drafter = drafter_over([rng.randrange(8) for _ in range(200)], parameters)
    for _ in range(50):
        path = [rng.randrange(8) for _ in range(rng.randrange(5))]
        found = drafter.candidates([path], 8)[0]
        tokens, shares = zip(*found, strict=True)
        assert len(set(tokens)) == len(tokens) <= 8
        assert list(shares) == sorted(shares, reverse=True)
        assert 0 < sum(shares) <= 1 + 1e-12
        assert drafter.candidates([path], 2)[0] == found[:2]
        assert drafter.candidates([path], 8)[0] == found, "asking changes nothing"


@pytest.mark.parametrize("seed", range(10))
def test_rewind_and_commit_equal_a_fresh_start(seed):
    rng = random.Random(seed)
    ids = [rng.randrange(4) for _ in range(60)]
    drafter = drafter_over(ids)
    for _ in range(10):
        kept = rng.randrange(len(ids) + 1)
        ids = [*ids[:kept], *(rng.randrange(4) for _ in range(rng.randrange(20)))]
        drafter.rewind(kept)
        drafter.commit(ids[kept:])
        fresh = drafter_over(ids)
        assert drafter._places == fresh._places
        assert drafter.candidates([(1, 2)], 8)[0] == fresh.candidates([(1, 2)], 8)[0]


def test_a_long_match_beats_a_frequent_short_one():
    ids = [1, 2, 3, 7, 5, 3, 8, 6, 3, 8, 4, 3, 8, 1, 2, 3]
    assert drafter_over(ids).candidates([()], 2)[0][0][0] == 7


def test_the_newest_of_two_continuations_comes_first():
    [found] = drafter_over([1, 5, 1, 6, 1]).candidates([()], 2)
    assert [token for token, _ in found] == [6, 5]


def test_a_path_is_matched_as_if_it_were_context():
    drafter = drafter_over([1, 2, 3, 4, 5, 1])
    whole = drafter_over([1, 2, 3, 4, 5, 1, 2, 3])
    assert drafter.candidates([(2, 3)], 1) == whole.candidates([()], 1)
    assert drafter.candidates([(9,)], 4)[0] == []


def test_nothing_is_known_of_an_empty_or_new_text():
    assert drafter_over([]).candidates([()], 4) == [[]]
    assert drafter_over([1, 2, 3]).candidates([()], 4) == [[]]


def test_the_corpus_speaks_after_the_context():
    drafter = drafter_over([3, 4], WITH_CORPUS)
    # (3, 4) was followed by 5 twice and by 6 once; (4,) adds no token.
    (level,) = drafter.evidence(())
    assert (level.row, level.column, level.weights) == (9, DIFFERING, {5: 2, 6: 1})
    drafter = drafter_over([3, 4, 6, 3, 4], WITH_CORPUS)
    context, corpus = drafter.evidence(())
    assert (context.row, context.weights) == (1, {6: 1})
    assert (corpus.row, corpus.column, corpus.weights) == (9, AGREEING + 3, {5: 2})


def test_the_first_ids_of_a_corpus_text_are_context_only():
    drafter = drafter_over([1], WITH_CORPUS)
    assert drafter.candidates([()], 4)[0] == [], "2 after 1 belongs to a prompt"


def recordings(seed: int, num: int) -> list[Recording]:
    """Outputs in which 1 2 3 4 comes back and other tokens never do."""
    rng = random.Random(seed)
    made = []
    for i in range(num):
        noise = iter(range(1000 * (i + 1), 1000 * (i + 2)))
        output = []
        for _ in range(20):
            output += [1, 2, 3, 4] if rng.random() < 0.5 else [next(noise)]
        made.append(Recording([5, 6, 7], output))
    return made


def test_calibration_learns_what_holds():
    parameters = calibrate_ngram(recordings(0, 8), corpus_match=0)
    assert parameters.corpus == parameters.corpus_acceptance == ()
    assert len(parameters.acceptance) == 8
    # After 1, 2 and after 2, 3: what follows is certain once it was seen twice.
    assert parameters.acceptance[1][AGREEING] > 0.9
    drafter = drafter_over([1, 2, 8, 1, 2, 9, 1], parameters)
    token, probability = drafter.candidates([()], 1)[0][0]
    assert token == 2
    assert probability > 0.9


def test_calibration_of_nothing_is_modest():
    parameters = calibrate_ngram([])
    table = parameters.acceptance + parameters.corpus_acceptance
    assert {cell for row in table for cell in row} == {0.2}
    assert len(table) == 8 + 3


def test_a_text_is_never_its_own_evidence():
    texts = recordings(1, 9)
    parameters = calibrate_ngram(texts)
    assert len(parameters.corpus) == 9
    folds = held_out(parameters, texts)
    assert sorted(id(text) for _, fold in folds for text in fold) == sorted(map(id, texts))
    for drafter, fold in folds:
        for _, output, _ in fold:
            noise = next(token for token in output if token >= 1000)
            drafter.start([noise])
            assert drafter.candidates([()], 1)[0] == []


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (((0.5,) * NUM_EVIDENCE,), "acceptance has 1 rows, wanted max_match = 2"),
        (((0.5,), (0.5,)), "wanted 6 numbers in 0..1"),
        (((0.5,) * NUM_EVIDENCE, (1.5,) * NUM_EVIDENCE), "wanted 6 numbers in 0..1"),
    ],
)
def test_a_table_of_the_wrong_size_is_refused(table, message):
    with pytest.raises(ValueError, match=message):
        Parameters(max_match=2, acceptance=table)
