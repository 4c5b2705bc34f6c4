"""What the commands that train a drafter share: their flags, and the run from flags to the printed
result; torch comes with the work.
"""

from __future__ import annotations

import functools
import inspect
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_type_hints

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

if TYPE_CHECKING:
    from yggc.train.run import TrainOptions

# Of --loss-weight rejected.
_REJECTED_WEIGHT = 2.0
# In `--help`, verifier, text and folder stand before what is the kind's own.
_NUM_BEFORE_OWN = 5
# Name, value, and the bounds it lies between.
Range: TypeAlias = tuple[str, float, float, float]


class SharedFlags:
    """The flags of every such command, checked; the signature is what `--help` shows. `fields` are
    those of `TrainOptions` by name.
    """

    def __init__(
        self,
        *,
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
            Path, typer.Option("--output", "-o", help="The folder to write.", metavar="DIR")
        ],
        verifier_sha256: VerifierSha256 = "",
        exclude: Exclude = None,
        epochs: Annotated[float, typer.Option(help="Passes through the text; parts count.")] = 4.0,
        batch_tokens: Annotated[
            int, typer.Option(help="Response tokens of a step.", min=1)
        ] = 4096,
        learning_rate: Annotated[
            float, typer.Option(help="The highest; a cosine follows.")
        ] = 4e-4,
        warmup: Annotated[int, typer.Option(help="Steps until it.", min=0)] = 100,
        temperature: Annotated[float, typer.Option(help="Of the verifier's distribution.")] = 1.0,
        loss_weight: Annotated[
            str,
            typer.Option(
                help="Of a token's loss: uniform, or rejected: more where a draft is rejected."
            ),
        ] = "uniform",
        rejected_weight: Annotated[
            float | None,
            typer.Option(help="Of those, where the others have 1 (default: 2)."),
        ] = None,
        average: Annotated[
            float, typer.Option(help="How slowly averaged weights follow.")
        ] = 0.998,
        held_out: Annotated[
            float, typer.Option(help="Share of prompts kept from training.")
        ] = 0.02,
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
        plot: Annotated[
            Path | None,
            typer.Option(help="Draw the curves, also of a finished run.", metavar="PNG"),
        ] = None,
        threads: Threads = None,
        device: Device = "cpu",
        dtype: Dtype = "auto",
        work_dir: WorkFolder = None,
        as_json: AsJson = False,
        verbose: Verbose = False,
    ) -> None:
        from yggrt.cores import usable_cores

        check_device(device, dtype)
        check_positive(
            ("epochs", epochs, 0.0, 1e6),
            ("learning-rate", learning_rate, 0.0, 1.0),
            ("temperature", temperature, 0.0, 100.0),
        )
        check_within(("held-out", held_out, 0.0, 0.5), ("average", average, 0.0, 1.0))
        self.output, self.plot, self.work_dir, self.as_json = output, plot, work_dir, as_json
        self.fields: dict[str, Any] = {
            "verifier": verifier,
            "data": tuple(data),
            "output": output,
            "verifier_sha256": verifier_sha256,
            "epochs": epochs,
            "batch_tokens": batch_tokens,
            "learning_rate": learning_rate,
            "warmup": warmup,
            "temperature": temperature,
            "average": average,
            "held_out": held_out,
            "max_tokens": max_tokens,
            "validate_every": validate_every,
            "patience": patience,
            "seed": seed,
            "rejected_weight": _rejected_weight(loss_weight, rejected_weight),
            "cache_features": cache_features,
            "exclude": tuple(exclude or ()),
            "device": device,
            "dtype": dtype,
            "num_threads": threads or usable_cores(),
        }


