"""A loaded model that answers prompts: ids or text in, tokens out, one request at a time.

Joins the engine (ids only) with text, the end of output and statistics. Knows nothing of files;
`yggrt.loading` builds one from a bundle.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Unpack

from yggrt.core.errors import RequestError
from yggrt.core.objective import RATIO, Objective
from yggrt.core.passes import Graphs
from yggrt.core.schema import UNMEASURED, DepthPredictor, RankAcceptance, TreeSpec
from yggrt.core.spec import draft_steps, format_tree_spec, parse_tree_spec
from yggrt.depth import DepthChoice
from yggrt.drafters import Drafter
from yggrt.engine import Engine
from yggrt.gate import Gate, OpenGate, RunningGate
from yggrt.output import FinishReason, Output
from yggrt.policies import Measured, find_shape, resolve
from yggrt.request import PLAIN, Options, Request
from yggrt.stats import Stats
from yggrt.template import Message
from yggrt.text import Text

if TYPE_CHECKING:
    from yggrt.sampling.constraints import ConstraintCompiler
    from yggrt.sampling.draw import KeyedSelect
    from yggrt.sampling.logprobs import TokenLogprobs
    from yggrt.sampling.sampler import Sampler

__all__ = ["PLAIN", "Completion", "Options", "Parts", "Piece", "Session"]


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
    string. `logprobs` has an entry per id, None if not asked for. `others` are the completions of
    choices 1 and up, where n was asked for.
    """

    text: str
    ids: list[int]
    prompt_ids: list[int]
    finish_reason: FinishReason
    stats: Stats
    logprobs: list[TokenLogprobs] | None = None
    others: tuple[Completion, ...] = ()

    @property
    def choices(self) -> tuple[Completion, ...]:
        """All completions, this one first."""
        return (self, *self.others)


def no_draft_step(num_nodes: int, context: int) -> float:
    """The time of a growth step where no model runs."""
    return 0.0


