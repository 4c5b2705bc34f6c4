"""Measures how far to believe each level of the n-gram drafter, from texts that the verifier
wrote.

A text must not be its own evidence, so texts are dealt into folds and each is measured against a
corpus of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from yggrt.core import schema
from yggrt.core.schema import NUM_EVIDENCE
from yggrt.drafters.ngram import NgramDrafter

if TYPE_CHECKING:
    import torch


class Recording(NamedTuple):
    """Prompt ids and the ids that plain decoding emitted after them; `hidden` [n, d]: what
    the verifier's graphs gave so of these tokens but the last, or of the last n of them; None if
    nobody reads it.
    """

    prompt: Sequence[int]
    output: Sequence[int]
    hidden: torch.Tensor | None = None


NUM_FOLDS = 4
# A cell starts from the shorter match's value, worth this many observations; the shortest match
# starts from this.
PRIOR_WEIGHT = 4.0
PRIOR_ACCEPTANCE = 0.2


def calibrate_ngram(
    recordings: Sequence[Recording], *, max_match: int = 8, corpus_match: int = 3
) -> schema.NgramDrafter:
    """Parameters with measured acceptance and a corpus of all recordings; `corpus_match` 0 keeps
    no corpus.
    """
    hits = [[0] * NUM_EVIDENCE for _ in range(max_match + corpus_match)]
    tests = [[0] * NUM_EVIDENCE for _ in range(max_match + corpus_match)]
    blank = _parameters(recordings, max_match, hits, tests, corpus_match)
    for drafter, fold in held_out(blank, recordings):
        for one in fold:
            drafter.start(one.prompt)
            for token in one.output:
                for row, column, weights in drafter.evidence(()):
                    tests[row][column] += 1
                    if token in weights:
                        hits[row][column] += 1
                        break
                drafter.commit([token])
    return _parameters(recordings, max_match, hits, tests, corpus_match)


def held_out(
    parameters: schema.NgramDrafter, recordings: Sequence[Recording]
) -> list[tuple[NgramDrafter, Sequence[Recording]]]:
    """Folds of the recordings, each with a drafter whose corpus holds none of them."""
    corpus_match = len(parameters.corpus_acceptance)
    pairs: list[tuple[NgramDrafter, Sequence[Recording]]] = []
    for fold in range(min(NUM_FOLDS, len(recordings))):
        rest = [item for i, item in enumerate(recordings) if i % NUM_FOLDS != fold]
        without = msgspec.structs.replace(parameters, corpus=_corpus(rest, corpus_match))
        pairs.append((NgramDrafter(without), recordings[fold::NUM_FOLDS]))
    return pairs


def _parameters(
    recordings: Sequence[Recording],
    max_match: int,
    hits: list[list[int]],
    tests: list[list[int]],
    corpus_match: int,
) -> schema.NgramDrafter:
    return schema.NgramDrafter(
        max_match=max_match,
        acceptance=_shares(hits[:max_match], tests[:max_match]),
        corpus=_corpus(recordings, corpus_match),
        corpus_acceptance=_shares(hits[max_match:], tests[max_match:]),
    )


def _corpus(recordings: Sequence[Recording], corpus_match: int) -> tuple[tuple[int, ...], ...]:
    """Outputs, each behind the end of its prompt: as much of it as a match can see."""
    if not corpus_match:
        return ()
    return tuple((*one.prompt[-corpus_match:], *one.output) for one in recordings)


def _shares(hits: list[list[int]], tests: list[list[int]]) -> tuple[tuple[float, ...], ...]:
    rows: list[tuple[float, ...]] = []
    prior = (PRIOR_ACCEPTANCE,) * NUM_EVIDENCE
    for row_hits, row_tests in zip(hits, tests, strict=True):
        prior = tuple(
            (hit + PRIOR_WEIGHT * start) / (test + PRIOR_WEIGHT)
            for hit, test, start in zip(row_hits, row_tests, prior, strict=True)
        )
        rows.append(prior)
    return tuple(rows)
