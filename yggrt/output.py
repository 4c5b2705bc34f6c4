"""The output of one request while it grows: its ids, its text and where it ends. Runs no model.

However many tokens a pass brings, they are taken one at a time, so the output ends at the token at
which plain decoding would have ended it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from yggrt.core.errors import RequestError
from yggrt.stopping import StopMatcher
from yggrt.text import Detokenizer

FinishReason = Literal["stop", "length", "cancelled"]


class Output:
    """Takes tokens until an ending id, a stop string or `max_tokens` ends it.

    `ids` keep the token that ended the output. The text leaves out that id's text and everything
    from a stop string on.
    """

    def __init__(
        self,
        *,
        ending_ids: Collection[int],
        max_tokens: int,
        stops: Sequence[str],
        detokenizer: Detokenizer | None,
    ) -> None:
        if stops and detokenizer is None:
            raise RequestError(
                "stop strings need a tokenizer and this bundle has none",
                "leave out the stop strings, or build with a verifier that has a tokenizer",
            )
        self.ids: list[int] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self.ending_ids = frozenset(ending_ids)
        self._max_tokens = max_tokens
        self._matcher = StopMatcher(stops)
        self._detokenizer = detokenizer

    def take(self, tokens: Iterable[int]) -> str:
        """Appends tokens until the output ends; the text that became certain. Later tokens are
        left out.
        """
        pieces = []
        for token in tokens:
            if self.finish_reason is not None:
                break
            pieces.append(self._take(token))
        piece = "".join(pieces)
        self.text += piece
        return piece

    def end(self, reason: FinishReason) -> str:
        """Ends the output here; the text that was held back."""
        self.finish_reason = reason
        piece = self._matcher.flush()
        self.text += piece
        return piece

    def _take(self, token: int) -> str:
        self.ids.append(token)
        if token in self.ending_ids:
            self.finish_reason = "stop"
            return self._matcher.flush()
        raw = self._detokenizer.feed(token) if self._detokenizer is not None else ""
        piece, stopped = self._matcher.feed(raw)
        if stopped:
            self.finish_reason = "stop"
        elif len(self.ids) == self._max_tokens:
            self.finish_reason = "length"
            piece += self._matcher.flush()
        return piece