@dataclass(frozen=True, slots=True)
class Parts:
    """What an engine is made of besides its tree (see Engine); the operator that quickens draws,
    None where the bundle's library has none; `ranks`: how the drafter's candidates fare, which
    some trees take their shape from; and the depth predictor of requests that name no tree, None
    where none is on.
    """

    graphs: Graphs
    drafter: Drafter
    latency: Callable[[int, int], float]
    rest_s: float
    objective: Objective = RATIO
    draft_step: Callable[[int, int], float] = no_draft_step
    draft_host_s: float = 0.0
    keyed_select: KeyedSelect | None = None
    ranks: RankAcceptance = UNMEASURED
    predictor: DepthPredictor | None = None

    @property
    def measured(self) -> Measured:
        """What trees take their shape from."""
        return Measured(
            ranks=self.ranks,
            row_counts=self.graphs.row_counts,
            max_expanded=self.drafter.max_expanded,
            latency=self.latency,
            rest_s=self.rest_s,
            draft_step=self.draft_step,
        )

    def resolve(self, spec: TreeSpec) -> TreeSpec:
        """The spec with its shape; see `yggrt.policies.resolve`."""
        return resolve(spec, self.measured)

    def holds(self, spec: TreeSpec) -> bool:
        """Whether the graphs have room for the tree once it has its shape; not for one without."""
        shaped = find_shape(spec, self.measured)
        if shaped is None:
            return False
        nodes = sum(draft_steps(shaped))
        return shaped.verify <= self.graphs.row_counts[-1] and nodes <= self.drafter.max_expanded


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
        self._engine_key: tuple[TreeSpec, bool, bool] | None = None
        self._num_requests = 0
        self._constraints: ConstraintCompiler | None = None
        predictor = parts.predictor
        self._depth_tree = None if predictor is None else parse_tree_spec(predictor.tree)
        self._engine_for(tree, gated=True, chooses_depth=False)

    def generate(self, prompt: str | Sequence[int], **options: Unpack[Options]) -> Completion:
        """The whole output for a raw prompt or its ids; with n, of all choices (`choices`)."""
        start = perf_counter()
        return self._complete(start, self._encode(prompt), Request.of(options))

    def chat(self, messages: Sequence[Message], **options: Unpack[Options]) -> Completion:
        """The assistant's answer to a conversation, keeping the cache rows it shares with the one
        before.
        """
        start = perf_counter()
        ids = self._check_ids(self._need_text().encode_chat(messages))
        return self._complete(start, ids, Request.of(options, reuse=True))

    def stream(
        self, prompt: str | Sequence[int], **options: Unpack[Options]
    ) -> Generator[Piece, None, None]:
        """The output pass by pass; after the last piece, `last` is the completion.

        Closing the generator ends the output as cancelled.
        """
        start = perf_counter()
        return self._decode(start, self._encode(prompt), _one_choice(Request.of(options)))

    def stream_chat(
        self, messages: Sequence[Message], **options: Unpack[Options]
    ) -> Generator[Piece, None, None]:
        """As `stream`, for a conversation."""
        start = perf_counter()
        ids = self._check_ids(self._need_text().encode_chat(messages))
        return self._decode(start, ids, _one_choice(Request.of(options, reuse=True)))

    def _complete(self, start: float, prompt_ids: list[int], request: Request) -> Completion:
        """All choices; the prompt's rows are computed for the first alone."""
        done: list[Completion] = []
        for choice in range(request.sampling.n):
            for _ in self._decode(start, prompt_ids, request, choice):
                pass
            assert self.last is not None
            done.append(self.last)
            if self.last.finish_reason == "cancelled":
                break
            start, request = perf_counter(), replace(request, reuse=True)
        self.last = replace(done[0], others=tuple(done[1:]))
        return self.last

    def _decode(
        self, start: float, prompt_ids: list[int], request: Request, choice: int = 0
    ) -> Generator[Piece, None, None]:
        """Checks the request now; the passes run as the generator is read."""
        tree, chooses_depth = request.tree or self.tree, self._chooses_depth(request)
        if chooses_depth and self._depth_tree is not None:
            tree = self._depth_tree
        engine = self._engine_for(tree, request.gated, chooses_depth)
        engine.on_stage, engine.on_pass = request.on_stage, request.on_pass
        eos_ids = () if request.ignore_eos else self._eos_ids
        output = Output(
            ending_ids=(*eos_ids, *request.sampling.stop_ids),
            max_tokens=request.max_tokens,
            stops=request.stop,
            detokenizer=self.text.detokenizer() if self.text is not None else None,
        )
        sampler = self._sampler(prompt_ids, request, choice, output.ending_ids)
        self._num_requests += 1
        number = self._num_requests
        return self._passes(engine, output, prompt_ids, start, request, tree, sampler, number)

    def _sampler(
        self,
        prompt_ids: list[int],
        request: Request,
        choice: int,
        ending_ids: frozenset[int],
    ) -> Sampler | None:
        """What chooses the tokens; None for the most likely ones."""
        params = request.sampling
        params.check_vocabulary(self._vocab_size)
        if params.is_plain_greedy:
            return None
        from yggrt.sampling.constraints import ConstraintCompiler
        from yggrt.sampling.sampler import Sampler

        constraint = None
        if params.constraint is not None:
            if self._constraints is None:
                self._constraints = ConstraintCompiler(self.text, self._eos_ids, self._vocab_size)
            constraint = self._constraints.compile(*params.constraint)
        return Sampler(
            params,
            prompt_ids,
            vocab_size=self._vocab_size,
            seed=request.seed,
            choice=choice,
            ending_ids=ending_ids,
            constraint=constraint,
            keyed_select=self._parts.keyed_select,
        )

    def _passes(
        self,
        engine: Engine,
        output: Output,
        prompt_ids: list[int],
        start: float,
        request: Request,
        tree: TreeSpec,
        sampler: Sampler | None,
        number: int,
    ) -> Generator[Piece, None, None]:
        self._check_current(number)
        tokens: tuple[int, ...] = (engine.start(prompt_ids, reuse=request.reuse, sampler=sampler),)
        ttft_s = perf_counter() - start
        decode_s = 0.0
        try:
            while True:
                num_before = len(output.ids)
                text = output.take(tokens)
                if output.finish_reason is None and engine.room == 0:
                    text += output.end("length")
                if output.finish_reason is None and request.cancelled():
                    text += output.end("cancelled")
                yield Piece(text, tuple(output.ids[num_before:]))
                if output.finish_reason is not None:
                    break
                self._check_current(number)
                before = perf_counter()
                tokens = engine.step().tokens
                decode_s += perf_counter() - before
        finally:
            if number == self._num_requests:
                if output.finish_reason is None:
                    output.end("cancelled")
                self.last = Completion(
                    text=output.text,
                    ids=output.ids,
                    prompt_ids=prompt_ids,
                    finish_reason=output.finish_reason or "cancelled",
                    stats=Stats.of(
                        engine.stats,
                        tree=format_tree_spec(tree),
                        seed=request.seed,
                        num_prompt_tokens=len(prompt_ids),
                        num_tokens=len(output.ids),
                        ttft_s=ttft_s,
                        decode_s=decode_s,
                    ),
                    logprobs=_logprobs(request, sampler, len(output.ids)),
                )

    def _check_current(self, number: int) -> None:
        if number != self._num_requests:
            raise RequestError(
                "another request was started on this session before this one ended",
                "read a stream to its end or close it first, or load a second session",
            )

    def _chooses_depth(self, request: Request) -> bool:
        """Whether hazards choose the depths of a request: they hold for one tree at one
        temperature, and for passes that are to pay."""
        predictor = self._parts.predictor
        if predictor is None or request.tree is not None or not request.gated:
            return False
        return request.sampling.temperature == predictor.temperature

    def _engine_for(self, spec: TreeSpec, gated: bool, chooses_depth: bool) -> Engine:
        """The engine of the request before if it fits, else a new one, which knows nothing of the
        cache's rows.
        """
        key = (spec, gated, chooses_depth)
        if self._engine is None or self._engine_key != key:
            parts = self._parts
            gate: Gate = RunningGate() if gated else OpenGate()
            # Without a gate all rows cost the same, so every drafted node that has a row is
            # verified.
            latency = parts.latency if gated else lambda rows, context: 1.0
            depth = None
            if chooses_depth and parts.predictor is not None:
                depth = DepthChoice(
                    parts.predictor, latency, parts.draft_step, parts.rest_s, parts.objective
                )
            self._engine = Engine(
                parts.graphs,
                self._cache,
                parts.drafter,
                parts.resolve(spec),
                latency,
                parts.rest_s,
                gate,
                objective=parts.objective if gated else RATIO,
                draft_step=parts.draft_step,
                depth=depth,
                draft_host_s=parts.draft_host_s,
            )
            self._engine_key = key
        return self._engine

    def _need_text(self) -> Text:
        if self.text is None:
            raise RequestError(
                "this bundle has no tokenizer, so it takes ids and no text",
                'give ids (--ids "1,2,3"), or build with a verifier that has a tokenizer',
            )
        return self.text

    def _encode(self, prompt: str | Sequence[int]) -> list[int]:
        ids = self._need_text().encode(prompt) if isinstance(prompt, str) else prompt
        return self._check_ids(ids)

    def _check_ids(self, ids: Sequence[int]) -> list[int]:
        try:
            checked = [operator.index(token_id) for token_id in ids]
        except TypeError as error:
            raise RequestError(
                f"the prompt is no text and no list of token ids: {error}",
                "give a string or whole numbers",
            ) from None
        for index, token_id in enumerate(checked):
            if not 0 <= token_id < self._vocab_size:
                raise RequestError(
                    f"prompt id {token_id} at index {index} is out of the vocabulary, "
                    f"wanted 0..{self._vocab_size - 1}",
                    "check that the ids come from this model's tokenizer",
                )
        return checked


def _one_choice(request: Request) -> Request:
    if request.sampling.n > 1:
        raise RequestError(
            f"n is {request.sampling.n} and a stream gives one completion",
            "ask for n=1, or use generate or chat, which give all choices",
        )
    return request


def _logprobs(
    request: Request, sampler: Sampler | None, num_tokens: int
) -> list[TokenLogprobs] | None:
    """Those of the output; the last pass may have chosen tokens past its end."""
    if request.sampling.logprobs is None or sampler is None:
        return None
    return sampler.logprobs[:num_tokens]
