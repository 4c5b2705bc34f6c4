"""The command line's words for what a request may ask of sampling. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from yggrt.core.errors import RequestError
from yggrt.sampling.params import SamplingOptions

Temperature = Annotated[
    float | None, typer.Option(help="0 takes the most likely token (default); 0.001 to 100 draws.")
]
Seed = Annotated[int | None, typer.Option(help="Same seed, same tokens (default: a random one).")]
TopK = Annotated[int | None, typer.Option(help="Draw from the K most likely tokens.", metavar="K")]
TopP = Annotated[
    float | None, typer.Option(help="Draw from the most likely tokens that together have P.")
]
MinP = Annotated[
    float | None, typer.Option(help="Draw from tokens with this share of the largest probability.")
]
RepetitionPenalty = Annotated[
    float | None, typer.Option(help="Factor on tokens of prompt and output; 1 is none.")
]
PresencePenalty = Annotated[
    float | None, typer.Option(help="Taken once from tokens of the output; -2 to 2.")
]
FrequencyPenalty = Annotated[
    float | None, typer.Option(help="Taken from tokens of the output per occurrence; -2 to 2.")
]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(help="Added to a token's logit (repeatable).", metavar="ID=NUMBER"),
]
MinTokens = Annotated[int | None, typer.Option(help="No end before so many tokens.")]
StopId = Annotated[
    list[int] | None, typer.Option(help="A token that ends the output (repeatable).", metavar="ID")
]
Logprobs = Annotated[
    int | None,
    typer.Option(help="With --json, log-probabilities of so many tokens beside each chosen one."),
]
NumChoices = Annotated[int | None, typer.Option("--n", help="So many completions of the prompt.")]
JsonSchema = Annotated[
    str | None,
    typer.Option(help="What the output must match, or @FILE with it.", metavar="SCHEMA"),
]
Regex = Annotated[str | None, typer.Option(help="As --json-schema, a regular expression.")]
Grammar = Annotated[str | None, typer.Option(help="As --json-schema, a Lark grammar.")]


def sampling_options(
    *,
    logit_bias: Sequence[str] | None,
    json_schema: str | None,
    regex: str | None,
    grammar: str | None,
    **given: Any,
) -> SamplingOptions:
    """Options of those that were given; raises RequestError for a bias or file that cannot be
    read.
    """
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if logit_bias:
        options["logit_bias"] = dict(parse_bias(one) for one in logit_bias)
    for name, source in (("json_schema", json_schema), ("regex", regex), ("grammar", grammar)):
        if source is not None:
            options[name] = _source(source)
    return cast(SamplingOptions, options)


def _source(text: str) -> str:
    """`text`, or what is in the file that @ comes before."""
    if not text.startswith("@"):
        return text
    from yggrt.text import decode_utf8

    path = Path(text[1:])
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RequestError(
            f"{path}: cannot be read: {error.strerror or error}", "check the path"
        ) from error
    return decode_utf8(data, str(path))


def parse_bias(text: str) -> tuple[int, float]:
    """`ID=NUMBER`."""
    token_id, _, bias = text.partition("=")
    try:
        return int(token_id), float(bias)
    except ValueError:
        raise RequestError(
            f"--logit-bias is {text!r}, wanted a token id, = and a number",
            "as in --logit-bias 42=-1.5",
        ) from None
