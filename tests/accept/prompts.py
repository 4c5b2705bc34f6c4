"""Evaluation prompts as ids: HumanEval raw, GSM8K questions as chat messages."""

from __future__ import annotations

import json
from pathlib import Path

from yggrt.text import Text

DATA = Path(__file__).parents[3] / "shared" / "data"


def evaluation_ids(text: Text, num: int, max_prompt: int = 512) -> dict[str, list[list[int]]]:
    """`num` prompts of each set; raises FileNotFoundError naming the data that is missing."""
    humaneval = [row["prompt"] for row in rows("humaneval.jsonl")[:num]]
    questions = [row["question"] for row in rows("gsm8k_test.jsonl")[:num]]
    return {
        "HumanEval": [text.encode(prompt)[:max_prompt] for prompt in humaneval],
        "GSM8K": [
            text.encode_chat([{"role": "user", "content": question}])[:max_prompt]
            for question in questions
        ],
    }


def rows(name: str) -> list[dict[str, str]]:
    """The objects of one evaluation file."""
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]
