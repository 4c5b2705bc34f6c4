"""`yggrt`: the runtime's command line. Results go to stdout, all else to stderr.

Commands parse and print; what they do lies in the modules that they import when they run.
"""

from __future__ import annotations

import gc
import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from yggrt import __version__
from yggrt import sampling_flags as flags
from yggrt.core.errors import RequestError
from yggrt.run import (
    choose_chat,
    note_statistics,
    parse_ids,
    show,
    show_choices,
    show_passes,
    system_messages,
    talk,
    to_json,
)
from yggrt.terminal import (
    INTERRUPTED,
    Interrupt,
    ReportingGroup,
    note,
    prepare_streams,
    progress,
    reports_errors,
    warn,
)

if TYPE_CHECKING:
    from yggrt.bundle import Bundle
    from yggrt.cache import Cache
    from yggrt.engine_stats import Pass
    from yggrt.session import Options, Session

app = typer.Typer(
    name="yggrt",
    cls=ReportingGroup,
    help="Runs Yggdrasil bundles: tree speculative decoding with exactly the model's own tokens.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
cache_app = typer.Typer(help="The directory of unpacked native code.", no_args_is_help=True)
app.add_typer(cache_app, name="cache")

File = Annotated[Path, typer.Argument(help="A .ygg bundle.", metavar="FILE")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show the traceback of an error.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]
Threads = Annotated[
    int | None,
    typer.Option("--threads", "-t", help="Default: what the bundle was tuned for.", min=1),
]
Mapped = Annotated[
    bool,
    typer.Option(
        "--mapped", help="Leave the weights in the mapped file, shared between processes."
    ),
]
CacheDir = Annotated[
    Path | None,
    typer.Option(help="Where native code is unpacked (default: $YGG_CACHE, ~/.cache/yggrt)."),
]
Tree = Annotated[
    str | None,
    typer.Option(
        help="Tree spec, as in egt:width=4,depth=4,children=8,verify=16,frontier=global.",
        metavar="SPEC",
    ),
]
Drafter = Annotated[
    str | None,
    typer.Option(
        help="An installed drafter instead of the bundle's own, as in lookahead.", metavar="NAME"
    ),
]
Prompts = Annotated[
    list[Path] | None,
    typer.Option(
        help="JSON lines with prompt, question or turns, or text with one prompt a line "
        "(repeatable).",
        metavar="FILE",
    ),
]


class ObjectiveForm(StrEnum):
    """The forms of `yggrt.core.objective`, as a command line takes them."""

    ratio = "ratio"
    lagrangian = "lagrangian"


Limit = Annotated[int | None, typer.Option(help="The first so many prompts of each file.", min=1)]


def main() -> None:
    """Entry point of the `yggrt` command."""
    prepare_streams()
    app(prog_name="yggrt")


def _print_version(asked: bool) -> None:
    if asked:
        print(f"yggrt {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
@reports_errors
def run(
    file: File,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="Prompt; - reads it from stdin.")
    ] = None,
    ids: Annotated[
        str | None, typer.Option(help='Prompt as token ids, as in "1,2,3".', metavar="IDS")
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat",
            help="Put the prompt as a user's message (default: if there is a chat template).",
            show_default=False,
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message of the chat.")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", min=1)] = 256,
    stop: Annotated[
        list[str] | None, typer.Option(help="End the output before this text (repeatable).")
    ] = None,
    temperature: flags.Temperature = None,
    seed: flags.Seed = None,
    top_k: flags.TopK = None,
    top_p: flags.TopP = None,
    min_p: flags.MinP = None,
    repetition_penalty: flags.RepetitionPenalty = None,
    presence_penalty: flags.PresencePenalty = None,
    frequency_penalty: flags.FrequencyPenalty = None,
    logit_bias: flags.LogitBias = None,
    min_tokens: flags.MinTokens = None,
    stop_id: flags.StopId = None,
    logprobs: flags.Logprobs = None,
    num_choices: flags.NumChoices = None,
    json_schema: flags.JsonSchema = None,
    regex: flags.Regex = None,
    grammar: flags.Grammar = None,
    threads: Threads = None,
    mapped: Mapped = False,
    plain: Annotated[bool, typer.Option("--plain", help="One token per pass.")] = False,
    tree: Tree = None,
    drafter: Drafter = None,
    stats: Annotated[bool, typer.Option("--stats", help="All statistics, on stderr.")] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="The token trees of all passes, on stderr."),
    ] = False,
    as_json: AsJson = False,
    cache_dir: CacheDir = None,
    verbose: Verbose = False,
) -> None:
    """Answers a prompt, or talks with you on a terminal if there is none."""
    from yggrt.request import Request

    if prompt is not None and ids is not None:
        raise RequestError("both --prompt and --ids are given", "give one of them")
    if prompt is None and ids is None and (as_json or not sys.stdin.isatty()):
        raise RequestError(
            "no prompt, and no terminal to ask for one", "give --prompt TEXT, --prompt - or --ids"
        )
    if prompt == "-":
        from yggrt.text import decode_utf8

        prompt = decode_utf8(sys.stdin.buffer.read(), "stdin")
    if prompt == "":
        raise RequestError("the prompt is empty", "give a prompt of at least one character")
    prompt_ids = parse_ids(ids) if ids is not None else None
    if logprobs is not None and not as_json:
        raise RequestError("--logprobs is given and no --json", "give --json, or leave it out")
    sampling = flags.sampling_options(
        temperature=temperature,
        seed=seed,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=logit_bias,
        min_tokens=min_tokens,
        stop_ids=stop_id,
        logprobs=logprobs,
        n=num_choices,
        json_schema=json_schema,
        regex=regex,
        grammar=grammar,
    )
    options = cast("Options", {"max_tokens": max_tokens, "plain": plain, **sampling})
    options["stop"] = stop or ()
    Request.of(options)
    if prompt is None and prompt_ids is None and (num_choices or 1) > 1:
        raise RequestError("--n is given and no prompt", "a conversation has one answer a turn")
    if explain and ((prompt is None and prompt_ids is None) or (num_choices or 1) > 1):
        raise RequestError(
            "--explain is given and not one prompt with one answer",
            "give --prompt TEXT or --ids, and leave out --n",
        )
    passes: list[Pass] = []
    if explain:
        options["on_pass"] = passes.append
    session = _load(file, threads, cache_dir, tree, mapped, drafter)
    use_chat = choose_chat(session, chat, system, prompt_ids is not None)
    if prompt is None and prompt_ids is None:
        if not use_chat:
            raise RequestError(
                "a conversation needs a chat template", "give a prompt with --prompt TEXT"
            )
        talk(session, system, options, stats)
        return
    with Interrupt() as interrupt:
        options["cancelled"] = interrupt.requested
        raw = prompt or "" if prompt_ids is None else prompt_ids
        messages = [*system_messages(system), {"role": "user", "content": prompt or ""}]
        if (num_choices or 1) > 1:
            done = (
                session.chat(messages, **options) if use_chat else session.generate(raw, **options)
            )
            show_choices(session, done, quiet=as_json)
        else:
            stream = (
                session.stream_chat(messages, **options)
                if use_chat
                else session.stream(raw, **options)
            )
            done = show(session, stream, quiet=as_json)
    if as_json:
        print(json.dumps(to_json(done)))
    if explain:
        show_passes(session, done, passes)
    if stats:
        note_statistics(done)
    elif not as_json:
        note(done.stats.line())
    if done.finish_reason == "cancelled":
        raise typer.Exit(INTERRUPTED)


