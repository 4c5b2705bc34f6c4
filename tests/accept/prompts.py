"""Evaluation prompts as ids."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from yggrt.text import Text

DATA = Path(__file__).parents[3] / "shared" / "data"


def script_options(about: str | None) -> argparse.Namespace:
    """What a script that decodes `chat_sets` with a bundle is asked for."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--num", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--threads", type=int)
    return parser.parse_args()


def evaluation_ids(text: Text, num: int, max_prompt: int = 512) -> dict[str, list[list[int]]]:
    """`num` prompts of HumanEval, raw, and of GSM8K, as chat messages; raises FileNotFoundError
    naming the data that is missing.
    """
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


def chat_sets(text: Text, num: int, room: int) -> dict[str, list[list[int]]]:
    """Every set's first prompts as the user's message of a chat, and HumanEval's raw, too."""
    texts = {
        "HumanEval": [row["prompt"] for row in rows("humaneval.jsonl")],
        "GSM8K": [row["question"] for row in rows("gsm8k_test.jsonl")],
        "Vicuna": [row["turns"][0] for row in rows("vicuna_bench_question.jsonl")],
    }
    found = {
        name: [text.encode_chat([{"role": "user", "content": one}])[:room] for one in some[:num]]
        for name, some in texts.items()
    }
    found["HumanEval, raw"] = [text.encode(one)[:room] for one in texts["HumanEval"][:num]]
    return found
