"""How deep a pass drafts: chosen from the hazards that the verifier's graphs give of the last
accepted row.

Hazard d is the probability that a draft's d-th token is accepted once those before it are, so the
expected tokens of every depth are known before anything is drafted. docs/depth.md says how hazards
are trained and what that brings.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec

from yggrt.core.objective import RATIO, Objective, choose_depth
from yggrt.core.schema import DepthPredictor, TreeSpec
from yggrt.core.spec import draft_steps, parse_tree_spec

if TYPE_CHECKING:
    import torch


class DepthChoice:
    """Chooses the depth of each pass of one sequence. `spec`: the predictor's tree at full depth.

    `latency`, `draft_step`, `rest_s` and `objective` are the engine's. Raises RequestError for a
    tree that is no spec.
    """

    def __init__(
        self,
        predictor: DepthPredictor,
        latency: Callable[[int, int], float],
        draft_step: Callable[[int, int], float],
        rest_s: float,
        objective: Objective = RATIO,
    ) -> None:
        self.spec = parse_tree_spec(predictor.tree)
        self._specs = [
            msgspec.structs.replace(self.spec, depth=depth) for depth in range(len(predictor.rows))
        ]
        self._rows = predictor.rows
        self._base_tokens, self._worth = predictor.base_tokens, predictor.worth
        self._smoothing = predictor.smoothing
        self._latency, self._draft_step = latency, draft_step
        self._rest_s, self._objective = rest_s, objective
        self._hazards: list[float] = []
        self._context = -1
        self._draft_s: list[float] = []
        self._pass_s: list[float] = []

    def start(self) -> None:
        """A new sequence."""
        self._hazards = []

    def observe(self, hazards: torch.Tensor) -> None:
        """Hazards [D_max] float32 of the last accepted row."""
        found: list[float] = hazards.tolist()[: len(self._worth)]
        if self._smoothing and self._hazards:
            old = self._smoothing
            found = [
                old * before + (1 - old) * now
                for before, now in zip(self._hazards, found, strict=True)
            ]
        self._hazards = found

    def choose(self, context: int) -> tuple[TreeSpec, float]:
        """The tree of the next pass, of depth 0 where drafting does not pay, and the seconds that
        drafting it takes at this length of the context."""
        if context != self._context:
            self._context = context
            steps = (self._draft_step(num, context) for num in draft_steps(self.spec))
            self._draft_s = list(accumulate(steps, initial=0.0))
            self._pass_s = [
                self._rest_s + draft_s + self._latency(rows, context)
                for draft_s, rows in zip(self._draft_s, self._rows, strict=True)
            ]
        depth = choose_depth(
            self._hazards,
            self._pass_s.__getitem__,
            self._objective,
            self._base_tokens,
            self._worth,
        )
        return self._specs[depth], self._draft_s[depth]
