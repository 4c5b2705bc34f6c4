"""From the logits of a visited row to the verifier's token there.

The order is that of transformers' `generate`: logit bias, repetition penalty, presence and
frequency penalty, minimum length, the request's processors, constraint; temperature, top-k, top-p,
min-p; then the draw. A row is processed only once it is known that its token is emitted, so
history is always true history, whatever tree the row was computed in.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import partial

import torch

from yggrt.core.accept import Choose
from yggrt.core.passes import PassOutput
from yggrt.sampling import filters, processors
from yggrt.sampling.constraints import Constraint
from yggrt.sampling.draw import KeyedSelect, draw, most_likely, peak
from yggrt.sampling.filters import Kept
from yggrt.sampling.logprobs import TokenLogprobs, token_logprobs
from yggrt.sampling.noise import KeyedNoise
from yggrt.sampling.params import SamplingParams


class Sampler:
    """Chooses the tokens of one completion, in order, each once.

    ending_ids: tokens that end the output, which `min_tokens` holds back. seed: needed unless
    greedy. noise: what the draw adds, None if greedy. logprobs: one entry per chosen token if the
    request asks for any; the last pass may choose tokens past the end of the output.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        *,
        vocab_size: int,
        seed: int | None = None,
        choice: int = 0,
        ending_ids: Collection[int] = (),
        constraint: Constraint | None = None,
        keyed_select: KeyedSelect | None = None,
    ) -> None:
        self.noise: KeyedNoise | None = None
        if not params.is_greedy:
            assert seed is not None
            self.noise = KeyedNoise(seed, choice, float(params.temperature))
        self.logprobs: list[TokenLogprobs] = []
        self._params = params
        self._ids = list(prompt_ids)
        self._num_prompt = len(prompt_ids)
        self._ending_ids = ending_ids
        self._constraint = constraint
        self._keyed_select = keyed_select
        self._bias = processors.Bias(params.logit_bias) if params.logit_bias else None
        self._seen = (
            processors.TokenCounts(vocab_size, prompt_ids)
            if params.repetition_penalty != 1
            else None
        )
        self._output = (
            processors.TokenCounts(vocab_size)
            if params.presence_penalty or params.frequency_penalty
            else None
        )

    def __call__(self, out: PassOutput) -> Choose:
        return partial(self._choose, out)

    def _choose(self, out: PassOutput, row: int, position: int, /) -> int:
        assert position == len(self._ids), "tokens are chosen in order, each once"
        logits = out.logits[row]
        kept = self._warp(self._process(logits))
        if self.noise is None:
            token = most_likely(kept.scores)
        else:
            token = draw(
                kept,
                self.noise,
                position,
                likely=out.ids[row],
                keyed_select=self._keyed_select,
            )
        if self._params.logprobs is not None:
            entry = token_logprobs(token, logits, kept.dense(), self._params.logprobs)
            self.logprobs.append(entry)
        self._take(token)
        return token

    def _process(self, logits: torch.Tensor) -> torch.Tensor:
        """Processed logits; the argument stays as it is."""
        params = self._params
        if not params.changes_logits:
            return logits
        logits = logits.clone()
        if self._bias is not None:
            self._bias.apply(logits)
        if self._seen is not None:
            processors.penalise_repetition(logits, self._seen, params.repetition_penalty)
        if self._output is not None:
            processors.penalise_occurrence(
                logits, self._output, params.presence_penalty, params.frequency_penalty
            )
        if len(self._ids) - self._num_prompt < params.min_tokens:
            processors.forbid(logits, self._ending_ids)
        for processor in params.processors:
            logits = processors.call_processor(processor, self._ids, logits)
        if self._constraint is not None:
            logits = torch.where(self._constraint.allowed(), logits, -math.inf)
        return logits

    def _warp(self, scores: torch.Tensor) -> Kept:
        """Scores over the temperature of the tokens that the filters keep."""
        params = self._params
        if params.is_greedy:
            return Kept.all(scores)
        kept = Kept.all(filters.heat(scores, params.temperature))
        if params.top_k or params.top_p < 1 or params.min_p:
            peak(scores)  # filters want a token to keep
        if params.top_k:
            kept = filters.top_k(kept, params.top_k)
        if params.top_p < 1:
            kept = filters.top_p(kept, params.top_p)
        if params.min_p:
            kept = filters.min_p(kept, params.min_p)
        return kept

    def _take(self, token: int) -> None:
        self._ids.append(token)
        if self._seen is not None:
            self._seen.add(token)
        if self._output is not None:
            self._output.add(token)
        if self._constraint is not None and token not in self._ending_ids:
            self._constraint.advance(token)
