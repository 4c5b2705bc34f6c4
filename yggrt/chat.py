"""The multi-turn conversation: commands, history, refused messages. Where it is read and shown is
the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from yggrt.core.errors import RequestError, YggError
from yggrt.session import Completion
from yggrt.template import Message

HELP = "/reset forgets the conversation, /stats shows the last answer's numbers, /bye leaves"


def converse(
    read: Callable[[], str],
    answer: Callable[[list[Message]], Completion],
    note: Callable[[str], None],
    report: Callable[[YggError], None],
    start: Sequence[Message] = (),
) -> None:
    """Reads messages and has them answered until /bye or the end of input.

    `read` gives the user's next line; it raises EOFError at the end and KeyboardInterrupt on
    Ctrl-C. `answer` shows the assistant's answer to a conversation. `start` opens every
    conversation. A refused message is reported and forgotten.
    """
    messages = list(start)
    last: Completion | None = None
    note(HELP)
    while True:
        try:
            line = read().strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            note("to leave: /bye or Ctrl-D")
            continue
        if line == "/bye":
            return
        if line == "/reset":
            messages, last = list(start), None
        elif line == "/stats":
            note(last.stats.line() if last else "no answer yet")
        elif line.startswith("/"):
            note(f"no command {line.split()[0]!r}: {HELP}")
        elif line:
            asked = [*messages, {"role": "user", "content": line}]
            try:
                last = answer(asked)
            except RequestError as error:
                report(error)
                continue
            # An answer that was cut short is still what the assistant said.
            messages = [*asked, {"role": "assistant", "content": last.text}]
