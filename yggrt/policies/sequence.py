"""Sequence: a chain of the drafter's best guesses, of a fixed or an adaptive length.

Fixed is vLLM's `num_speculative_tokens`. Adaptive is the threshold of assisted generation in
transformers (`assistant_confidence_threshold`; Mamou et al., "Dynamic Speculation Lookahead",
arXiv 2405.04304): the chain ends behind the first token of which the drafter was less sure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from yggrt.core.schema import TreeSpec
from yggrt.core.search import DEPTHS
from yggrt.core.spec import Values, share, size
from yggrt.core.tree import TokenTree
from yggrt.drafters import Drafter
from yggrt.policies import Keys, Policy, Room

CONFIDENCES = ("0.4", "0.6")


class Sequence(Policy):
    """A chain of `depth` nodes, shorter where the drafter has no more guesses, behind a token
    whose own probability is below `confidence`, or where the next node's path probability is
    below the engine's least."""

    keys: ClassVar[Keys] = {"depth": size(), "confidence": share, "verify": size(2)}
    example = "sequence:depth=8"

    def read(self, values: Values) -> TreeSpec:
        depth = values["depth"]
        options = (("confidence", str(values["confidence"])),) if "confidence" in values else ()
        verify = values.get("verify", depth + 1)
        return TreeSpec(policy="sequence", depth=depth, verify=verify, options=options)

    def write(self, spec: TreeSpec) -> Mapping[str, object]:
        verify = {} if spec.verify == spec.depth + 1 else {"verify": spec.verify}
        return {"depth": spec.depth, **dict(spec.options), **verify}

    def steps(self, spec: TreeSpec) -> tuple[int, ...]:
        return (1,) * spec.depth

    def grow(
        self, root_token: int, spec: TreeSpec, drafter: Drafter, min_score: float = 0.0
    ) -> TokenTree:
        confidence = float(dict(spec.options).get("confidence", 0))
        tokens = [root_token]
        scores: list[float] = [1]
        probability = 1.0
        while len(tokens) <= spec.depth and probability >= confidence:
            [best] = drafter.candidates([tokens[1:]], 1)
            if not best:
                break
            token, probability = best[0]
            score = scores[-1] * probability
            if score < min_score:
                break
            tokens.append(token)
            scores.append(score)
        return TokenTree(tuple(tokens), tuple(range(-1, len(tokens) - 1)), tuple(scores))

    def settings(self, room: Room) -> list[TreeSpec]:
        fixed = [
            TreeSpec(policy="sequence", depth=depth, verify=min(depth + 1, room.max_rows))
            for depth in DEPTHS
        ]
        longest = min(room.max_depth, DEPTHS[-1])
        return fixed + [
            TreeSpec(
                policy="sequence",
                depth=longest,
                verify=min(longest + 1, room.max_rows),
                options=(("confidence", confidence),),
            )
            for confidence in CONFIDENCES
        ]
