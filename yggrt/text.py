"""Text to ids and back: prompts, conversations and streamed output. Knows nothing of models or of
decoding.

A prompt is parsed as the tokenizer itself parses it. In a conversation only the chat template may
produce control tokens: text in a message that looks like one stays text (`ControlTokens` says
how).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer

from yggrt.control_tokens import ControlTokens
from yggrt.core.errors import BundleError, RequestError
from yggrt.core.schema import TextInfo
from yggrt.template import ChatTemplate, Message

REPLACEMENT = "\ufffd"


class Text:
    """The tokenizer and chat template of one bundle."""

    def __init__(self, info: TextInfo, tokenizer_json: bytes) -> None:
        try:
            self._tokenizer = Tokenizer.from_buffer(tokenizer_json)
        except Exception as error:  # tokenizers raises plain Exception for every kind of bad file
            raise BundleError(
                f"the bundle's tokenizer does not load: {error}",
                "build the bundle with a tokenizers release that this one can read",
            ) from error
        # A tokenizer.json may carry a truncation or padding of its training; a prompt must arrive
        # whole.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._info = info
        self._bos_id = self._tokenizer.token_to_id(info.bos_token) if info.bos_token else None
        self._template = (
            ChatTemplate(
                info.chat_template,
                {
                    "bos_token": info.bos_token,
                    "eos_token": info.eos_token,
                    "pad_token": info.pad_token,
                    "unk_token": info.unk_token,
                },
            )
            if info.chat_template
            else None
        )
        self._control = ControlTokens(
            list(self._tokenizer.get_added_tokens_decoder().values()),
            tokenizer_json,
            info.chat_template,
        )

    @property
    def tokenizer_json(self) -> str:
        """The tokenizer as its library writes it."""
        return self._tokenizer.to_str()

    @property
    def has_chat(self) -> bool:
        return self._template is not None

    def encode(self, prompt: str) -> list[int]:
        """Ids of a raw prompt, with the BOS that the tokenizer adds and never two."""
        if not prompt:
            raise RequestError("the prompt is empty", "give a prompt of at least one character")
        ids = self._tokenizer.encode(_encodable(prompt)).ids
        if self._info.add_bos and self._bos_id is not None and ids[:1] != [self._bos_id]:
            ids = [self._bos_id, *ids]
        return self._single_bos(ids)

    def encode_chat(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Ids of a conversation: the tokenizer's own chat encoding, with no control token from
        message text.
        """
        if self._template is None:
            raise RequestError(
                "this bundle has no chat template", "give a plain prompt (--no-chat)"
            )
        check_messages(messages)
        guarded = self._control.guard(messages)
        text = self._template.render(guarded.messages, add_generation_prompt=add_generation_prompt)
        if guarded.stand_ins:
            ids = self._control.encode(text, guarded.stand_ins)
        else:
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return self._single_bos(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without special tokens."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def token(self, token_id: int) -> str:
        """The vocabulary's name of one id, for reports."""
        return self._tokenizer.id_to_token(token_id) or f"<{token_id}>"

    def detokenizer(self) -> Detokenizer:
        return Detokenizer(self)

    def _single_bos(self, ids: list[int]) -> list[int]:
        while self._bos_id is not None and ids[:2] == [self._bos_id, self._bos_id]:
            ids = ids[1:]
        return ids


class Detokenizer:
    """Turns ids into text one at a time; the joined pieces are the text of all ids.

    A character that ends in a later token is held back until it is whole; one that never becomes
    whole is left out. Decoding goes over a window that starts with a token already shown, so that
    decoders which treat the first token specially (by dropping a leading space, say) never see a
    later token as the first.
    """

    def __init__(self, text: Text) -> None:
        self._text = text
        self._window: list[int] = []
        self._chunk: list[int] = []
        self._num_shown = 0

    def feed(self, token_id: int) -> str:
        """The text that `token_id` completes, "" for a special token or the inner part of a
        character.
        """
        self._window.append(token_id)
        self._chunk.append(token_id)
        decoded = self._text.decode(self._window)
        whole = decoded.rstrip(REPLACEMENT)
        piece = whole[self._num_shown :]
        self._num_shown = max(self._num_shown, len(whole))
        if piece and whole == decoded:
            self._window, self._chunk = self._chunk, []
            self._num_shown = len(self._text.decode(self._window))
        return piece


def check_messages(messages: Sequence[Message]) -> None:
    """Raises RequestError unless every message is a mapping of strings with role and content."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise RequestError(
            f"a conversation is a list of messages, not {type(messages).__name__}",
            'as in [{"role": "user", "content": "..."}]; a raw prompt goes to generate',
        )
    if not messages:
        raise RequestError("the conversation has no message", "give at least one user message")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise RequestError(
                f"message {index} is {message!r}, wanted a mapping",
                'a message is {"role": "user", "content": "..."}',
            )
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise RequestError(
                    f"message {index}: {key!r} is {message.get(key)!r}, wanted a string",
                    'a message is {"role": "user", "content": "..."}',
                )
        for key, value in message.items():
            if not isinstance(value, str):
                raise RequestError(f"message {index}: {key!r} is {value!r}, wanted a string")
            _encodable(value)


def decode_utf8(data: bytes, where: str) -> str:
    """`data` as text, or a RequestError that names `where` and the first bad byte."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{where}: byte {error.start} (0x{data[error.start]:02x}) is not valid UTF-8",
            "convert the text to UTF-8",
        ) from error


def _encodable(text: str) -> str:
    """`text` itself; half a surrogate pair (a shell argument with broken UTF-8) is refused."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the prompt is not valid UTF-8 at character {error.start}",
            "convert the text to UTF-8",
        ) from error
    return text
