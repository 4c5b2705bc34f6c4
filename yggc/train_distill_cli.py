"""`yggc train distill`: a small language model with the verifier's tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from yggc.train_command import SharedFlags, training_command
from yggc.train_flags import numbers_in

if TYPE_CHECKING:
    from yggc.train.run import TrainOptions


@training_command(learning_rate=1e-3)
def distill(
    shared: SharedFlags,
    *,
    layers: Annotated[int | None, typer.Option(help="Of a new model (default: 2).", min=1)] = None,
    hidden_size: Annotated[
        int | None, typer.Option(help="Of a new model (default: 256).", min=2)
    ] = None,
    heads: Annotated[
        int | None, typer.Option(help="Of a new model (default: of 64 each).", min=1)
    ] = None,
    untied: Annotated[
        bool, typer.Option("--untied", help="A new model has an output head of its own.")
    ] = False,
    from_layers: Annotated[
        str | None,
        typer.Option(
            help="Begin with these of the verifier's layers, and its embedding, norm and head, "
            "instead of a new model.",
            metavar="0,1,...",
        ),
    ] = None,
) -> TrainOptions:
    """Trains a language model to draft. The same command goes on after a stop."""
    from yggc.errors import RecipeError

    chosen = _layers(from_layers)
    new = {
        "--layers": layers,
        "--hidden-size": hidden_size,
        "--heads": heads,
        "--untied": untied or None,
    }
    given = [name for name, value in new.items() if value is not None]
    if chosen and given:
        raise RecipeError(
            f"{given[0]} is of a new model, --from-layers takes the verifier's",
            "give one or the other",
        )

    from yggc.train.distill import DistillOptions

    return DistillOptions(
        **shared.fields,
        num_layers=layers or 2,
        hidden_size=hidden_size or 256,
        num_heads=heads or 0,
        tied=not untied,
        from_layers=chosen,
    )


def _layers(text: str | None) -> tuple[int, ...]:
    """The numbers of `0,1,...`, each once; RecipeError for anything else."""
    from yggc.errors import RecipeError

    if text is None:
        return ()
    found = numbers_in(text)
    if found is None or len(set(found)) < len(found):
        raise RecipeError(
            f"--from-layers is {text!r}, wanted numbers of layers, each once",
            "--from-layers 0,1,29 takes the first two and the thirtieth",
        )
    return found
