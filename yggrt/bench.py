"""Times plain against tree decoding of one bundle, in turns, on the same prompts.

Plain, tree, tree, plain: a machine that slows down or speeds up does so for both. Every output is
compared, so a speed is never that of other tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from yggrt.core.errors import CheckFailed, RequestError
from yggrt.core.schema import VERIFIER_KINDS, Manifest
from yggrt.core.spec import format_tree_spec
from yggrt.inspect import describe_verifier, model_weights
from yggrt.prompts import Prompt
from yggrt.session import Completion, Session
from yggrt.target import host_target
from yggrt.verify import first_difference

if TYPE_CHECKING:
    from rich.console import Console

WARMUP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Rounds:
    """All runs of one prompt; `plain[i]` and `tree[i]` were neighbours in time."""

    prompt: Prompt
    plain: tuple[Completion, ...]
    tree: tuple[Completion, ...]

    @property
    def speedup(self) -> float:
        """Mean over neighbouring runs of plain over tree time per token."""
        return fmean(
            _tpot(plain) / _tpot(tree) for plain, tree in zip(self.plain, self.tree, strict=True)
        )


def bench_bundle(
    session: Session,
    manifest: Manifest,
    prompts: Sequence[Prompt],
    *,
    num_tokens: int,
    repeats: int,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Runs the prompts and returns the report in JSON types; times in ms, rates per second.

    Raises CheckFailed if trees and plain decoding emit different ids.
    """
    import torch

    from yggrt.measure_host import measure_read_bandwidth

    encoded = [(prompt, _encode(session, prompt)) for prompt in prompts]
    start = perf_counter()
    for plain in (True, False):
        session.generate(encoded[0][1], max_tokens=WARMUP_TOKENS, plain=plain)
    warmup_s = perf_counter() - start
    rounds = []
    for number, (prompt, ids) in enumerate(encoded, 1):
        progress(f"{number}/{len(encoded)} {prompt.name}")
        rounds.append(run_rounds(session, prompt, ids, num_tokens, repeats))
    progress("")
    # An output of one token has no time per token.
    timed = [one for one in rounds if len(one.plain[0].ids) > 1]
    if not timed:
        raise RequestError(
            "every output ended after its first token, so there is no time per token",
            "choose other prompts",
        )
    # What a pass of the verifier reads; a model that drafts has its own.
    weights = model_weights(manifest, VERIFIER_KINDS)
    weight_bytes = sum(weight.num_bytes for weight in weights.values())
    num_threads = torch.get_num_threads()
    host = host_target(num_threads).tuned_for
    bandwidth = measure_read_bandwidth(num_threads)
    return {
        "bundle": manifest.name,
        "verifier": describe_verifier(manifest),
        "plain": summary([one.plain for one in timed], weight_bytes, bandwidth),
        "tree": {
            "spec": format_tree_spec(session.tree),
            **summary([one.tree for one in timed], weight_bytes, bandwidth),
        },
        "speedup": fmean(one.speedup for one in timed),
        "num_prompts": len(timed),
        "num_tokens": num_tokens,
        "repeats": repeats,
        "warmup_s": warmup_s,
        "weight_bytes": weight_bytes,
        "per_prompt": [_row(one) for one in timed],
        "host": {
            "device": host.device,
            "num_cores": host.num_cores,
            "num_threads": num_threads,
            "torch": torch.__version__,
            "read_bandwidth": bandwidth,
        },
    }


def run_rounds(
    session: Session, prompt: Prompt, ids: Sequence[int], num_tokens: int, repeats: int
) -> Rounds:
    """Plain, tree, tree, plain, `repeats` times; raises CheckFailed if an output differs."""
    plain: list[Completion] = []
    tree: list[Completion] = []
    for _ in range(repeats):
        for into in (plain, tree, tree, plain):
            into.append(session.generate(ids, max_tokens=num_tokens, plain=into is plain))
    for other in (*plain, *tree):
        index = first_difference(plain[0].ids, other.ids)
        if index is not None:
            raise CheckFailed(
                f"prompt {prompt.name}: token {index} is not the same in all runs of plain and "
                "tree decoding",
                "`yggrt verify --prompts` shows the tokens and how close they are",
            )
    return Rounds(prompt, tuple(plain), tuple(tree))


