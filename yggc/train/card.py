"""The model card of a trained head."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yggc.train.head import replace_file
from yggc.train.validate import TOP


def write_card(path: Path, record: Mapping[str, Any]) -> None:
    """Writes `record`, what training.json holds, as a README.md."""
    text = card_text(record)
    replace_file(path, lambda partial: partial.write_text(text))


def card_text(record: Mapping[str, Any]) -> str:
    verifier, options, text = record["verifier"], record["options"], record["text"]
    license_name = verifier["license"]
    files = ", ".join(f"`{name}` (SHA-256 {digest})" for name, digest in verifier["files"].items())
    lines = [
        "---",
        f"license: {license_name}",
        "---",
        "",
        f"# EAGLE head for {verifier['location']}",
        "",
        "Drafts tokens for one verifier: from its last hidden state and the next token's",
        "embedding it predicts the next hidden state (EAGLE, arXiv 2401.15077), and the",
        f"verifier's own output head, cut to {options['draft_vocab']} ids, makes tokens of it. "
        f"{record['parameters'] / 1e6:.1f} M parameters; the",
        "embedding and the output head are the verifier's and are not stored here.",
        "",
        f"- Verifier: {verifier['kind']} `{verifier['location']}`; {files}",
        f"- Text: {text['rows']} rows with {text['response_tokens']} response tokens that the "
        f"verifier wrote itself (digest {text['sha256'][:16]}); {text['held_out_rows']} rows were "
        "held out by their prompts",
        f"- Training: {record['steps']} steps, {record['tokens']} response tokens passed, "
        f"{options['num_steps']} draft steps each, {record['seconds'] / 60:.0f} minutes on "
        f"{record['machine']} with {record['threads']} threads",
        f"- Licence: {license_name}, the verifier's",
        "",
        "```",
        record["command"],
        "```",
        "",
        *_agreement(record["best"]),
    ]
    return "\n".join(lines)


def _agreement(best: Mapping[str, Any]) -> list[str]:
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
        "is among the head's first ones. Draft step 1 reads the verifier's features, later ones "
        "the head's own.",
        "",
        f"| draft step | {heads} |",
        "|" + "---|" * (len(TOP) + 1),
        *rows,
        "",
        f"In a row, from any place in the text: {found['chain']:.2f} tokens with one guess a "
        f"step, {found['wide']:.2f} with four.",
        "",
    ]