def training_command(
    **defaults: Any,
) -> Callable[[Callable[..., TrainOptions]], Callable[..., None]]:
    """Makes a command of `options(shared: SharedFlags, *, own flags) -> TrainOptions`.

    `defaults` are those of shared flags where the kind has others. The function is called when
    torch may be imported.
    """

    def decorate(options: Callable[..., TrainOptions]) -> Callable[..., None]:
        shared = {
            name: one.replace(default=defaults.get(name, one.default))
            for name, one in inspect.signature(SharedFlags, eval_str=True).parameters.items()
        }
        # What it returns comes with torch; only the types of its flags are wanted here.
        types = get_type_hints(options, localns={"TrainOptions": object}, include_extras=True)
        own = [
            one.replace(annotation=types[name])
            for name, one in inspect.signature(options).parameters.items()
            if one.kind is one.KEYWORD_ONLY
        ]
        flags = list(shared.values())
        flags[_NUM_BEFORE_OWN:_NUM_BEFORE_OWN] = own

        @functools.wraps(options)
        def command(**given: Any) -> None:
            found = SharedFlags(**{name: given.pop(name) for name in shared})
            _run(found, functools.partial(options, found, **given))

        signature = inspect.Signature(flags)
        command.__signature__ = signature  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in flags}
        return reports_errors(command)

    return decorate


def _rejected_weight(loss_weight: str, rejected_weight: float | None) -> float | None:
    """Of rejected positions, None where all weigh the same; RecipeError for flags that say
    neither.
    """
    from yggc.errors import RecipeError

    if loss_weight == "rejected":
        weight = _REJECTED_WEIGHT if rejected_weight is None else rejected_weight
        check_positive(("rejected-weight", weight, 0.0, 1e6))
        return weight
    if loss_weight != "uniform":
        raise RecipeError(f"--loss-weight is {loss_weight!r}, wanted uniform or rejected")
    if rejected_weight is not None:
        raise RecipeError(
            f"--rejected-weight is {rejected_weight:g}, and --loss-weight is uniform",
            "give --loss-weight rejected, or leave it out",
        )
    return None


def check_positive(*ranges: Range) -> None:
    """RecipeError for a value that is not above its lower bound and up to its upper one."""
    from yggc.errors import RecipeError

    for name, value, least, most in ranges:
        if not least < value <= most:
            raise RecipeError(f"--{name} is {value:g}, wanted more than {least:g}, to {most:g}")


def check_within(*ranges: Range) -> None:
    """RecipeError for a value that is outside its bounds."""
    from yggc.errors import RecipeError

    for name, value, least, most in ranges:
        if not least <= value <= most:
            raise RecipeError(f"--{name} is {value:g}, wanted {least:g} to {most:g}")


def _run(shared: SharedFlags, make_options: Callable[[], TrainOptions]) -> None:
    prepare_process()

    from yggc.host import default_work_dir
    from yggc.report import Reporter
    from yggc.train.plot import check_plot, plot_log
    from yggc.train.run import train
    from yggc.train.saved import SavedRun
    from yggc.workdir import WorkDir

    if shared.plot is not None:
        check_plot(shared.plot)
    options = make_options()
    work = WorkDir(Path(shared.work_dir) if shared.work_dir else default_work_dir())
    command = shlex.join(["yggc", *(_named(argument) for argument in sys.argv[1:])])
    reporter = Reporter(quiet=shared.as_json)
    with Interrupt() as interrupt:
        record = train(options, work, reporter, command, interrupt.requested)
    if shared.plot is not None:
        plot_log(SavedRun(shared.output).read_log(), shared.plot)
    if record is None:
        note("interrupted; the same command goes on from here")
        raise typer.Exit(INTERRUPTED)
    if shared.as_json:
        print(json.dumps({"output": str(shared.output), **record}))
        return
    print(f"{shared.output}: {record['steps']} steps, {record['seconds']:.0f} s")
    for step, shares in enumerate(record["best"].get("validation", {}).get("top", ()), 1):
        print(f"  draft step {step}: " + " ".join(f"{share:.3f}" for share in shares))


def _named(argument: str) -> str:
    """A path that is named from the root, cut to its last part: the card travels."""
    return Path(argument).name if Path(argument).is_absolute() else argument
