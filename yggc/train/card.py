"""The model card of a trained drafter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yggc.train.head import replace_file
from yggc.train.validate import TOP


@dataclass(frozen=True, slots=True)
class About:
    """What a card says of a kind of drafter.

    title: of the card, before the verifier's name; noun: what a sentence calls it; text: lines
    about what it is; training: of a step, with its comma, or empty; measured: of the agreement.
    """

    title: str
    noun: str
    text: tuple[str, ...]
    training: str
    measured: str


def write_card(path: Path, record: Mapping[str, Any], about: About) -> None:
    """Writes `record`, what training.json holds, as a README.md."""
    text = card_text(record, about)
    replace_file(path, lambda partial: partial.write_text(text))


def card_text(record: Mapping[str, Any], about: About) -> str:
    verifier, text = record["verifier"], record["text"]
    license_name = verifier["license"]
    files = ", ".join(f"`{name}` (SHA-256 {digest})" for name, digest in verifier["files"].items())
    lines = [
        "---",
        f"license: {license_name}",
        "---",
        "",
        f"# {about.title} for {verifier['location']}",
        "",
        *about.text,
        "",
        f"- Verifier: {verifier['kind']} `{verifier['location']}`; {files}",
        f"- Text: {text['rows']} rows with {text['response_tokens']} response tokens that the "
        f"verifier wrote itself (digest {text['sha256'][:16]}); {text['held_out_rows']} rows were "
        "held out by their prompts",
        f"- Training: {record['steps']} steps, {record['tokens']} response tokens passed, "
        f"{about.training}{record['seconds'] / 60:.0f} minutes on {record['machine']} with "
        f"{record['threads']} threads",
        f"- Licence: {license_name}, the verifier's",
        "",
        "```",
        record["command"],
        "```",
        "",
        *_agreement(record["best"], about),
    ]
    return "\n".join(lines)


def _agreement(best: Mapping[str, Any], about: About) -> list[str]:
    found = best.get("validation")
    if not found:
        return ["No rows were held out, so no agreement was measured.", ""]
    heads = " | ".join(f"first {number}" for number in TOP)
    rows = [
        f"| {step} | " + " | ".join(f"{share:.3f}" for share in shares) + " |"
        for step, shares in enumerate(found["top"], 1)
    ]
    return [
        f"Share of {found['num_tokens']} held-out response tokens (step {best['step']}) in which "
        "the verifier's first choice",
        f"is among the {about.noun}'s first ones. {about.measured}",
        "",
        f"| draft step | {heads} |",
        "|" + "---|" * (len(TOP) + 1),
        *rows,
        "",
        f"In a row, from any place in the text: {found['chain']:.2f} tokens with one guess a "
        f"step, {found['wide']:.2f} with four.",
        "",
    ]
