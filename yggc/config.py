"""What to build: `recipe.toml` and flags become one frozen BuildConfig; every "auto" is resolved
here.

Host questions (threads, jobs, folders) are settled by `load_config`. What depends on the model
(dtype, max_model_len, quant, activations) is settled by `resolve_for_model` as soon as the model
is known. Both say what they chose.
"""

from __future__ import annotations

import difflib
import itertools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_type_hints

import msgspec

from yggc.errors import RecipeError
from yggc.heads import is_head_folder, is_medusa_folder
from yggc.host import default_work_dir
from yggrt.core.errors import RequestError
from yggrt.core.plans import DraftKind, why_not_run
from yggrt.core.schema import GraphKind, Plan
from yggrt.core.spec import draft_steps, parse_tree_spec
from yggrt.cores import usable_cores
from yggrt.memory import available_memory_bytes

DEFAULT_MAX_MODEL_LEN = 2048
MAX_ROWS = 999
# A compile of one graph: the exported program, Inductor and the C++ compiler.
JOB_BYTES = 3 << 30
PLUS_NGRAM = "+ngram"
NO_MODEL = ("ngram", "lookahead")
HEAD_WIDTHS = (1, 4, 8)


class BuildConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every option of a build; the same names in a recipe, as flags and in the manifest.

    `calibration` is a JSONL file of prompts or "shipped"; `calibration_tokens` tokens are decoded
    per prompt. `tree` is a tree spec or "auto" (searched). `max_model_len` 0 stands for auto until
    the model is known. `quant` is the format of matrices: none (`dtype`), int8 or int4 (rounded to
    nearest), keep (as a GGUF file stores them); `activations` what quantised ones multiply;
    `kv_dtype` what keys and values are cached in. `drafter` is "ngram", a model's source, a head's
    directory, "self:LAYERS" (the verifier's first layers under its final norm and head) or "self"
    (all of it); with "+ngram" behind a model n-grams join its trees. `drafter_quant` and
    `drafter_dtype` are to it what `quant` and `dtype` are to the verifier, `drafter_widths` the
    nodes that one pass of it runs. `objective` is what a pass's choice of rows maximises.
    `profile` is a file of `yggc profile` to take times from, "" measures them. A recipe may name
    several targets, of which a build takes one; "{target}" in `name` and `output` stands for it.
    `recipe_paths` is no option: it holds, by option, paths relative to the recipe as they are
    written there.
    """

    name: str
    target: str
    verifier: str
    output: str
    threads: int
    jobs: int
    work_dir: str
    verifier_sha256: str = ""
    drafter: str = "ngram"
    drafter_sha256: str = ""
    drafter_quant: Literal["auto", "none", "int8", "int4", "keep"] = "auto"
    drafter_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    drafter_widths: tuple[int, ...] = (1, 4)
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    quant: Literal["auto", "none", "int8", "int4", "keep"] = "auto"
    activations: Literal["auto", "float32", "int8"] = "auto"
    kv_dtype: Literal["auto", "float32", "bfloat16", "int8"] = "auto"
    max_model_len: int = 0
    buckets: tuple[int, ...] = (1, 4, 8, 16)
    prefill_buckets: tuple[int, ...] = (64, 256)
    graphs: Literal["static", "dynamic"] = "static"
    max_depth: int = 8
    tree: str = "auto"
    objective: Literal["ratio", "lagrangian"] = "ratio"
    profile: str = ""
    calibration: str = "shipped"
    calibration_tokens: int = 64
    recipe_paths: dict[str, str] = {}

    def __post_init__(self) -> None:
        for key in ("threads", "jobs", "max_depth", "calibration_tokens"):
            if getattr(self, key) < 1:
                raise RecipeError(
                    f"{key} is {getattr(self, key)}, wanted at least 1",
                    f"leave {key} out for the default",
                )
        if self.max_model_len < 0 or self.max_model_len == 1:
            raise RecipeError(
                f'max_model_len is {self.max_model_len}, wanted at least 2 tokens or "auto"',
                "leave it out for auto",
            )
        if (
            not self.buckets
            or self.buckets[0] != 1
            or list(self.buckets) != sorted(set(self.buckets))
        ):
            raise RecipeError(
                f"buckets is {list(self.buckets)}, wanted ascending row counts that start with 1",
                "plain decoding needs the 1, as in buckets = [1, 4, 8, 16]",
            )
        if self.graphs == "dynamic" and self.buckets[-1] in (2, 3):
            raise RecipeError(
                f'graphs is "dynamic" and the largest bucket {self.buckets[-1]}, wanted 1 or at '
                "least 4",
                'build so few rows with graphs = "static"',
            )
        prefill = list(self.prefill_buckets)
        if not prefill or prefill[0] < 1 or prefill != sorted(set(prefill)):
            raise RecipeError(
                f"prefill_buckets is {prefill}, wanted ascending row counts of at least 1",
                "as in prefill_buckets = [64, 256]; a prompt takes the largest that it fills",
            )
        if (largest := max(*self.buckets, *prefill)) > MAX_ROWS:
            raise RecipeError(
                f"a bucket of {largest} rows, wanted at most {MAX_ROWS}",
                "more rows at once are no faster",
            )
        for key in ("verifier_sha256", "drafter_sha256"):
            digest = getattr(self, key).lower()
            if digest and (len(digest) != 64 or set(digest) - set("0123456789abcdef")):
                raise RecipeError(
                    f"{key} is {getattr(self, key)!r}, wanted 64 hexadecimal digits",
                    "`sha256sum FILE` prints them",
                )
        self._check_drafter()
        self._check_tree()

    @property
    def graph_rows(self) -> dict[str, GraphRows]:
        """The verifier's graphs by name; no name begins another."""
        if self.graphs == "static":
            verify = [(bucket, bucket) for bucket in self.buckets]
        else:
            verify = [(1, 1)]
            if self.buckets[-1] > 1:
                verify.append((2, self.buckets[-1]))
        rows = [GraphRows("verify", fewest, most) for fewest, most in verify]
        rows += [GraphRows("prefill", bucket, bucket) for bucket in self.prefill_buckets]
        return {f"{one.kind}_{one.most:03d}": one for one in rows}

    @property
    def draft_graph_rows(self) -> dict[str, GraphRows]:
        """The drafter's graphs by name; none if no model drafts."""
        if not self.has_draft_model:
            return {}
        rows = [
            GraphRows("draft", width, width, self.most_expanded if width > 1 else 1)
            for width in self.drafter_widths
        ]
        rows += [GraphRows("draft_prefill", bucket, bucket) for bucket in self.prefill_buckets]
        return {f"{one.kind}_{one.most:03d}": one for one in rows}

    @property
    def draft_model(self) -> str:
        """The model that drafts, "" if none does."""
        return "" if self.drafter in NO_MODEL else self.drafter.removesuffix(PLUS_NGRAM)

    @property
    def has_draft_model(self) -> bool:
        return bool(self.draft_model)

    @property
    def joins_ngram(self) -> bool:
        """Whether n-grams draft beside a model."""
        return self.has_draft_model and self.drafter.endswith(PLUS_NGRAM)

    @property
    def self_layers(self) -> int | None:
        """Layers of the verifier that draft, 0 for all of them; None for another drafter."""
        model = self.draft_model
        if not (model == "self" or model.startswith("self:")):
            return None
        layers = model.removeprefix("self").removeprefix(":") or "0"
        if not layers.isdigit() or (":" in model and int(layers) < 1):
            raise RecipeError(
                f"drafter is {self.drafter!r}, wanted self:LAYERS with a number of layers",
                "as in --drafter self:6, or self for the whole verifier",
            )
        return int(layers)

    @property
    def on_gpu(self) -> bool:
        """Whether the target, once it is resolved, is a GPU."""
        return self.target not in ("cpu", "auto")

    @property
    def most_expanded(self) -> int:
        """Nodes of one tree that a drafting model runs: the root, then a step for every level but
        the last.
        """
        return 1 + self.drafter_widths[-1] * (self.max_depth - 1)

    @property
    def most_rows(self) -> int:
        """Rows of the verifier's largest graph; its caches have as many slots beyond the context
        limit.
        """
        return max(self.buckets[-1], self.prefill_buckets[-1])

    @property
    def most_draft_rows(self) -> int:
        """As `most_rows` for the drafter: a tree's nodes, and padding behind them."""
        return max(self.most_expanded + self.drafter_widths[-1], self.prefill_buckets[-1])

    def _check_drafter(self) -> None:
        widths = list(self.drafter_widths)
        if len(widths) < 2 or widths[0] != 1 or widths != sorted(set(widths)):
            raise RecipeError(
                f"drafter_widths is {widths}, wanted at least two ascending numbers of nodes that "
                "start with 1",
                "the root runs alone and a step's nodes together, as in drafter_widths = [1, 4]",
            )
        if self.most_draft_rows > MAX_ROWS:
            raise RecipeError(
                f"drafter_widths of {widths[-1]} and max_depth of {self.max_depth} make "
                f"{self.most_draft_rows} rows, wanted at most {MAX_ROWS}",
                "lower one of them",
            )
        if self.draft_model in NO_MODEL or (not self.draft_model and self.drafter not in NO_MODEL):
            raise RecipeError(
                f"drafter is {self.drafter!r}, wanted {', '.join(NO_MODEL)}, a model or a "
                f"model{PLUS_NGRAM}",
                "as in --drafter ngram, --drafter self:6+ngram",
            )
        if self.has_draft_model:
            _ = self.self_layers
            return
        for key, default in (
            ("drafter_sha256", ""),
            ("drafter_quant", "auto"),
            ("drafter_dtype", "auto"),
        ):
            if getattr(self, key) != default:
                raise RecipeError(
                    f"{key} is {getattr(self, key)!r}, but {self.drafter} drafts, no model",
                    "name a model with --drafter, or leave it out",
                )

    @property
    def _draft_kind(self) -> DraftKind:
        """What drafts, as plans see it; a model that is not here may be a head."""
        if not self.has_draft_model or is_medusa_folder(Path(self.draft_model)):
            return "none"
        return "eagle" if is_head_folder(Path(self.draft_model)) else "lm"

    def _check_tree(self) -> None:
        if self.tree == "auto":
            return
        try:
            spec = parse_tree_spec(self.tree)
        except RequestError as error:
            raise RecipeError(f"tree: {error.message}", error.tip) from error
        if spec.verify > self.buckets[-1]:
            raise RecipeError(
                f"tree {self.tree!r} verifies {spec.verify} rows, the largest bucket has "
                f"{self.buckets[-1]}",
                "add a bucket that holds it, or set verify=",
            )
        expanded = sum(draft_steps(spec))
        medusa = is_medusa_folder(Path(self.draft_model))
        if spec.plan != Plan() and (why := why_not_run(spec, self._draft_kind)):
            raise RecipeError(
                f"tree {self.tree!r}: its plan cannot be run: {why}",
                "leave it out, or see docs/objective.md for what there is",
            )
        if self.has_draft_model and expanded > self.most_expanded and not medusa:
            raise RecipeError(
                f"tree {self.tree!r} runs {expanded} nodes through the drafter, its graphs hold "
                f"{self.most_expanded}",
                "ask for less width or depth, or for a larger drafter_widths or max_depth",
            )

    def packable(self) -> dict[str, Any]:
        """What goes into the manifest: everything but this machine's folders and the number of
        processes.
        """
        plain: dict[str, Any] = {**msgspec.to_builtins(self), **self.recipe_paths}
        return {
            key: value
            for key, value in plain.items()
            if key not in ("output", "work_dir", "jobs", "profile", "recipe_paths")
        }


class GraphRows(NamedTuple):
    """What kind of graph, for how many rows, and how many columns its mask has (0: as many)."""

    kind: GraphKind
    fewest: int
    most: int
    num_columns: int = 0


def buckets_up_to(max_rows: int | None) -> list[int] | None:
    """1, 4, 8, 16 and so on, the last of `max_rows` rows; None leaves it to the recipe."""
    if max_rows is None:
        return None
    doubled = itertools.takewhile(lambda rows: rows < max_rows, (2**i for i in itertools.count(2)))
    return sorted({1, *doubled, max_rows})


OPTIONS = tuple(name for name in BuildConfig.__struct_fields__ if name != "recipe_paths")


def load_config(recipe: Path | None, flags: Mapping[str, Any]) -> tuple[BuildConfig, list[str]]:
    """The configuration and what each "auto" became; a flag that is not None overrides the recipe.

    `target` is taken as given: `yggc.targets` resolves it. RecipeError for a missing file, an
    unknown key, a wrong type or a missing option.
    """
    where = f"recipe {recipe}" if recipe else "command line"
    values = read_recipe(recipe) if recipe else {}
    unknown = [key for key in (*values, *flags) if key not in OPTIONS]
    if unknown:
        near = difflib.get_close_matches(unknown[0], OPTIONS, n=1)
        raise RecipeError(
            f"{where}: unknown key {unknown[0]!r}; known are {', '.join(sorted(OPTIONS))}",
            f"did you mean {near[0]!r}?" if near else "`yggc build --help` describes them",
        )
    given = {key: value for key, value in flags.items() if value is not None}
    relative = _resolve_paths(recipe, values)
    values |= {**given, "recipe_paths": {k: v for k, v in relative.items() if k not in given}}
    for key, flag in (("verifier", "--verifier"), ("output", "-o"), ("target", "--gpu")):
        if not values.get(key):
            raise RecipeError(f"{where}: no {key}", f'give {flag}, or {key} = "..." in a recipe')
    if isinstance(values["target"], list):
        values["target"] = _only_target(where, values["target"])
    values.setdefault("name", Path(str(values["output"])).stem)
    notes = _resolve_host(values)
    try:
        return msgspec.convert(values, BuildConfig), notes
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$.")
        key = path.rstrip("`").partition("[")[0]
        found = values.get(key)
        choices = get_args(get_type_hints(BuildConfig).get(key))
        if found is not None and choices and all(isinstance(one, str) for one in choices):
            text = f"wanted {' or '.join(choices)}"
        raise RecipeError(
            f"{where}: {key} is {found!r}: {text[:1].lower()}{text[1:]}",
            "`yggc build --help` describes the options; a recipe has the same",
        ) from error


def recipe_targets(recipe: Path | None) -> tuple[str, ...]:
    """The targets that a recipe names, none if it names none; RecipeError for one that cannot be
    read or whose targets are no names, or not different ones.
    """
    found = read_recipe(recipe).get("target") if recipe else None
    targets = found if isinstance(found, list) else [found or ""]
    if not all(isinstance(one, str) for one in targets) or len(set(targets)) < len(targets):
        raise RecipeError(
            f"recipe {recipe}: target is {found!r}, wanted a name or a list of different names",
            'as in target = "cpu", or target = ["a100", "h100"]',
        )
    return tuple(one for one in targets if one)


def _only_target(where: str, targets: list[Any]) -> Any:
    if len(targets) == 1:
        return targets[0]
    names = ", ".join(map(str, targets))
    raise RecipeError(f"{where}: is for {names}, a build is for one of them", "name it with --gpu")


def for_target(config: BuildConfig, target: str) -> BuildConfig:
    """The configuration for a concrete target, whose name takes the place of "{target}"."""
    named = {key: getattr(config, key).replace("{target}", target) for key in ("name", "output")}
    return msgspec.structs.replace(config, target=target, **named)


def read_recipe(path: Path) -> dict[str, Any]:
    """What a recipe says, paths as it writes them; RecipeError if it cannot be read."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RecipeError(
            f"recipe {path}: no such file", "recipes end in .toml; check the path"
        ) from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RecipeError(
            f"recipe {path}: cannot be read as TOML: {error}",
            'a recipe has lines like name = "value"; artifacts/recipes has examples',
        ) from error
    return values


def _resolve_paths(recipe: Path | None, values: dict[str, Any]) -> dict[str, str]:
    """Makes the recipe's relative paths absolute, and gives them as they were: written beside the
    recipe, so looked for there whatever the current directory."""
    written: dict[str, str] = {}
    for key in ("verifier", "drafter", "calibration", "profile"):
        value = values.get(key)
        if recipe is not None and isinstance(value, str) and value.startswith(("./", "../")):
            values[key] = str((recipe.parent / value).resolve())
            written[key] = value
    return written


def _resolve_host(values: dict[str, Any]) -> list[str]:
    """Replaces what depends on this machine; one line for each choice."""
    notes = []
    drafter = Path(str(values.get("drafter", "")).removesuffix(PLUS_NGRAM))
    if is_medusa_folder(drafter):
        if "drafter_widths" in values:
            notes.append("drafter_widths: of no use to Medusa heads, which have no graphs")
    elif "drafter_widths" not in values and is_head_folder(drafter):
        values["drafter_widths"] = list(HEAD_WIDTHS)
        widths = ", ".join(map(str, HEAD_WIDTHS))
        notes.append(f"drafter_widths: auto is {widths} for a head, which is cheap to run wide")
    cores = usable_cores()
    if values.get("threads", "auto") == "auto":
        values["threads"] = cores
        notes.append(f"threads: auto is {cores}, the physical cores this process may use")
    if values.get("jobs", "auto") == "auto":
        memory = available_memory_bytes()
        values["jobs"] = max(1, min(cores, memory // JOB_BYTES))
        notes.append(
            f"jobs: auto is {values['jobs']}, for {cores} cores and {memory / 2**30:.1f} GiB free"
        )
    if values.get("work_dir", "auto") == "auto":
        values["work_dir"] = str(default_work_dir())
    if values.get("max_model_len") == "auto":
        values["max_model_len"] = 0
    return notes


def resolve_for_model(
    config: BuildConfig,
    *,
    model_limit: int,
    stored_dtype: str,
    is_gguf: bool,
    is_quantised: bool = False,
) -> tuple[BuildConfig, list[str]]:
    """The configuration without any "auto" left but `tree`, and what was chosen.

    `model_limit` is the longest context of the model in tokens; `stored_dtype` what most weights
    are stored in; `is_quantised` whether matrices are stored in formats that the operators read.
    """
    notes = []
    dtype, length = config.dtype, config.max_model_len
    if dtype == "auto":
        single = (is_gguf or stored_dtype == "float32") and not config.on_gpu
        dtype = "float32" if single else "bfloat16"
        origin = "a GGUF file" if is_gguf else f"a checkpoint in {stored_dtype}"
        notes.append(f"dtype: auto is {dtype}, for {'a GPU' if config.on_gpu else origin}")
    if length == 0:
        length = min(model_limit, DEFAULT_MAX_MODEL_LEN)
        notes.append(f"max_model_len: auto is {length}; the model allows {model_limit}")
    if length > model_limit:
        raise RecipeError(
            f"max_model_len is {length}, the model allows {model_limit}",
            f"set it to at most {model_limit}",
        )
    quant = config.quant
    if quant == "auto":
        quant = "keep" if is_quantised else "none"
        if is_gguf:
            why = "its quantised matrices stay as stored" if is_quantised else "nothing to keep"
            notes.append(f"quant: auto is {quant}, for a GGUF file: {why}")
    elif quant == "keep" and not is_quantised:
        found = (
            "the file has no matrix that can be kept"
            if is_gguf
            else "the verifier is no such file"
        )
        raise RecipeError(
            f"quant is keep, wanted a GGUF file with quantised matrices; {found}",
            "take int8 or int4 to quantise it, or none",
        )
    activations = config.activations
    if activations == "auto":
        activations = "float32" if quant == "none" or config.on_gpu else "int8"
        if activations == "int8":
            notes.append(
                "activations: auto is int8, for quantised matrices; float32 is slower and keeps "
                "the products of the stored weights"
            )
    elif activations == "int8" and quant == "none":
        raise RecipeError(
            "activations is int8, wanted quantised matrices with it; quant is none",
            "add --quant int8 or int4, or give a quantised GGUF file",
        )
    kv_dtype = config.kv_dtype
    if kv_dtype == "auto":
        kv_dtype = "bfloat16" if config.on_gpu else "float32"
    resolved = msgspec.structs.replace(
        config,
        dtype=dtype,
        max_model_len=length,
        quant=quant,
        activations=activations,
        kv_dtype=kv_dtype,
    )
    return resolved, notes
