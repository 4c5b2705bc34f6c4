"""The n-gram drafter: what followed the last few tokens before, in this text or in the verifier's
earlier answers.

Evidence comes in levels, strongest first: continuations of the longest suffix that occurred before
in prompt and output, then of shorter ones, then the same in a corpus of texts that the verifier
wrote when the bundle was built. A level speaks for the tokens that no stronger level named
(prediction by partial matching, with exclusion). How far to believe a level is measured, not
assumed: see `calibrate.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

from yggrt.core import schema
from yggrt.drafters import UNLIMITED, Candidate, Drafter

# Occurrences of a suffix that are looked at, newest first, each counting for less than the one
# after it.
MAX_OCCURRENCES = 16
RECENCY = 0.8
# Continuations kept per corpus n-gram.
MAX_CONTINUATIONS = 8
# Levels are asked until less than this probability is left for them to share.
MIN_REMAINDER = 0.02

ONCE, AGREEING, DIFFERING = range(3)
_SHARE = itemgetter(1)

# Measured on texts of a 135M-parameter chat model (mathematics, code, general): a start where
# nothing of the verifier at hand is known yet.
DEFAULT_PARAMETERS = schema.NgramDrafter(
    max_match=8,
    acceptance=(
        (0.30, 0.62, 0.45, 0.18, 0.30, 0.39),
        (0.57, 0.79, 0.57, 0.29, 0.48, 0.46),
        (0.65, 0.82, 0.49, 0.28, 0.49, 0.39),
        (0.67, 0.83, 0.59, 0.34, 0.67, 0.59),
        (0.71, 0.89, 0.51, 0.27, 0.52, 0.43),
        (0.75, 0.90, 0.60, 0.34, 0.47, 0.60),
        (0.76, 0.92, 0.60, 0.45, 0.53, 0.65),
        (0.85, 0.97, 0.76, 0.45, 0.53, 0.65),
    ),
)


class Evidence(NamedTuple):
    """One level's new tokens with their weights, and where its measured acceptance stands in the
    table.

    `row` is the match length less one, corpus rows after the context's. `column` is ONCE, AGREEING
    or DIFFERING by what its occurrences say; 3 more if a stronger level spoke before.
    """

    row: int
    column: int
    weights: dict[int, float]


class NgramDrafter(Drafter):
    """A Drafter over suffix matches. Updates and rewinds cost a constant per token."""

    max_expanded = UNLIMITED
    max_model_len = UNLIMITED

    def __init__(self, parameters: schema.NgramDrafter) -> None:
        self._max_match = parameters.max_match
        self._corpus_match = len(parameters.corpus_acceptance)
        self._acceptance = parameters.acceptance + parameters.corpus_acceptance
        self._corpus = _index_corpus(parameters.corpus, self._corpus_match)
        self._ids: list[int] = []
        # n-gram -> places of the tokens that followed it, oldest first.
        self._places: dict[tuple[int, ...], list[int]] = {}

    def start(self, ids: Sequence[int]) -> None:
        self._ids = []
        self._places = {}
        self.commit(ids)

    def commit(self, tokens: Sequence[int]) -> None:
        ids, places = self._ids, self._places
        for token in tokens:
            end = len(ids)
            for length in range(1, min(self._max_match, end) + 1):
                places.setdefault(tuple(ids[end - length :]), []).append(end)
            ids.append(token)

    def rewind(self, num_tokens: int) -> None:
        ids, places = self._ids, self._places
        while len(ids) > num_tokens:
            ids.pop()
            end = len(ids)
            for length in range(1, min(self._max_match, end) + 1):
                gram = tuple(ids[end - length :])
                places[gram].pop()
                if not places[gram]:
                    del places[gram]

    def candidates(self, paths: Sequence[Sequence[int]], num: int) -> list[list[Candidate]]:
        return [self._children(path, num) for path in paths]

    def _children(self, path_tokens: Sequence[int], num: int) -> list[Candidate]:
        found: list[Candidate] = []
        remainder = 1.0
        for row, column, weights in self.evidence(path_tokens):
            acceptance = self._acceptance[row][column]
            share = remainder * acceptance / sum(weights.values())
            for token, weight in weights.items():
                found.append((token, share * weight))
            remainder *= 1 - acceptance
            if remainder < MIN_REMAINDER:
                break
        found.sort(key=_SHARE, reverse=True)
        return found[:num]

    def evidence(self, path_tokens: Sequence[int]) -> Iterator[Evidence]:
        """Levels that name a token no stronger level did, strongest first."""
        ids, longest = self._ids, max(self._max_match, self._corpus_match)
        suffix = (*ids[-longest:], *path_tokens)[-longest:]
        seen: set[int] = set()
        after = 0
        for length, places in reversed(self._matches(suffix)):
            weights: dict[int, float] = {}
            num, weight = 0, 1.0
            for place in places[: -MAX_OCCURRENCES - 1 : -1]:
                token = ids[place]
                if token not in seen:
                    weights[token] = weights.get(token, 0.0) + weight
                    weight *= RECENCY
                    num += 1
            if weights:
                yield Evidence(length - 1, _column(num, len(weights)) + after, weights)
                seen.update(weights)
                after = 3
        for length in range(self._corpus_match, 0, -1):
            counts = self._corpus.get(suffix[-length:])
            if counts:
                weights = {token: num for token, num in counts.items() if token not in seen}
                if weights:
                    column = _column(sum(weights.values()), len(weights)) + after
                    yield Evidence(self._max_match + length - 1, column, weights)
                    seen.update(weights)
                    after = 3

    def _matches(self, suffix: tuple[int, ...]) -> list[tuple[int, list[int]]]:
        """Length and places of every suffix that occurred before, shortest first; of suffixes with
        the same places the longest.
        """
        matches: list[tuple[int, list[int]]] = []
        known, end, num_shorter = self._places, len(suffix), 0
        for length in range(1, min(self._max_match, end) + 1):
            places = known.get(suffix[end - length :])
            if places is None:
                break
            if len(places) == num_shorter:
                matches.pop()
            num_shorter = len(places)
            matches.append((length, places))
        return matches


def _column(num_occurrences: float, num_tokens: int) -> int:
    if num_tokens > 1:
        return DIFFERING
    return ONCE if num_occurrences == 1 else AGREEING


def _index_corpus(
    corpus: Sequence[Sequence[int]], max_match: int
) -> dict[tuple[int, ...], dict[int, float]]:
    """n-gram -> its most frequent continuations and their counts; the first `max_match` ids of a
    text are context.
    """
    counts: dict[tuple[int, ...], dict[int, float]] = {}
    for ids in corpus:
        text = tuple(ids)
        for end in range(max_match, len(text)):
            for length in range(1, max_match + 1):
                following = counts.setdefault(text[end - length : end], {})
                following[text[end]] = following.get(text[end], 0.0) + 1.0
    return {gram: _most_frequent(following) for gram, following in counts.items()}


def _most_frequent(counts: dict[int, float]) -> dict[int, float]:
    if len(counts) <= MAX_CONTINUATIONS:
        return counts
    best = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return dict(best[:MAX_CONTINUATIONS])


def uncalibrated() -> NgramDrafter:
    """One that knows nothing of the verifier at hand."""
    return NgramDrafter(DEFAULT_PARAMETERS)
