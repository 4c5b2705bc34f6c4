"""Renders a model's chat template in a sandbox. Knows nothing of token ids.

The environment offers what templates written for Hugging Face tokenizers expect: trimmed blocks,
loop controls, `generation` blocks, `raise_exception`, `strftime_now` and a `tojson` that does not
escape HTML.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from yggrt.core.errors import BundleError, RequestError

Message = Mapping[str, str]


class GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks assistant text for training; decoding needs only its body."""

    tags = {"generation"}  # noqa: RUF012 - the type is jinja's

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def raise_exception(message: str) -> None:
    """What a template calls to refuse a conversation."""
    raise jinja2.TemplateError(message)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class ChatTemplate:
    """One compiled chat template and the special-token texts it may print."""

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationBlock, jinja2.ext.loopcontrols],
        )
        environment.filters["tojson"] = to_json
        environment.globals["raise_exception"] = raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self.source = source
        self._tokens = {name: text for name, text in tokens.items() if text}
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise BundleError(
                f"the bundle's chat template does not parse: {error}",
                "use --no-chat, or fix the tokenizer's chat template and build again",
            ) from error

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """The conversation as one text; raises RequestError with the template's own words if it
        refuses.
        """
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._tokens,
            )
        except (jinja2.TemplateError, TypeError) as error:
            raise RequestError(
                f"the chat template refuses these messages: {error}",
                "check the order of the roles, or use a plain prompt (--no-chat)",
            ) from error