@app.command()
@reports_errors
def inspect(
    file: File,
    as_json: AsJson = False,
    full: Annotated[bool, typer.Option("--full", help="Check the digest of every byte.")] = False,
    cache_dir: CacheDir = None,
    verbose: Verbose = False,
) -> None:
    """Shows what a bundle holds. Loads none of its native code."""
    from yggrt.cache import open_cache
    from yggrt.inspect import inspect_bundle, render

    description = inspect_bundle(file, full, open_cache(cache_dir))
    if as_json:
        print(json.dumps(description))
        return
    from rich.console import Console

    render(description, Console(soft_wrap=not sys.stdout.isatty()))


@app.command()
@reports_errors
def verify(
    file: File,
    prompts: Prompts = None,
    limit: Limit = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", min=1)] = 64,
    threads: Threads = None,
    mapped: Mapped = False,
    tree: Tree = None,
    drafter: Drafter = None,
    temperature: flags.Temperature = None,
    seed: flags.Seed = None,
    as_json: AsJson = False,
    cache_dir: CacheDir = None,
    verbose: Verbose = False,
) -> None:
    """Checks every byte, the golden outputs, and with prompts that trees change no token."""
    from yggrt.bundle import Bundle
    from yggrt.cache import open_cache
    from yggrt.prompts import read_prompt_files
    from yggrt.sampling.params import SamplingParams
    from yggrt.verify import verify_session

    if (temperature is not None or seed is not None) and not prompts:
        raise RequestError(
            "--temperature or --seed is given and no --prompts",
            "give prompts; golden outputs are greedy",
        )
    chosen = read_prompt_files(prompts or (), limit)
    cache = open_cache(cache_dir)
    with Bundle.open(file, full=True, cache=cache) as bundle:
        note(f"{len(bundle.manifest.members)} members have the digests of the manifest")
        session = _start(bundle, cache, threads, tree, mapped, drafter)
        report = verify_session(
            session,
            bundle.manifest.golden,
            chosen,
            max_tokens,
            progress,
            SamplingParams(temperature=temperature or 0.0, seed=seed),
        )
        digest = bundle.digest
    if as_json:
        print(json.dumps({"bundle": str(file), "digest": digest, **report.to_json()}))
    else:
        for line in report.lines():
            print(line)
    report.check()


