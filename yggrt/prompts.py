"""Lists of prompts for `verify`, `bench` and `compare`: JSON lines or plain text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from yggrt.core.errors import RequestError
from yggrt.text import Text, decode_utf8


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt; `chat`: as a user's message under the chat template. `later_turns` are what the
    user says after each answer.
    """

    name: str
    category: str
    text: str
    chat: bool
    later_turns: tuple[str, ...] = field(default=(), repr=False)

    @property
    def turns(self) -> tuple[str, ...]:
        """Everything that the user says."""
        return (self.text, *self.later_turns)

    def encode(self, text: Text, answers: Sequence[str] = ()) -> list[int]:
        """Ids of the conversation so far, up to the turn that the next answer is for: the first
        without `answers`.

        Without a chat template, or as no chat, turns and answers are lines of one text.
        """
        turns = self.turns[: len(answers) + 1]
        if self.chat and text.has_chat:
            messages = []
            for turn, answer in zip(turns, [*answers, None], strict=True):
                messages.append({"role": "user", "content": turn})
                if answer is not None:
                    messages.append({"role": "assistant", "content": answer})
            return text.encode_chat(messages)
        parts = [part for pair in zip(turns, answers, strict=False) for part in pair]
        return text.encode("\n".join([*parts, turns[-1]]))


def beginnings(text: Text, prompts: Sequence[Prompt], num_tokens: int) -> list[list[int]]:
    """The first `num_tokens` ids of each prompt as raw text, for continuations; those that are
    shorter are left out. Raises RequestError if that leaves none."""
    encoded = [text.encode(prompt.text) for prompt in prompts]
    kept = [ids[:num_tokens] for ids in encoded if len(ids) >= num_tokens]
    if not kept:
        raise RequestError(
            f"none of {len(prompts)} prompts has {num_tokens} tokens, the longest has "
            f"{max(map(len, encoded))}",
            "ask for fewer --prompt-tokens, or give longer texts, one a line",
        )
    return kept


def read_prompt_files(paths: Sequence[Path], limit: int | None = None) -> list[Prompt]:
    """The first `limit` prompts of each file; a prompt without a category has its file's name."""
    return [prompt for path in paths for prompt in read_prompts(path, path.stem)[:limit]]


def read_prompts(path: Path, category: str = "") -> list[Prompt]:
    """The prompts of a file; raises RequestError if it cannot be read or has none."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RequestError(
            f"{path}: cannot be read: {error.strerror or error}", "check the path"
        ) from error
    return parse_prompts(data, str(path), category)


def parse_prompts(data: bytes, where: str, category: str = "") -> list[Prompt]:
    """Prompts from JSON lines with `prompt`, `question` or `turns`, or from text, one a line.

    Turns (as Spec-Bench has them: question_id, category, turns) and a question are put as chat
    messages, a prompt is raw; `"chat": true` or `false` says otherwise. Names come from `id`,
    `task_id` or `question_id`. `category` is that of prompts that name none.
    """
    prompts = list(_parse(decode_utf8(data, where), where, category))
    if not prompts:
        raise RequestError(f"{where}: no prompt in it", "write one prompt a line")
    return prompts


def _parse(text: str, where: str, category: str) -> Iterator[Prompt]:
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    is_json = bool(lines) and lines[0][1].lstrip().startswith("{")
    for number, line in lines:
        if is_json:
            yield _from_json(line, f"{where}, line {number}", str(number), category)
        else:
            yield Prompt(str(number), category, line.rstrip("\r"), False)


def _from_json(line: str, where: str, number: str, category: str) -> Prompt:
    tip = 'a line is {"prompt": "..."}, {"question": "..."} or {"turns": ["..."]}'
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits; deep nesting
        raise RequestError(f"{where}: not JSON: {error}", tip) from error
    if not isinstance(value, dict):
        raise RequestError(f"{where}: {type(value).__name__}, wanted an object", tip)
    turns: Any = value.get("turns")
    if not isinstance(turns, list) or not turns:
        turns = [value.get("question")]
    first, *later = turns
    text = value.get("prompt", first)
    if not isinstance(text, str) or not text:
        raise RequestError(f"{where}: no prompt, question or turns with text in it", tip)
    for place, turn in enumerate(later, 2):
        if not isinstance(turn, str) or not turn:
            raise RequestError(f"{where}: turn {place} is {turn!r}, wanted text", tip)
    names = (value.get(key) for key in ("id", "task_id", "question_id"))
    return Prompt(
        name=str(next((name for name in names if name is not None), number)),
        category=str(value.get("category", category)),
        text=text,
        chat=bool(value.get("chat", "prompt" not in value)),
        later_turns=tuple(later) if "prompt" not in value else (),
    )
