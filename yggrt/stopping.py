"""Stop strings in streamed text. Knows nothing of ids or tokenizers."""

from __future__ import annotations

from collections.abc import Sequence

from yggrt.core.errors import RequestError

MAX_STOPS = 16


class StopMatcher:
    """Finds the first of several stop strings in a text that arrives in pieces.

    Text that may be the start of a stop string is held back, so nothing after the cut is ever
    emitted.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if len(stops) > MAX_STOPS:
            raise RequestError(
                f"{len(stops)} stop strings are given, wanted at most {MAX_STOPS}",
                "give fewer stop strings",
            )
        for stop in stops:
            if not isinstance(stop, str):
                raise RequestError(
                    f"a stop string is {stop!r}, wanted a string", "give a list of strings"
                )
            if not stop:
                raise RequestError(
                    "a stop string is empty", "give stop strings of at least one character"
                )
            if any("\ud800" <= character <= "\udfff" for character in stop):
                raise RequestError(
                    f"stop string {stop!r} is not valid UTF-8", "convert the text to UTF-8"
                )
        self._stops = tuple(stops)
        self._held = ""

    def feed(self, piece: str) -> tuple[str, bool]:
        """The text that can be emitted now, and whether a stop string is complete (the text ends
        before it).
        """
        text = self._held + piece
        starts = [start for stop in self._stops if (start := text.find(stop)) >= 0]
        if starts:
            self._held = ""
            return text[: min(starts)], True
        num_held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held], False

    def flush(self) -> str:
        """The held-back text, once it is known that nothing follows."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper prefix of `stop` that ends `text`."""
    for num in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:num]):
            return num
    return 0
