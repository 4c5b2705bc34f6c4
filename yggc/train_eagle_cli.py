"""`yggc train eagle`: parses and prints; torch comes with the work."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from yggc.train_flags import (
    AsJson,
    Device,
    Dtype,
    Exclude,
    Threads,
    Verbose,
    VerifierSha256,
    WorkFolder,
    check_device,
    prepare_process,
)
from yggrt.terminal import INTERRUPTED, Interrupt, note, reports_errors


@reports_errors
def eagle(
    verifier: Annotated[
        str, typer.Option(help="The model to draft for, as in `yggc build`.", metavar="SRC")
    ],
    data: Annotated[
        list[Path],
        typer.Option(
            help="Text that the verifier wrote (`yggc train data`): JSON lines or a folder of "
            "them (repeatable).",
            metavar="DIR_OR_JSONL",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder of the head.", metavar="DIR")
    ],
    verifier_sha256: VerifierSha256 = "",
    exclude: Exclude = None,
    draft_vocab: Annotated[
        int, typer.Option(help="Ids that can be drafted: the text's most frequent.", min=1)
    ] = 8192,
    epochs: Annotated[float, typer.Option(help="Passes through the text; parts count.")] = 4.0,
    batch_tokens: Annotated[int, typer.Option(help="Response tokens of a step.", min=1)] = 4096,
    learning_rate: Annotated[float, typer.Option(help="The highest; a cosine follows.")] = 4e-4,
    warmup: Annotated[int, typer.Option(help="Steps until it.", min=0)] = 100,
    draft_steps: Annotated[
        int, typer.Option(help="Steps that a draft is trained for, on its own features.", min=1)
    ] = 4,
    feature_weight: Annotated[float, typer.Option(help="Of the loss on features.")] = 1.0,
    token_weight: Annotated[float, typer.Option(help="Of the loss on tokens.")] = 1.0,
    decay: Annotated[float, typer.Option(help="Of a draft step's loss, each step.")] = 0.8,
    temperature: Annotated[float, typer.Option(help="Of the verifier's distribution.")] = 1.0,
    noise: Annotated[float, typer.Option(help="Width of uniform noise on features.")] = 0.0,
    detach: Annotated[
        bool, typer.Option("--detach", help="No gradients from a draft step into the last.")
    ] = False,
    average: Annotated[float, typer.Option(help="How slowly averaged weights follow.")] = 0.998,
    held_out: Annotated[float, typer.Option(help="Share of prompts kept from training.")] = 0.02,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", help="Longer rows are cut.", min=4)
    ] = 1024,
    validate_every: Annotated[
        int, typer.Option(help="Steps between validations, each with a checkpoint.", min=1)
    ] = 100,
    patience: Annotated[
        int,
        typer.Option(help="Validations without a better one that end it; 0: none.", min=0),
    ] = 8,
    seed: Annotated[int, typer.Option(help="Order of the text, first weights, noise.")] = 0,
    cache_features: Annotated[
        Path | None,
        typer.Option(
            help="Keep the verifier's features here, to compute them once; else each step "
            "computes its own.",
            metavar="DIR",
        ),
    ] = None,
    first: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Begin with this head instead of a regression.", metavar="DIR"
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the curves, also of a finished run.", metavar="PNG")
    ] = None,
    threads: Threads = None,
    device: Device = "cpu",
    dtype: Dtype = "auto",
    work_dir: WorkFolder = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Trains an EAGLE head. The same command goes on after a stop."""
    from yggc.errors import RecipeError
    from yggc.host import default_work_dir, usable_cores
    from yggc.workdir import WorkDir

    check_device(device, dtype)
    for name, value, least, most in (
        ("epochs", epochs, 0.0, 1e6),
        ("learning-rate", learning_rate, 0.0, 1.0),
        ("temperature", temperature, 0.0, 100.0),
    ):
        if not least < value <= most:
            raise RecipeError(f"--{name} is {value:g}, wanted more than {least:g}, to {most:g}")
    for name, value, least, most in (
        ("held-out", held_out, 0.0, 0.5),
        ("average", average, 0.0, 1.0),
        ("noise", noise, 0.0, 1e6),
        ("decay", decay, 0.0, 1.0),
    ):
        if not least <= value <= most:
            raise RecipeError(f"--{name} is {value:g}, wanted {least:g} to {most:g}")
    prepare_process()

    from yggc.report import Reporter
    from yggc.train.plot import check_plot, plot_log
    from yggc.train.run import EagleOptions, train_eagle
    from yggc.train.saved import SavedRun

    if plot is not None:
        check_plot(plot)
    options = EagleOptions(
        verifier=verifier,
        data=tuple(data),
        output=output,
        verifier_sha256=verifier_sha256,
        draft_vocab=draft_vocab,
        epochs=epochs,
        batch_tokens=batch_tokens,
        learning_rate=learning_rate,
        warmup=warmup,
        num_steps=draft_steps,
        feature_weight=feature_weight,
        token_weight=token_weight,
        decay=decay,
        temperature=temperature,
        noise=noise,
        detach=detach,
        average=average,
        held_out=held_out,
        max_tokens=max_tokens,
        validate_every=validate_every,
        patience=patience,
        seed=seed,
        cache_features=cache_features,
        first=first,
        exclude=tuple(exclude or ()),
        device=device,
        dtype=dtype,
        num_threads=threads or usable_cores(),
    )
    work = WorkDir(Path(work_dir) if work_dir else default_work_dir())
    command = shlex.join(["yggc", *(_named(argument) for argument in sys.argv[1:])])
    with Interrupt() as interrupt:
        record = train_eagle(options, work, Reporter(quiet=as_json), command, interrupt.requested)
    if plot is not None:
        plot_log(SavedRun(output).read_log(), plot)
    if record is None:
        note("interrupted; the same command goes on from here")
        raise typer.Exit(INTERRUPTED)
    if as_json:
        print(json.dumps({"output": str(output), **record}))
        return
    print(f"{output}: {record['steps']} steps, {record['seconds']:.0f} s")
    for step, shares in enumerate(record["best"].get("validation", {}).get("top", ()), 1):
        print(f"  draft step {step}: " + " ".join(f"{share:.3f}" for share in shares))


def _named(argument: str) -> str:
    """A path that is named from the root, cut to its last part: the card travels."""
    return Path(argument).name if Path(argument).is_absolute() else argument
