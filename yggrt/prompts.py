"""Lists of prompts for `verify` and `bench`: JSON lines or plain text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yggrt.core.errors import RequestError
from yggrt.text import Text, decode_utf8


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt; `chat`: as a user's message under the chat template."""

    name: str
    category: str
    text: str
    chat: bool

    def encode(self, text: Text) -> list[int]:
        if self.chat and text.has_chat:
            return text.encode_chat([{"role": "user", "content": self.text}])
        return text.encode(self.text)


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file; raises RequestError if it cannot be read or has none."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RequestError(
            f"{path}: cannot be read: {error.strerror or error}", "check the path"
        ) from error
    return parse_prompts(data, str(path))


def parse_prompts(data: bytes, where: str) -> list[Prompt]:
    """Prompts from JSON lines with `prompt`, `question` or `turns`, or from text, one a line.

    The first turn and a question are put as chat messages, a prompt is raw; `"chat": true` or
    `false` says otherwise. Names come from `id`, `task_id` or `question_id`.
    """
    prompts = list(_parse(decode_utf8(data, where), where))
    if not prompts:
        raise RequestError(f"{where}: no prompt in it", "write one prompt a line")
    return prompts


def _parse(text: str, where: str) -> Iterator[Prompt]:
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    is_json = bool(lines) and lines[0][1].lstrip().startswith("{")
    for number, line in lines:
        if is_json:
            yield _from_json(line, f"{where}, line {number}", str(number))
        else:
            yield Prompt(str(number), "", line.rstrip("\r"), False)


def _from_json(line: str, where: str, number: str) -> Prompt:
    tip = 'a line is {"prompt": "..."}, {"question": "..."} or {"turns": ["..."]}'
    try:
        value: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise RequestError(f"{where}: not JSON: {error}", tip) from error
    if not isinstance(value, dict):
        raise RequestError(f"{where}: {type(value).__name__}, wanted an object", tip)
    turns = value.get("turns")
    first = turns[0] if isinstance(turns, list) and turns else value.get("question")
    text = value.get("prompt", first)
    if not isinstance(text, str) or not text:
        raise RequestError(f"{where}: no prompt, question or turns with text in it", tip)
    names = (value.get(key) for key in ("id", "task_id", "question_id"))
    return Prompt(
        name=str(next((name for name in names if name is not None), number)),
        category=str(value.get("category", "")),
        text=text,
        chat=bool(value.get("chat", "prompt" not in value)),
    )