def summary(
    runs: Sequence[Sequence[Completion]], weight_bytes: int, bandwidth: float
) -> dict[str, Any]:
    """Numbers of one way of decoding; `runs` by prompt."""
    every = [run.stats for prompt in runs for run in prompt]
    num_passes = sum(stats.num_passes for stats in every)
    stage_ms: dict[str, float] = {}
    for stats in every:
        for name, ms in stats.stage_ms.items():
            stage_ms[name] = stage_ms.get(name, 0.0) + ms
    decode_ms = sum(stage_ms.values())
    bytes_per_s = weight_bytes * num_passes / (stage_ms["verify"] / 1e3)
    return {
        "tpot_ms": median(median(map(_tpot, prompt)) for prompt in runs),
        "prefill_ms": median(stats.prefill_ms for stats in every),
        "ttft_ms": median(stats.ttft_ms for stats in every),
        "mean_acceptance_length": sum(s.mean_acceptance_length * s.num_passes for s in every)
        / num_passes,
        "num_passes": num_passes,
        "num_plain_passes": sum(stats.num_plain_passes for stats in every),
        "num_gated_passes": sum(stats.num_gated_passes for stats in every),
        "num_rows": sum(stats.num_rows for stats in every),
        "stage_share": {name: ms / decode_ms for name, ms in stage_ms.items()},
        "weight_bytes_per_s": bytes_per_s,
        "bandwidth_share": bytes_per_s / bandwidth,
    }


def print_tables(report: dict[str, Any], console: Console) -> None:
    """The report for a person."""
    from rich.table import Table

    ways = {"plain": report["plain"], "tree": report["tree"]}
    stages = list(dict.fromkeys(name for way in ways.values() for name in way["stage_share"]))
    table = Table(box=None)
    for title in (
        *("", "ms/token", "prefill ms", "tokens/pass", "gated"),
        *(f"{name} %" for name in stages),
        *("GB/s", "of bandwidth"),
    ):
        table.add_column(title, justify="right" if title else "left")
    for name, way in ways.items():
        table.add_row(
            name,
            f"{way['tpot_ms']:.2f}",
            f"{way['prefill_ms']:.1f}",
            f"{way['mean_acceptance_length']:.2f}",
            f"{way['num_gated_passes']}/{way['num_passes']}",
            *(f"{100 * way['stage_share'].get(stage, 0.0):.1f}" for stage in stages),
            f"{way['weight_bytes_per_s'] / 1e9:.1f}",
            f"{way['bandwidth_share']:.0%}",
        )
    per_prompt = Table(box=None)
    columns = ("prompt", "category", "tokens", "plain", "tree", "tokens/pass", "speedup")
    for index, title in enumerate(columns):
        per_prompt.add_column(title, justify="left" if index < 2 else "right")
    for row in report["per_prompt"]:
        numbers = ("plain_tpot_ms", "tree_tpot_ms", "mean_acceptance_length", "speedup")
        per_prompt.add_row(
            row["name"],
            row["category"],
            str(row["num_tokens"]),
            *(f"{row[name]:.2f}" for name in numbers),
        )
    host = report["host"]
    console.print(
        f"{report['bundle']}: {report['verifier']}\n{report['tree']['spec']}\n{host['device']}, "
        f"{host['num_threads']} threads, torch {host['torch']}, reads "
        f"{host['read_bandwidth'] / 1e9:.1f} GB/s",
        markup=False,
        highlight=False,
    )
    console.print(table, per_prompt, sep="\n\n")
    console.print(
        f"speedup {report['speedup']:.2f} (mean of {report['num_prompts']} prompts), "
        f"warm-up {report['warmup_s']:.1f} s apart",
        highlight=False,
    )


def fitting(session: Session, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts that leave the context room for output; RequestError if there is none."""
    limit = session.graphs.max_model_len
    kept = [prompt for prompt in prompts if len(_encode(session, prompt)) < limit]
    if not kept:
        raise RequestError(
            f"none of the bundle's {len(prompts)} prompts fits its context of {limit} tokens",
            "give shorter ones with --prompts FILE",
        )
    return kept


def _encode(session: Session, prompt: Prompt) -> list[int]:
    if session.text is None:
        raise RequestError(
            "the bundle has no tokenizer, so it takes no prompts of text",
            "build it with a verifier that has a tokenizer",
        )
    return prompt.encode(session.text)


def _row(rounds: Rounds) -> dict[str, Any]:
    tree = rounds.tree[0].stats
    return {
        "name": rounds.prompt.name,
        "category": rounds.prompt.category,
        "num_prompt_tokens": tree.num_prompt_tokens,
        "num_tokens": tree.num_tokens,
        "plain_tpot_ms": median(map(_tpot, rounds.plain)),
        "tree_tpot_ms": median(map(_tpot, rounds.tree)),
        "prefill_ms": median(run.stats.prefill_ms for run in (*rounds.plain, *rounds.tree)),
        "mean_acceptance_length": tree.mean_acceptance_length,
        "num_gated_passes": tree.num_gated_passes,
        "speedup": rounds.speedup,
    }


def _tpot(run: Completion) -> float:
    assert run.stats.tpot_ms is not None, "only outputs of two tokens and more are timed"
    return run.stats.tpot_ms
