"""A loaded model that answers prompts: ids or text in, tokens out, one request at a time.

Joins the engine (ids only) with text, the end of output and statistics. Knows nothing of files;
`yggrt.loading` builds one from a bundle.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TypedDict, Unpack

from yggrt.core.errors import RequestError
from yggrt.core.objective import RATIO, Objective
from yggrt.core.passes import Graphs
from yggrt.core.schema import TreeSpec
from yggrt.core.spec import format_tree_spec, parse_tree_spec
from yggrt.drafters import Drafter
from yggrt.engine import Engine
from yggrt.gate import Gate, OpenGate, RunningGate
from yggrt.output import FinishReason, Output
from yggrt.stats import Stats
from yggrt.template import Message
from yggrt.text import Text

DEFAULT_MAX_TOKENS = 256
PLAIN = TreeSpec(policy="plain")


class Options(TypedDict, total=False):
    """What a request may ask for.

    max_tokens: most tokens of output (256). stop: strings that end the output and are left out of
    its text. plain: one token per pass. tree: a tree spec for this request. gated: False drafts in
    every pass, whether it pays or not. reuse: keep the cache rows of a prefix shared with the
    request before. ignore_eos: EOS ids are tokens like any other. cancelled: asked after each
    pass; True ends the output there.
    """

    max_tokens: int
    stop: Sequence[str]
    plain: bool
    tree: str | TreeSpec | None
    gated: bool
    reuse: bool
    ignore_eos: bool
    cancelled: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Piece:
    """Output of one pass: its ids, and the text that they made certain (often not the text of just
    these ids).
    """

    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished output. `ids` end with the token that ended it; `text` is without EOS and stop
    string.
    """

    text: str
    ids: list[int]
    prompt_ids: list[int]
    finish_reason: FinishReason
    stats: Stats


@dataclass(frozen=True, slots=True)
class Parts:
    """What an engine is made of besides its tree: see Engine."""

    graphs: Graphs
    drafter: Drafter
    latency: Callable[[int, int], float]
    rest_s: float
    objective: Objective = RATIO


