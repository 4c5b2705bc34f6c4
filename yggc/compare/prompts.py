"""Which prompts trees are tried on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from yggrt.bundle import Bundle
from yggrt.core.errors import RequestError
from yggrt.loading import load_text
from yggrt.prompts import beginnings, parse_prompts, read_prompt_files


def chosen_prompts(
    bundle: Bundle,
    files: Sequence[Path],
    limit: int | None,
    prompt_tokens: int | None,
    num_tokens: int,
) -> list[tuple[str, list[int]]]:
    """Names and ids of the prompts in `files`, else of the bundle's; the first turn of those with
    several, or with `prompt_tokens` the beginnings of their texts.

    Of the bundle's own those that leave no room for `num_tokens` more are left out, of others they
    are refused. A bundle without tokenizer has the prompts of its golden outputs.
    """
    text, manifest = load_text(bundle), bundle.manifest
    room = manifest.model.max_model_len - num_tokens
    if text is None:
        if files or prompt_tokens:
            raise RequestError(
                "the bundle has no tokenizer, so it takes no prompts of text",
                "leave out --prompts, or build with a verifier that has a tokenizer",
            )
        golden = enumerate(manifest.golden, 1)
        return [(f"golden {i}", list(one.prompt_ids)) for i, one in golden][:limit]
    if files:
        prompts = read_prompt_files(files, limit)
    elif name := manifest.bench_prompts:
        prompts = parse_prompts(bundle.read(name), name)
    else:
        raise RequestError("the bundle carries no prompts", "give some with --prompts FILE")
    if prompt_tokens is not None:
        cut = beginnings(text, prompts, prompt_tokens)
        encoded = [(str(number), ids) for number, ids in enumerate(cut, 1)]
    else:
        encoded = [(prompt.name, prompt.encode(text)) for prompt in prompts]
    fitting = [(name, ids) for name, ids in encoded if 0 < len(ids) <= room]
    if (files or not fitting) and len(fitting) < len(encoded):
        name, ids = next(one for one in encoded if one not in fitting)
        raise RequestError(
            f"prompt {name} has {len(ids)} tokens, the context of "
            f"{manifest.model.max_model_len} leaves room for {room} beside {num_tokens} of output",
            "leave it out, or decode fewer tokens with -n",
        )
    return fitting[:limit]
