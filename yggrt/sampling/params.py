"""What a request may ask of sampling, checked. Imports no torch."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from yggrt.core.errors import RequestError

if TYPE_CHECKING:
    import torch

Processor: TypeAlias = "Callable[[list[int], torch.Tensor], torch.Tensor]"

MIN_TEMPERATURE, MAX_TEMPERATURE = 0.001, 100.0
MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_SEED = 2**64 - 1
# Seeds that nobody chose stay whole in JSON readers that know doubles alone.
RANDOM_SEED_BITS = 53


class SamplingOptions(TypedDict, total=False):
    """The fields of SamplingParams, each optional."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    min_tokens: int
    stop_ids: Sequence[int]
    seed: int | None
    n: int
    logprobs: int | None
    json_schema: str | Mapping[str, Any] | None
    regex: str | None
    grammar: str | None
    processors: Sequence[Processor]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the verifier's logits become a token; the defaults are greedy decoding.

    temperature: 0 takes the most likely token, else 0.001 to 100. top_k: keep the k most likely
    tokens, 0 all. top_p: keep the most likely tokens that together have this probability. min_p:
    keep tokens with this share of the largest probability. repetition_penalty: factor on tokens of
    prompt and output, 1 for none. presence_penalty, frequency_penalty: taken from the logits of
    tokens of the output, once and per occurrence; -2 to 2. logit_bias: added by token id.
    min_tokens: no EOS and no stop id before so many tokens. stop_ids: tokens that end the output
    as EOS does. seed: 0 to 2^64 - 1, None for a random one. n: completions of one prompt.
    logprobs: log-probabilities of so many tokens beside the chosen one's, None for none.
    json_schema, regex, grammar (Lark): what the whole output must match, at most one of them.
    processors: called as `processor(ids of prompt and output, logits [vocab] float32)`, give
    logits of the same shape.
    Raises RequestError for a value out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    stop_ids: Sequence[int] = ()
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    json_schema: str | Mapping[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None
    processors: Sequence[Processor] = ()

    def __post_init__(self) -> None:
        self._check_temperature()
        check_whole("top_k", self.top_k, 0)
        check_number("top_p", self.top_p, 0.0, 1.0, "above 0, up to 1", open_low=True)
        check_number("min_p", self.min_p, 0.0, 1.0)
        check_number(
            "repetition_penalty", self.repetition_penalty, 0.0, math.inf, "above 0", open_low=True
        )
        check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        check_whole("min_tokens", self.min_tokens, 0)
        check_whole("n", self.n, 1, MAX_CHOICES)
        if self.seed is not None:
            check_whole("seed", self.seed, 0, MAX_SEED)
        if self.logprobs is not None:
            check_whole("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        self._check_tables()
        self._check_constraint()
        if self.n > 1 and self.is_greedy:
            raise RequestError(
                f"n is {self.n} at temperature 0, where all completions are the same",
                "ask for n=1, or give a temperature",
            )

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token of the processed logits is taken."""
        return self.temperature == 0

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the token is the graph's own argmax, and nothing else is asked for."""
        return self.is_greedy and self.logprobs is None and not self.changes_logits

    @property
    def changes_logits(self) -> bool:
        """Whether something other than temperature and the filters acts on the logits."""
        return bool(
            self.logit_bias
            or self.processors
            or self.min_tokens
            or self.constraint
            or self.repetition_penalty != 1
            or self.presence_penalty
            or self.frequency_penalty
        )

    @property
    def constraint(self) -> tuple[str, str | Mapping[str, Any]] | None:
        """Kind and source of what the output must match."""
        for kind in ("json_schema", "regex", "grammar"):
            source = getattr(self, kind)
            if source is not None:
                return kind, source
        return None

    def choose_seed(self) -> int | None:
        """The seed asked for, or a random one; None where no seed matters."""
        if self.is_greedy:
            return None
        return secrets.randbits(RANDOM_SEED_BITS) if self.seed is None else self.seed

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises RequestError for an id out of the vocabulary."""
        named: list[tuple[str, Collection[int]]] = [
            ("logit_bias", self.logit_bias),
            ("stop_ids", self.stop_ids),
        ]
        for name, ids in named:
            for token_id in ids:
                if not 0 <= token_id < vocab_size:
                    raise RequestError(
                        f"{name} has id {token_id}, wanted 0..{vocab_size - 1}",
                        "check that the ids come from this model's tokenizer",
                    )

    def _check_temperature(self) -> None:
        wanted = f"0 or {MIN_TEMPERATURE} to {MAX_TEMPERATURE:g}"
        check_number("temperature", self.temperature, 0.0, MAX_TEMPERATURE, wanted)
        if 0 < self.temperature < MIN_TEMPERATURE:
            raise _refusal("temperature", self.temperature, wanted)

    def _check_tables(self) -> None:
        if not isinstance(self.logit_bias, Mapping):
            raise _refusal("logit_bias", self.logit_bias, "token ids with a number each")
        for token_id, bias in self.logit_bias.items():
            check_whole("an id of logit_bias", token_id, 0)
            check_number(f"logit_bias of id {token_id}", bias, -math.inf, math.inf, "finite")
        if isinstance(self.stop_ids, (str, bytes)) or not isinstance(self.stop_ids, Collection):
            raise _refusal("stop_ids", self.stop_ids, "a list of token ids")
        for token_id in self.stop_ids:
            check_whole("an id of stop_ids", token_id, 0)
        if not isinstance(self.processors, Collection):
            raise _refusal("processors", self.processors, "a list of functions")
        for processor in self.processors:
            if not callable(processor):
                raise _refusal("a processor", processor, "a function of ids and logits")

    def _check_constraint(self) -> None:
        given = [k for k in ("json_schema", "regex", "grammar") if getattr(self, k) is not None]
        if len(given) > 1:
            raise RequestError(
                f"{' and '.join(given)} are given, wanted at most one of them", "give one of them"
            )
        for kind in given:
            source = getattr(self, kind)
            wanted = "a string" if kind != "json_schema" else "a string or a mapping"
            if not isinstance(source, str) and not (
                kind == "json_schema" and isinstance(source, Mapping)
            ):
                raise _refusal(kind, source, wanted)


def check_whole(name: str, value: Any, low: int, high: int | None = None) -> None:
    """Raises RequestError unless `value` is a whole number in low..high."""
    wanted = f"a whole number from {low}" + ("" if high is None else f" to {high}")
    if isinstance(value, bool) or not isinstance(value, int):
        raise _refusal(name, value, wanted)
    if value < low or (high is not None and value > high):
        raise _refusal(name, value, wanted)


def check_number(
    name: str,
    value: Any,
    low: float,
    high: float,
    wanted: str | None = None,
    *,
    open_low: bool = False,
) -> None:
    """Raises RequestError unless `value` is a finite number in low..high, `low` itself left out if
    `open_low`.
    """
    wanted = wanted or f"{low:g} to {high:g}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _refusal(name, value, f"a number, {wanted}")
    if not math.isfinite(value) or not low <= value <= high or (open_low and value == low):
        raise _refusal(name, value, wanted)


def _refusal(name: str, value: object, wanted: str) -> RequestError:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return RequestError(f"{name} is {shown}, wanted {wanted}", f"leave out {name}, or change it")
