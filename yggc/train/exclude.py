"""Keeps the prompts of evaluations out of training text: by hash, and by shared runs of words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from hashlib import sha256

# Words in a row that two prompts must share to count as the same task.
RUN = 8
_WORD = re.compile(r"\w+")


def prompt_hash(text: str) -> str:
    """SHA-256 (hex) of a prompt's text."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class Exclusion:
    """Knows the texts that must not be trained on."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._hashes: set[str] = set()
        self._runs: set[tuple[str, ...]] = set()
        self._short: set[tuple[str, ...]] = set()
        for text in texts:
            self._hashes.add(prompt_hash(text))
            words = _words(text)
            if len(words) < RUN:
                self._short.add(words)
            self._runs.update(_runs(words))

    def has_hash(self, digest: str) -> bool:
        """Whether `digest` is the `prompt_hash` of one of them."""
        return digest in self._hashes

    def __contains__(self, text: object) -> bool:
        """Whether `text` is one of them, differs only in case and punctuation, or has RUN words in
        a row from one.
        """
        assert isinstance(text, str)
        if prompt_hash(text) in self._hashes:
            return True
        words = _words(text)
        return words in self._short or any(run in self._runs for run in _runs(words))


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text.lower()))


def _runs(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    return (words[start : start + RUN] for start in range(len(words) - RUN + 1))