class Session:
    """One model, one cache, one request at a time. `tree` is the tree spec of requests that name
    none.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        text: Text | None,
        eos_ids: Sequence[int],
        vocab_size: int,
        tree: TreeSpec,
    ) -> None:
        self.graphs = parts.graphs
        self.text = text
        self.tree = tree
        self.last: Completion | None = None
        self._parts = parts
        self._cache = parts.graphs.new_cache()
        self._eos_ids = tuple(eos_ids)
        self._vocab_size = vocab_size
        self._engine: Engine | None = None
        self._engine_key: tuple[TreeSpec, bool] | None = None
        self._num_requests = 0
        self._engine_for(tree, gated=True)

    def generate(self, prompt: str | Sequence[int], **options: Unpack[Options]) -> Completion:
        """The whole output for a raw prompt or its ids."""
        return self._finish(self.stream(prompt, **options))

    def chat(self, messages: Sequence[Message], **options: Unpack[Options]) -> Completion:
        """The assistant's answer to a conversation, keeping the cache rows it shares with the one
        before.
        """
        return self._finish(self.stream_chat(messages, **options))

    def stream(
        self, prompt: str | Sequence[int], **options: Unpack[Options]
    ) -> Generator[Piece, None, None]:
        """The output pass by pass; after the last piece, `last` is the completion.

        Closing the generator ends the output as cancelled.
        """
        start = perf_counter()
        ids = self._need_text().encode(prompt) if isinstance(prompt, str) else prompt
        return self._decode(start, self._check_ids(ids), **options)

    def stream_chat(
        self, messages: Sequence[Message], **options: Unpack[Options]
    ) -> Generator[Piece, None, None]:
        """As `stream`, for a conversation."""
        start = perf_counter()
        ids = self._check_ids(self._need_text().encode_chat(messages))
        options.setdefault("reuse", True)
        return self._decode(start, ids, **options)

    def _decode(
        self,
        start: float,
        prompt_ids: list[int],
        *,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        stop: Sequence[str] = (),
        plain: bool = False,
        tree: str | TreeSpec | None = None,
        gated: bool = True,
        reuse: bool = False,
        ignore_eos: bool = False,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Generator[Piece, None, None]:
        """Checks the request now; the passes run as the generator is read."""
        spec = PLAIN if plain else parse_tree_spec(tree) if isinstance(tree, str) else tree
        engine = self._engine_for(spec or self.tree, gated)
        output = Output(
            eos_ids=() if ignore_eos else self._eos_ids,
            max_tokens=max_tokens,
            stops=(stop,) if isinstance(stop, str) else tuple(stop),
            detokenizer=self.text.detokenizer() if self.text is not None else None,
        )
        self._num_requests += 1
        return self._passes(
            engine,
            output,
            prompt_ids,
            start,
            format_tree_spec(spec or self.tree),
            reuse,
            cancelled,
        )

    def _passes(
        self,
        engine: Engine,
        output: Output,
        prompt_ids: list[int],
        start: float,
        tree: str,
        reuse: bool,
        cancelled: Callable[[], bool],
    ) -> Generator[Piece, None, None]:
        request = self._num_requests
        tokens: tuple[int, ...] = (engine.start(prompt_ids, reuse=reuse),)
        ttft_s = perf_counter() - start
        decode_s = 0.0
        try:
            while True:
                num_before = len(output.ids)
                text = output.take(tokens)
                if output.finish_reason is None and engine.room == 0:
                    text += output.end("length")
                if output.finish_reason is None and cancelled():
                    text += output.end("cancelled")
                yield Piece(text, tuple(output.ids[num_before:]))
                if output.finish_reason is not None:
                    break
                if request != self._num_requests:
                    raise RequestError(
                        "another request was started on this session before this one ended",
                        "read a stream to its end or close it first, or load a second session",
                    )
                before = perf_counter()
                tokens = engine.step().tokens
                decode_s += perf_counter() - before
        finally:
            if request == self._num_requests:
                if output.finish_reason is None:
                    output.end("cancelled")
                self.last = Completion(
                    text=output.text,
                    ids=output.ids,
                    prompt_ids=prompt_ids,
                    finish_reason=output.finish_reason or "cancelled",
                    stats=Stats.of(
                        engine.stats,
                        tree=tree,
                        num_prompt_tokens=len(prompt_ids),
                        num_tokens=len(output.ids),
                        ttft_s=ttft_s,
                        decode_s=decode_s,
                    ),
                )

    def _finish(self, stream: Generator[Piece, None, None]) -> Completion:
        for _ in stream:
            pass
        assert self.last is not None
        return self.last

    def _engine_for(self, spec: TreeSpec, gated: bool) -> Engine:
        """The engine of the request before if it fits, else a new one, which knows nothing of the
        cache's rows.
        """
        if self._engine is None or self._engine_key != (spec, gated):
            parts = self._parts
            gate: Gate = RunningGate() if gated else OpenGate()
            # Without a gate all rows cost the same, so every drafted node that has a row is
            # verified.
            latency = parts.latency if gated else lambda rows, context: 1.0
            self._engine = Engine(
                parts.graphs,
                self._cache,
                parts.drafter,
                spec,
                latency,
                parts.rest_s,
                gate,
                objective=parts.objective if gated else RATIO,
            )
            self._engine_key = (spec, gated)
        return self._engine

    def _need_text(self) -> Text:
        if self.text is None:
            raise RequestError(
                "this bundle has no tokenizer, so it takes ids and no text",
                'give ids (--ids "1,2,3"), or build with a verifier that has a tokenizer',
            )
        return self.text

    def _check_ids(self, ids: Sequence[int]) -> list[int]:
        checked = [operator.index(token_id) for token_id in ids]
        for index, token_id in enumerate(checked):
            if not 0 <= token_id < self._vocab_size:
                raise RequestError(
                    f"prompt id {token_id} at index {index} is out of the vocabulary, "
                    f"wanted 0..{self._vocab_size - 1}",
                    "check that the ids come from this model's tokenizer",
                )
        return checked
