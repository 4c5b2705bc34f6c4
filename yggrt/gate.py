"""The gate: stops drafting where trees cost more than they bring, and tries again later.

Works on predicted costs, not on a clock, so the same tokens always give the same decisions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


class Gate(Protocol):
    """Says before each pass whether to draft, and hears after it what came out."""

    @property
    def is_open(self) -> bool:
        """Whether the next pass should draft."""
        ...

    @property
    def trust(self) -> float:
        """Factor on the drafter's path probabilities, from what they promised and what came."""
        ...

    def reset(self) -> None:
        """Forgets everything: a new prompt."""
        ...

    def record(self, expected: float, num_accepted: int, cost: float) -> None:
        """One pass: the accepted tokens promised and got, and its time in units of a plain
        pass."""
        ...


class OpenGate:
    """Always drafts and takes path probabilities as they are."""

    is_open = True
    trust = 1.0

    def reset(self) -> None:
        return

    def record(self, expected: float, num_accepted: int, cost: float) -> None:
        return


@dataclass(slots=True)
class RunningGate:
    """Weighs what recent trees gained against what they cost, both in plain passes.

    A tree pass gains its tokens less its cost. The balance of recent gains starts at `patience`;
    below zero the gate closes for `first_pause` plain passes, and for twice as many each time that
    trees fail again, up to `max_pause`.
    A positive balance after a pause sets the pause back.
    Trust is accepted over promised tokens of recent trees, with `prior` tokens of either assumed.
    """

    patience: float = 1.0
    memory: float = 0.9
    prior: float = 4.0
    first_pause: int = 16
    max_pause: int = 256
    _balance: float = field(init=False, default=0.0)
    _expected: float = field(init=False, default=0.0)
    _accepted: float = field(init=False, default=0.0)
    _pause: int = field(init=False, default=0)
    _wait: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._balance = self.patience
        self._expected = self._accepted = 0.0
        self._pause = self.first_pause
        self._wait = 0

    @property
    def is_open(self) -> bool:
        return self._wait == 0

    @property
    def trust(self) -> float:
        return min(1.0, (self._accepted + self.prior) / (self._expected + self.prior))

    def record(self, expected: float, num_accepted: int, cost: float) -> None:
        if self._wait:
            self._wait -= 1
            return
        self._expected = self.memory * self._expected + expected
        self._accepted = self.memory * self._accepted + num_accepted
        if not expected:
            return
        self._balance = min(self.memory * self._balance + 1 + num_accepted - cost, self.patience)
        if self._balance < 0:
            self._wait = self._pause
            self._pause = min(2 * self._pause, self.max_pause)
            self._balance = 0.0
            self._expected = self._accepted = 0.0
        elif num_accepted:
            self._pause = self.first_pause
