"""The gate: how far to trust the drafter, from what it promised and what came of it.

Works on tokens, not on a clock, so the same tokens always give the same decisions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


class Cost(NamedTuple):
    """Predicted time of a pass beyond a plain one's, as a share of a plain one's: of verifying
    more rows, and of drafting before it was known how many.
    """

    rows: float = 0.0
    draft: float = 0.0


FREE = Cost()


class Gate(Protocol):
    """Says before each pass whether to draft and how far to trust, and hears after it what came
    out.
    """

    @property
    def is_open(self) -> bool:
        """Whether the next pass should draft."""
        ...

    @property
    def trust(self) -> float:
        """Factor on the drafter's path probabilities."""
        ...

    def reset(self) -> None:
        """A new prompt: opens, and keeps what the ones before say of it."""
        ...

    def record(self, expected: float, accepted: int, cost: Cost = FREE) -> None:
        """One pass: drafted tokens it was expected to accept (0 for a plain pass), and did, and
        what it cost.
        """
        ...


class OpenGate:
    """Always drafts and takes path probabilities as they are."""

    is_open = True
    trust = 1.0

    def reset(self) -> None:
        return

    def record(self, expected: float, accepted: int, cost: Cost = FREE) -> None:
        return


@dataclass(slots=True)
class RunningGate:
    """Trust is accepted over expected tokens of recent passes, as if `prior` of `prior` had been
    accepted before; until a tree was right for the first time it is at most `unproven`, so that
    the first trees are small.

    A lower trust makes smaller trees the better choice, and in the end plain passes. Evidence
    fades by `memory` with each tree pass and by `idle_memory` with each plain one, so distrust
    does not last for ever; a new prompt starts with the share `carry` of it, for most texts are as
    easy or as hard to draft as the one before. Below `floor` the gate closes for `first_pause`
    passes and then lets trees be tried; each time that they fail again it closes for twice as
    long, up to `max_pause`.

    What drafting costs is spent before a tree can be found not worth verifying. So where it costs,
    the gate also closes once recent passes with their drafts have taken longer than plain passes
    would have for the tokens that were to be expected, by `prior` passes; when it opens again it
    counts anew. That loss is a debt, which later drafts pay back by the time that they gain: until
    then right guesses do not shorten the pauses, and a new prompt begins with the share `carry` of
    the debt as its loss and with pauses as long as the last one.

    The values were chosen by replaying recorded answers (docs/objective.md): a drafter that is
    never right may cost some 3 % of plain decoding over 32 tokens, one that is right now and then
    must not lose by it. With less prior trust or longer pauses the second loses, with more the
    first costs more.
    """

    prior: float = 1.5
    unproven: float = 0.4
    carry: float = 0.8
    memory: float = 0.95
    idle_memory: float = 0.99
    floor: float = 0.25
    first_pause: int = 16
    max_pause: int = 256
    _expected: float = field(init=False, default=0.0)
    _accepted: float = field(init=False, default=0.0)
    # Passes that recent drafts lost against plain decoding; gains are below 0.
    _loss: float = field(init=False, default=0.0)
    _next_pause: int = field(init=False, default=0)
    _passes_closed: int = field(init=False, default=0)
    # Passes that drafts have lost since the gate last closed for it and not yet won back.
    _debt: float = field(init=False, default=0.0)
    _proven: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._expected *= self.carry
        self._accepted *= self.carry
        self._debt *= self.carry
        self._loss = self._debt
        last_pause = self._next_pause // 2 if self._debt else 0
        self._next_pause = max(self.first_pause, last_pause)
        self._passes_closed = 0

    @property
    def is_open(self) -> bool:
        return self._passes_closed == 0

    @property
    def trust(self) -> float:
        most = 1.0 if self._proven else self.unproven
        return min(most, (self._accepted + self.prior) / (self._expected + self.prior))

    def record(self, expected: float, accepted: int, cost: Cost = FREE) -> None:
        if self._passes_closed:
            self._passes_closed -= 1
            return
        if cost.draft:
            # Not what was accepted: that scatters far more than what it is the mean of.
            lost = cost.rows + cost.draft - self.trust * expected
            # Gains of long ago must not pay for a drafter that has lost the thread.
            self._loss = max(self.memory * self._loss + lost, -2 * self.prior)
            if self._debt:
                self._debt = min(max(0.0, self._debt + lost), self.prior)
        self._proven = self._proven or accepted > 0
        memory = self.memory if expected else self.idle_memory
        self._expected = memory * self._expected + expected
        self._accepted = memory * self._accepted + accepted
        too_slow = self._loss > self.prior
        if too_slow or (expected and self.trust < self.floor):
            self._loss = 0.0
            if too_slow:
                self._debt = self.prior
            self._passes_closed = self._next_pause
            self._next_pause = min(2 * self._next_pause, self.max_pause)
        elif accepted and not self._debt:
            self._next_pause = self.first_pause