@app.command()
@reports_errors
def bench(
    file: File,
    prompts: Prompts = None,
    limit: Limit = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", min=2)] = 64,
    repeats: Annotated[int, typer.Option(help="Rounds of plain, tree, tree, plain.", min=1)] = 1,
    threads: Threads = None,
    mapped: Mapped = False,
    tree: Tree = None,
    drafter: Drafter = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Stages of every pass of one more run, for ui.perfetto.dev.", metavar="FILE"
        ),
    ] = None,
    as_json: AsJson = False,
    cache_dir: CacheDir = None,
    verbose: Verbose = False,
) -> None:
    """Times plain against tree decoding in turns; the last line is one JSON object."""
    from yggrt.bench import bench_bundle, trace_bundle
    from yggrt.bench_runs import fitting
    from yggrt.bench_tables import print_tables
    from yggrt.bundle import Bundle
    from yggrt.busy import warning
    from yggrt.cache import open_cache
    from yggrt.prompts import parse_prompts, read_prompt_files
    from yggrt.trace import check_trace_path, write_trace

    if trace is not None:
        check_trace_path(trace)
    cache = open_cache(cache_dir)
    with Bundle.open(file, cache=cache) as bundle:
        if prompts:
            chosen = read_prompt_files(prompts, limit)
        elif name := bundle.manifest.bench_prompts:
            chosen = parse_prompts(bundle.read(name), name)
        else:
            raise RequestError("the bundle carries no prompts", "give some with --prompts FILE")
        session = _start(bundle, cache, threads, tree, mapped, drafter)
        if not prompts:
            shipped = chosen
            chosen = fitting(session, shipped)
            if len(chosen) < len(shipped):
                note(f"{len(shipped) - len(chosen)} of the bundle's prompts exceed its context")
            chosen = chosen[:limit]
        with Interrupt() as interrupt:
            report = bench_bundle(
                session,
                bundle.manifest,
                chosen,
                num_tokens=max_tokens,
                repeats=repeats,
                progress=progress,
                cancelled=interrupt.requested,
            )
            report["digest"], report["drafter"] = bundle.digest, drafter
            if trace is not None and not report["interrupted"]:
                write_trace(trace_bundle(session, bundle.manifest, chosen[0], max_tokens), trace)
    if left_out := report["num_turns_left_out"]:
        warn(f"{left_out} later turns are left out: their conversations exceed the context")
    if busy := warning(report["busy_share"], report["neighbour_spread"]):
        warn(busy)
    if not as_json:
        from rich.console import Console

        print_tables(report, Console(soft_wrap=not sys.stdout.isatty()))
    print(json.dumps(report))
    if report["interrupted"]:
        note(f"interrupted after {report['num_prompts']} of {len(chosen)} prompts")
        raise typer.Exit(INTERRUPTED)


