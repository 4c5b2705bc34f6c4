"""What the whole output must match: a JSON schema, a regular expression or a Lark grammar.

llguidance does the parsing and says which tokens may come next; it is needed for such requests
alone and comes with the `constraints` extra.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from yggrt.core.errors import RequestError
from yggrt.text import Text


class Constraint:
    """The state of one output. It moves with the accepted path, whose every token is emitted."""

    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self._matcher, self._vocab_size = matcher, vocab_size

    def allowed(self) -> torch.Tensor:
        """Tokens that may come next, [vocab] bool; EOS alone once the output is complete."""
        packed = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
        self._check()
        bits = (packed.unsqueeze(1) >> torch.arange(8, dtype=torch.uint8)) & 1
        return bits.flatten()[: self._vocab_size].to(torch.bool)

    def advance(self, token_id: int) -> None:
        """Takes an allowed token."""
        self._matcher.consume_token(token_id)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RequestError(
                f"the constraint cannot go on: {first_line(self._matcher.get_error())}",
                "simplify the schema, regular expression or grammar",
            )


class ConstraintCompiler:
    """Constraints over one bundle's tokenizer, which is read when the first is asked for."""

    def __init__(self, text: Text | None, eos_ids: Sequence[int], vocab_size: int) -> None:
        self._text, self._eos_ids, self._vocab_size = text, list(eos_ids), vocab_size
        self._tokenizer: Any = None

    def compile(self, kind: str, source: str | Mapping[str, Any]) -> Constraint:
        """`kind` is json_schema, regex or grammar. Raises RequestError without llguidance or a
        tokenizer, and for a source that does not parse or that no output can match.
        """
        llguidance = _import_llguidance()
        if self._text is None or not self._eos_ids:
            lacks = "tokenizer" if self._text is None else "end id"
            raise RequestError(
                f"{kind} needs a tokenizer and an end id, and this bundle has no {lacks}",
                f"leave out {kind}, or build with a verifier that has both",
            )
        grammar = _grammar(llguidance.LLMatcher, kind, source)
        if self._tokenizer is None:
            self._tokenizer = self._read_tokenizer(llguidance.LLTokenizer, self._text)
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise RequestError(
                f"{kind} cannot be met or parsed: {first_line(matcher.get_error())}",
                f"correct {kind}",
            )
        return Constraint(matcher, self._vocab_size)

    def _read_tokenizer(self, tokenizer: Any, text: Text) -> Any:
        try:
            return tokenizer(
                text.tokenizer_json, n_vocab=self._vocab_size, eos_token=self._eos_ids
            )
        except Exception as error:  # llguidance raises several kinds for tokenizers it cannot take
            raise RequestError(
                f"llguidance cannot take this bundle's tokenizer: {first_line(str(error))}",
                "leave out json_schema, regex or grammar",
            ) from error


def _import_llguidance() -> Any:
    try:
        import llguidance
    except ImportError:
        raise RequestError(
            "json_schema, regex and grammar need llguidance, which is not installed",
            "pip install 'llguidance>=1.9,<2'",
        ) from None
    return llguidance


def _grammar(matcher: Any, kind: str, source: str | Mapping[str, Any]) -> str:
    if kind == "regex":
        return str(matcher.grammar_from_regex(source))
    if kind == "grammar":
        return str(matcher.grammar_from_lark(source))
    try:
        schema = json.loads(source) if isinstance(source, str) else source
        return str(matcher.grammar_from_json_schema(json.dumps(schema)))
    except (ValueError, TypeError, RecursionError) as error:
        raise RequestError(
            f"json_schema is not valid JSON: {first_line(str(error))}", "correct json_schema"
        ) from error


def first_line(text: str) -> str:
    """The first line that says something, with the reason that it may only announce."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "no reason given"
    reasons = [line for line in lines[1:] if line.startswith("error:")]
    return f"{lines[0]} {reasons[0]}" if lines[0].endswith(":") and reasons else lines[0]
