"""What `yggrt run` does with a session: prints an answer, its statistics, a conversation."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from yggrt.core.errors import RequestError
from yggrt.terminal import Interrupt, note, report_error

if TYPE_CHECKING:
    from yggrt.engine_stats import Pass
    from yggrt.session import Completion, Options, Piece, Session
    from yggrt.template import Message


def parse_ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise RequestError(
            f"--ids is {text!r}, wanted whole numbers with commas", 'as in --ids "1,2,3"'
        ) from None


def choose_chat(session: Session, chat: bool | None, system: str | None, with_ids: bool) -> bool:
    has_chat = session.text is not None and session.text.has_chat
    if with_ids and (chat or system):
        raise RequestError("--ids takes no --chat and no --system", "leave them out")
    if chat and not has_chat:
        raise RequestError("--chat is given and this bundle has no chat template", "use --no-chat")
    use_chat = has_chat if chat is None else chat
    if system and not use_chat:
        raise RequestError(
            "--system is given and the prompt is no chat", "leave it out, or use --chat"
        )
    return use_chat and not with_ids


def show(session: Session, stream: Iterable[Piece], *, quiet: bool = False) -> Completion:
    """Prints the output as it comes, or its ids if there is no text, and a line end after it."""
    last = ""
    for piece in stream:
        has_text = session.text is not None
        text = piece.text if has_text else "".join(f"{token_id}," for token_id in piece.ids)
        if not quiet:
            sys.stdout.write(text)
            sys.stdout.flush()
        last = text or last
    if not quiet and not last.endswith("\n"):
        print(flush=True)
    assert session.last is not None, "a stream that was read to its end"
    return session.last


def show_choices(session: Session, done: Completion, *, quiet: bool = False) -> None:
    """Prints the outputs of all choices, or their ids if there is no text."""
    for number, one in enumerate(done.choices):
        if not quiet:
            note(f"choice {number}, {one.finish_reason}:")
            print(one.text if session.text is not None else ",".join(map(str, one.ids)))


def show_passes(session: Session, done: Completion, passes: Sequence[Pass]) -> None:
    """Prints the trees of all passes to stderr, beside the results."""
    from rich.console import Console

    from yggrt.explain import explain

    console = Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())
    for one in explain(done, passes, session.text):
        console.print(one)


def system_messages(system: str | None) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}] if system else []


def to_json(done: Completion) -> dict[str, Any]:
    """What `--json` prints; logprobs and choices where they were asked for."""
    found = _choice_json(done)
    if done.others:
        found["choices"] = [_choice_json(one) for one in done.choices]
    return found


def _choice_json(done: Completion) -> dict[str, Any]:
    stats = done.stats
    found: dict[str, Any] = {
        "text": done.text,
        "ids": done.ids,
        "prompt_ids": done.prompt_ids,
        "finish_reason": done.finish_reason,
        "num_tokens": stats.num_tokens,
        "num_passes": stats.num_passes,
        "mean_acceptance_length": stats.mean_acceptance_length,
        "tpot_ms": stats.tpot_ms,
        "ttft_ms": stats.ttft_ms,
        "seed": stats.seed,
    }
    if done.logprobs is not None:
        found["logprobs"] = [entry.to_json() for entry in done.logprobs]
    return found


def talk(session: Session, system: str | None, options: Options, stats: bool) -> None:
    """The conversation on this terminal, with line editing."""
    import readline  # noqa: F401 - `input` edits lines once it is imported

    from yggrt.chat import converse

    def answer(messages: list[Message]) -> Completion:
        with Interrupt() as interrupt:
            options["cancelled"] = interrupt.requested
            done = show(session, session.stream_chat(messages, **options))
        if stats or done.finish_reason == "cancelled":
            note(done.stats.line())
        return done

    converse(lambda: input("> "), answer, note, report_error, system_messages(system))


def note_statistics(done: Completion) -> None:
    stats = done.stats
    note(stats.line())
    shares = ", ".join(f"{name} {share:.1%}" for name, share in stats.stage_share.items())
    accepted = ", ".join(f"{num}: {count}" for num, count in stats.accepted_histogram.items())
    note(
        f"prompt: {stats.num_prompt_tokens} tokens, {stats.num_reused_tokens} reused, "
        f"prefill {stats.prefill_ms:.1f} ms"
    )
    note(
        f"passes: {stats.num_passes}, {stats.num_plain_passes} plain, "
        f"{stats.num_gated_passes} gated, {stats.num_rows} rows"
    )
    note(
        f"drafts accepted: {stats.accepted}, alpha {stats.alpha:.2f}; passes by number: {accepted}"
    )
    if stats.accepted_first or stats.accepted_second:
        note(
            f"of these the model had {stats.accepted_first}, n-grams {stats.accepted_second}; "
            "some had both"
        )
    note(f"time: {shares}")
