"""`yggc traces` and `yggc simulate`: what trees would do, from what a verifier said once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from yggrt.core.errors import RequestError
from yggrt.terminal import note, progress, reports_errors, silent, warn

File = Annotated[Path, typer.Argument(help="A bundle.", metavar="FILE.ygg")]
Prompts = Annotated[
    list[Path] | None,
    typer.Option(
        help="JSON lines or text with one prompt a line (repeatable; default: the bundle's).",
        metavar="FILE",
    ),
]
Limit = Annotated[int | None, typer.Option(help="The first so many prompts of each file.", min=1)]
PromptTokens = Annotated[
    int | None,
    typer.Option(
        help="Continue the first so many tokens of each prompt's raw text; shorter ones are left "
        "out.",
        min=1,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", "-t", help="Default: what the bundle was tuned for.", min=1),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON and no progress.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show the traceback of an error.")]


@reports_errors
def traces(
    file: File,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file to write.", metavar="T.safetensors")
    ],
    prompts: Prompts = None,
    limit: Limit = None,
    prompt_tokens: PromptTokens = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", min=2)] = 64,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.", min=0)] = 0,
    seed: Annotated[int, typer.Option(help="Of what is drawn at a temperature.", min=0)] = 0,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after the end of an answer.")
    ] = False,
    threads: Threads = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Records a bundle's answers to prompts, for `yggc simulate --traces`."""
    if output.is_dir() or not output.parent.is_dir():
        raise RequestError(
            f"{output}: no file can be written there", "give a file in a folder that exists"
        )

    from yggc.compare.prompts import chosen_prompts
    from yggc.simulate import check_replayable
    from yggc.traces import record, write
    from yggrt.bundle import Bundle
    from yggrt.cache import open_cache
    from yggrt.core.spec import parse_tree_spec
    from yggrt.loading import load_draft_graphs, load_parts, open_session
    from yggrt.sampling.params import SamplingParams

    SamplingParams(temperature=temperature)
    cache = open_cache(None)
    with Bundle.open(file, cache=cache) as bundle:
        check_replayable(bundle.manifest)
        chosen = chosen_prompts(bundle, prompts or (), limit, prompt_tokens, max_tokens)
        parts = load_parts(bundle, cache, num_threads=threads, mapped=False, on_note=warn)
        session = open_session(bundle, parts, parse_tree_spec(bundle.manifest.schedule.tree))
        found = record(
            bundle,
            session,
            load_draft_graphs(bundle, cache),
            [ids for _, ids in chosen],
            max_tokens,
            temperature=temperature,
            seed=seed,
            ignore_eos=ignore_eos,
            progress=silent if as_json else progress,
        )
    write(output, found)
    num_tokens = sum(len(one.output) for one in found.recordings)
    size = output.stat().st_size
    if as_json:
        report = {
            "traces": str(output),
            "digest": found.digest,
            "num_prompts": len(found.recordings),
            "num_tokens": num_tokens,
            "num_bytes": size,
        }
        print(json.dumps(report))
    else:
        prompts_done = len(found.recordings)
        print(f"{output}: {prompts_done} prompts, {num_tokens} tokens, {size / 1e6:.2f} MB")


@reports_errors
def simulate(
    file: File,
    tree: Annotated[
        list[str] | None, typer.Option(help="Tree spec to try (repeatable).", metavar="SPEC")
    ] = None,
    policies: Annotated[
        str | None,
        typer.Option(help="Policies whose settings to try, or all.", metavar="NAME,NAME"),
    ] = None,
    traces: Annotated[
        Path | None,
        typer.Option(
            help="Answers of `yggc traces` (default: the bundle's recordings, with drafters that "
            "have not seen them).",
            metavar="FILE",
        ),
    ] = None,
    gated: Annotated[
        bool,
        typer.Option(
            "--gated/--ungated",
            help="As sessions decode, or drafting in every pass and verifying every row.",
        ),
    ] = True,
    threads: Threads = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Says what trees would do, in tokens a pass and time per token, without the verifier."""
    from yggc.policies import check_policies
    from yggrt.core.spec import parse_tree_spec

    specs = [parse_tree_spec(text) for text in tree or ()]
    names = check_policies(policies)
    if not specs and not names:
        raise RequestError("no tree to try", "give --tree SPEC, or --policies all")

    from yggc.simulate import describe, room_of, simulator_of
    from yggc.traces import read
    from yggrt.bundle import Bundle
    from yggrt.cache import open_cache
    from yggrt.policies import settings_of

    cache = open_cache(None)
    with Bundle.open(file, cache=cache) as bundle:
        found = read(traces, bundle) if traces is not None else None
        simulator = simulator_of(
            bundle, cache, found, num_threads=threads, on_note=warn, progress=progress
        )
        room = room_of(bundle.manifest, simulator.parts)
        for name in names:
            some = [spec for spec in settings_of(name, room) if simulator.parts.holds(spec)]
            specs += some
            if not some:
                note(f"{name}: no setting fits this bundle")
        replays = []
        for spec in dict.fromkeys(specs):
            if spec.policy != "plain":
                replays.append(simulator.replay(spec, gated=gated))
        rows = describe(simulator.predict(replays))
    progress("")
    if as_json:
        print(json.dumps({"bundle": str(file), "gated": gated, "trees": rows}))
        return
    for row in rows:
        print(
            f"{row['tpot_ms']:8.2f} ms/token {row['speedup']:6.2f}x "
            f"{row['mean_acceptance_length']:6.2f} tokens/pass  {row['tree']}"
        )
