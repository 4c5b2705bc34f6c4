"""The conversation: commands, what is remembered, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import tiny_tokenizers as tiny
from parts import make
from scripted import OracleDrafter, ScriptedGraphs

from yggrt.chat import converse
from yggrt.core.errors import YggError
from yggrt.session import Completion
from yggrt.template import Message


class Talk:
    """A scripted user in front of a real session over scripted graphs."""

    def __init__(self, *lines: str | type[BaseException], max_model_len: int = 512) -> None:
        self.graphs = ScriptedGraphs(vocab_size=300, max_model_len=max_model_len)
        self.session = make(
            self.graphs,
            OracleDrafter(300, graphs=self.graphs),
            text=tiny.chatml_text(),
            vocab_size=1000,
        )
        self.lines: Iterator[str | type[BaseException]] = iter(lines)
        self.asked: list[list[Message]] = []
        self.done: list[Completion] = []
        self.notes: list[str] = []
        self.errors: list[YggError] = []

    def read(self) -> str:
        line = next(self.lines, EOFError)
        if isinstance(line, str):
            return line
        raise line

    def answer(self, messages: list[Message]) -> Completion:
        self.asked.append(messages)
        self.done.append(self.session.chat(messages, max_tokens=4))
        return self.done[-1]

    def run(self, *start: Message) -> Talk:
        converse(self.read, self.answer, self.notes.append, self.errors.append, start)
        return self


def test_turns_build_on_each_other_and_keep_the_cache() -> None:
    talk = Talk("hello", "", "more", "/bye", "never read").run()
    first, second = talk.asked
    assert first == [{"role": "user", "content": "hello"}]
    assert second == [
        *first,
        {"role": "assistant", "content": talk.done[0].text},
        {"role": "user", "content": "more"},
    ]
    assert talk.done[1].stats.num_reused_tokens >= len(talk.done[0].prompt_ids)
    assert talk.done[1].ids == talk.graphs.plain(talk.done[1].prompt_ids, 4)


def test_reset_keeps_the_system_message() -> None:
    system = {"role": "system", "content": "world"}
    talk = Talk("hello", "/reset", "more").run(system)
    assert talk.asked[1] == [system, {"role": "user", "content": "more"}]


def test_commands_answer_in_notes() -> None:
    talk = Talk("/stats", "hello", "/stats", "/what now", KeyboardInterrupt).run()
    assert talk.notes[1] == "no answer yet"
    assert talk.notes[2] == talk.done[0].stats.line()
    assert "no command '/what'" in talk.notes[3]
    assert "/bye" in talk.notes[4]


def test_a_message_that_is_too_long_is_forgotten() -> None:
    talk = Talk("hello", "two words " * 60, "more", max_model_len=128).run()
    assert "context holds 128" in talk.errors[0].message
    assert [message["content"] for message in talk.asked[2]][-1] == "more"
    assert len(talk.asked[2]) == 3


def test_a_cancelled_answer_is_remembered() -> None:
    talk = Talk("hello", "more")
    answer = talk.answer

    def cut(messages: list[Message]) -> Completion:
        return replace(answer(messages), finish_reason="cancelled", text="two wo")

    converse(talk.read, cut, talk.notes.append, talk.errors.append)
    assert talk.asked[1][1] == {"role": "assistant", "content": "two wo"}
