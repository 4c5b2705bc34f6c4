"""Keeps control tokens out of message text. Only the chat template may produce them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer

from yggrt.template import Message

# Planes 15 and 16 are private use: no text means anything by these characters.
STAND_INS = range(0xF0000, 0xFFFFE)
TOKEN_NAMES = range(0x100000, 0x10FFFE)


@dataclass(frozen=True, slots=True)
class Guarded:
    """Messages in which no control token can be read, and the stand-in characters that made them
    so.
    """

    messages: Sequence[Message]
    stand_ins: dict[str, str]


class ControlTokens:
    """Keeps control tokens out of message text.

    Control tokens are the tokenizer's special tokens, and those of its other added tokens that the
    chat template prints. Where a message contains the text of one, its first character is
    exchanged for a stand-in from the private use area before rendering, so every control token in
    the rendered text was printed by the template. The text is then encoded by a copy of the
    tokenizer that knows each control token by one private character instead of its text: same ids
    and same rules around it, but the text itself, restored by now, is ordinary.
    """

    def __init__(
        self, added: Sequence[AddedToken], tokenizer_json: bytes, chat_template: str
    ) -> None:
        self._tokenizer_json = tokenizer_json
        self._special = [token.content for token in added if token.special]
        # Added tokens of white space or plain words are vocabulary, not control.
        self._printed = [
            token.content
            for token in added
            if not token.special
            and len(token.content) > 1
            and not token.content[0].isalnum()
            and not token.content.isspace()
            and token.content in chat_template
        ]
        self._renamed: tuple[dict[str, str], Tokenizer] | None = None

    def guard(self, messages: Sequence[Message]) -> Guarded:
        """`messages` unchanged if no control token occurs in them, else with stand-ins."""
        everything = "".join(value for message in messages for value in message.values())
        names = [name for name in self._special + self._printed if name in everything]
        if not names:
            return Guarded(messages, {})
        free = _unused(STAND_INS, everything)
        stand_ins = {first: next(free) for first in sorted({name[0] for name in names})}

        def neutral(text: str, tokens: Sequence[str]) -> str:
            for token in tokens:
                while token in text:
                    text = text.replace(token, stand_ins[token[0]] + token[1:])
            return text

        # An assistant message is the model's own earlier output: tags such as the end of its
        # reasoning are looked for by the template and are no special tokens.
        special = [name for name in names if name in set(self._special)]
        safe = [
            {
                key: neutral(value, special if message["role"] == "assistant" else names)
                for key, value in message.items()
            }
            for message in messages
        ]
        return Guarded(safe, stand_ins)

    def encode(self, rendered: str, stand_ins: dict[str, str]) -> list[int]:
        """Ids of a rendered conversation in which only intact control tokens count as such."""
        if self._renamed is None or any(name in rendered for name in self._renamed[0].values()):
            free = _unused(TOKEN_NAMES, rendered)
            names = {name: next(free) for name in self._special + self._printed}
            self._renamed = (names, _rename_tokens(self._tokenizer_json, names))
        names, tokenizer = self._renamed
        # Longest first, as an added token wins over one that is its prefix.
        for name in sorted(names, key=len, reverse=True):
            rendered = rendered.replace(name, names[name])
        for character, stand_in in stand_ins.items():
            rendered = rendered.replace(stand_in, character)
        return tokenizer.encode(rendered, add_special_tokens=False).ids


def _unused(codes: range, text: str) -> Iterator[str]:
    used = set(text)
    return (chr(code) for code in codes if chr(code) not in used)


def _rename_tokens(tokenizer_json: bytes, names: dict[str, str]) -> Tokenizer:
    """The same tokenizer with other texts for some added tokens; ids and matching rules stay."""
    data = json.loads(tokenizer_json)
    for token in data["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model = data["model"]
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {names.get(piece, piece): index for piece, index in vocab.items()}
    else:
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    if "merges" in model:
        pairs = [pair.split(" ", 1) if isinstance(pair, str) else pair for pair in model["merges"]]
        model["merges"] = [
            pair
            for pair in pairs
            if pair[0] not in names and pair[1] not in names and "".join(pair) not in names
        ]
    data["post_processor"] = None
    data["truncation"] = None
    data["padding"] = None
    return Tokenizer.from_str(json.dumps(data))
