"""What a verifier is asked when it writes training text: prompts from files, from templates and
from the source of installed packages, in one order that a seed fixes.
"""

from __future__ import annotations

import itertools
import random
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from yggc.errors import RecipeError
from yggc.train import packages, tasks
from yggc.train.exclude import Exclusion, prompt_hash
from yggrt.prompts import parse_prompts, read_prompts

CATEGORIES = ("math", "code", "general", "prose")
SOURCES = ("builtin", "packages")
DEFAULT_MIX = {"math": 35.0, "code": 35.0, "general": 20.0, "prose": 10.0}
# Of the many prompts that number templates and story beginnings could make.
NUM_MATH, NUM_STARTS = 1000, 1000


@dataclass(frozen=True, slots=True)
class TrainPrompt:
    """The user's message; `category` is one of CATEGORIES."""

    category: str
    text: str

    @property
    def sha256(self) -> str:
        return prompt_hash(self.text)


def gather(
    files: Sequence[str], sources: Sequence[str], excluded: Exclusion, seed: int
) -> tuple[dict[str, list[list[TrainPrompt]]], int]:
    """Per category the prompts of each source, shuffled, none twice; and how many were left out.

    `files` are paths, each as `PATH` or `CATEGORY=PATH`.
    """
    pools: list[Iterator[TrainPrompt]] = [read_file(file) for file in files]
    pools += [_MAKERS[source]() for source in sources]
    seen: set[str] = set()
    num_excluded = 0
    gathered: dict[str, list[list[TrainPrompt]]] = {category: [] for category in CATEGORIES}
    for pool in pools:
        found: dict[str, list[TrainPrompt]] = {}
        for prompt in pool:
            if prompt.text in seen:
                continue
            seen.add(prompt.text)
            if prompt.text in excluded:
                num_excluded += 1
            else:
                found.setdefault(prompt.category, []).append(prompt)
        for category, prompts in found.items():
            random.Random(f"{seed} {category}").shuffle(prompts)
            gathered[category].append(prompts)
    return gathered, num_excluded


def mixed(
    gathered: Mapping[str, Sequence[Sequence[TrainPrompt]]], mix: Mapping[str, float]
) -> list[TrainPrompt]:
    """All prompts of the categories in `mix`, so ordered that every beginning of the list has
    about the shares of `mix`, and a category's sources take turns; what runs out is passed over.
    """
    lines = {
        category: _in_turns(gathered[category]) for category, weight in mix.items() if weight > 0
    }
    taken = dict.fromkeys(lines, 0)
    ordered = []
    while lines:
        category = min(lines, key=lambda name: ((taken[name] + 0.5) / mix[name], name))
        prompt = next(lines[category], None)
        if prompt is None:
            del lines[category]
        else:
            taken[category] += 1
            ordered.append(prompt)
    return ordered


def _in_turns(pools: Sequence[Sequence[TrainPrompt]]) -> Iterator[TrainPrompt]:
    for row in itertools.zip_longest(*pools):
        yield from (prompt for prompt in row if prompt is not None)


def read_file(argument: str) -> Iterator[TrainPrompt]:
    """First turns of a file's prompts; a row's own category counts if it is one of CATEGORIES."""
    category, path = split_argument(argument)
    for prompt in read_prompts(path, category):
        own = prompt.category if prompt.category in CATEGORIES else category
        yield TrainPrompt(own, prompt.text)


def split_argument(argument: str) -> tuple[str, Path]:
    """Category and path of `PATH` (general) or `CATEGORY=PATH`."""
    category, _, path = argument.partition("=")
    return (category, Path(path)) if category in CATEGORIES else ("general", Path(argument))


def read_excluded(paths: Sequence[Path]) -> Exclusion:
    """The prompts of `paths`, every turn of them, and those that `yggrt bench` measures with."""
    shipped = resources.files("ygg_artifacts.prompts") / "bench.jsonl"
    prompts = parse_prompts(shipped.read_bytes(), "bench.jsonl")
    for path in paths:
        prompts += read_prompts(path)
    return Exclusion(turn for prompt in prompts for turn in prompt.turns)


def check_sources(names: str) -> tuple[str, ...]:
    """The parts of `--sources`; empty text is none."""
    parts = tuple(part.strip() for part in names.split(",") if part.strip())
    for part in parts:
        if part not in SOURCES:
            raise RecipeError(
                f"--sources has {part!r}, wanted some of {', '.join(SOURCES)}",
                "as in --sources builtin,packages",
            )
    return parts


def parse_mix(text: str) -> dict[str, float]:
    """`math=35,code=35` as weights by category."""
    mix = {}
    for part in text.split(","):
        name, _, number = part.strip().partition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = -1.0
        if name not in CATEGORIES or not 0 <= weight < 1e9:
            raise RecipeError(
                f"--mix has {part.strip()!r}, wanted CATEGORY=WEIGHT with a category of "
                f"{', '.join(CATEGORIES)}",
                "as in --mix math=35,code=35,general=20,prose=10",
            )
        mix[name] = weight
    return mix


def _builtin() -> Iterator[TrainPrompt]:
    lists = tomllib.loads((resources.files("ygg_artifacts.prompts") / "training.toml").read_text())
    for category, key in (("general", "general"), ("general", "dialogue"), ("prose", "prose")):
        for template, topic in itertools.product(lists[f"{key}_templates"], lists["topics"]):
            yield TrainPrompt(category, template.format(topic=topic))
    starts = itertools.product(
        *(lists[key] for key in ("prose_starts", "adjectives", "persons", "places", "things"))
    )
    names = ("adjective", "person", "place", "thing")
    for start, *words in random.Random(0).sample(list(starts), NUM_STARTS):
        yield TrainPrompt("prose", start.format(**dict(zip(names, words, strict=True))))
    for ask, (name, task) in itertools.product(lists["code_asks"], lists["code_tasks"]):
        yield TrainPrompt("code", ask.format(name=name, task=task))
    for stub in tasks.stubs():
        yield TrainPrompt("code", stub)
    yield from _sums(lists)


def _sums(lists: Mapping[str, Any]) -> Iterator[TrainPrompt]:
    chosen = random.Random(0)
    for _ in range(NUM_MATH):
        name, friend = chosen.sample(lists["names"], 2)
        text = chosen.choice(lists["math_templates"]).format(
            name=name,
            friend=friend,
            things=chosen.choice(lists["counted"]),
            a=chosen.randint(3, 40),
            b=chosen.randint(2, 19),
            c=chosen.randint(2, 9),
        )
        yield TrainPrompt("math", text)


def _packages() -> Iterator[TrainPrompt]:
    return (TrainPrompt("code", stub) for stub in packages.stubs())


_MAKERS = {"builtin": _builtin, "packages": _packages}