@app.command()
@reports_errors
def tune(
    file: File,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The bundle to write.", metavar="NEW.ygg")
    ] = None,
    threads: Threads = None,
    mapped: Mapped = False,
    tree: Tree = None,
    objective: Annotated[
        ObjectiveForm | None,
        typer.Option(help="What a pass's choice of rows maximises (default: as built)."),
    ] = None,
    as_json: AsJson = False,
    cache_dir: CacheDir = None,
    verbose: Verbose = False,
) -> None:
    """Times a bundle on this machine and chooses its tree again; weights and code stay."""
    if output is None:
        raise RequestError("no file for the tuned bundle", "give -o NEW.ygg")
    from yggrt.bundle import Bundle
    from yggrt.cache import open_cache
    from yggrt.measure import profile_warnings
    from yggrt.tune import describe_tuning, tune_bundle, tuning_lines

    cache = open_cache(cache_dir)
    with Bundle.open(file, cache=cache) as bundle:
        before = bundle.manifest
        tuned = tune_bundle(
            bundle,
            cache,
            output,
            num_threads=threads,
            mapped=mapped,
            tree=tree,
            objective=objective.value if objective else None,
            on_note=warn,
            progress=progress,
        )
    for line in profile_warnings(tuned.profile):
        warn(line)
    found = describe_tuning(before, tuned)
    if as_json:
        print(json.dumps({"bundle": str(output), **found}))
        return
    for line in tuning_lines(found):
        print(line)


@app.command()
@reports_errors
def doctor(
    file: File,
    threads: Threads = None,
    mapped: Mapped = False,
    as_json: AsJson = False,
    cache_dir: CacheDir = None,
    verbose: Verbose = False,
) -> None:
    """Measures whether a bundle's times and acceptance hold here; exit 1 says tune it again."""
    from yggrt.bundle import Bundle
    from yggrt.cache import open_cache
    from yggrt.doctor import examine

    cache = open_cache(cache_dir)
    with Bundle.open(file, cache=cache) as bundle:
        report = examine(
            bundle, cache, num_threads=threads, mapped=mapped, on_note=warn, progress=progress
        )
    if as_json:
        print(json.dumps({"bundle": str(file), **report.to_json()}))
    else:
        for line in report.lines():
            print(line)
    report.check()


@cache_app.command()
@reports_errors
def prune(
    everything: Annotated[
        bool, typer.Option("--all", help="Also what was used in the last 30 days.")
    ] = False,
    cache_dir: CacheDir = None,
    verbose: Verbose = False,
) -> None:
    """Removes unpacked code; the next run of a bundle unpacks it again."""
    from yggrt.cache import open_cache

    removed = open_cache(cache_dir).prune(0.0 if everything else 30 * 86400.0)
    for one in removed:
        print(one.path)
    note(f"removed {len(removed)} entries, {sum(one.num_bytes for one in removed) / 1e6:.1f} MB")


def _load(
    file: Path,
    threads: int | None,
    cache_dir: Path | None,
    tree: str | None,
    mapped: bool,
    drafter: str | None,
) -> Session:
    from yggrt.bundle import Bundle
    from yggrt.cache import open_cache

    cache = open_cache(cache_dir)
    with Bundle.open(file, cache=cache) as bundle:
        return _start(bundle, cache, threads, tree, mapped, drafter)


def _start(
    bundle: Bundle,
    cache: Cache,
    threads: int | None,
    tree: str | None,
    mapped: bool,
    drafter: str | None,
) -> Session:
    from yggrt.loading import start_session

    session = start_session(
        bundle,
        cache,
        num_threads=threads,
        tree=tree,
        mapped=mapped,
        on_note=warn,
        drafter=drafter,
    )
    # What is loaded stays: without this the collector looks through torch's objects again and
    # again, 2 to 3 % of a token's time where passes are short.
    gc.freeze()
    return session
