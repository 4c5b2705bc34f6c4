"""`yggc train eagle3`: an EAGLE-3 head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from yggc.train_command import SharedFlags, check_within, training_command
from yggc.train_flags import Decay, Detach, DraftVocab, FirstHead, numbers_in

if TYPE_CHECKING:
    from yggc.train.run import TrainOptions


@training_command()
def eagle3(
    shared: SharedFlags,
    *,
    draft_vocab: DraftVocab = 8192,
    draft_steps: Annotated[
        int, typer.Option(help="Steps that a draft is trained for, on its own outputs.", min=1)
    ] = 4,
    taps: Annotated[
        str,
        typer.Option(
            help="Layers whose inputs the head reads, ascending (default: 2, the middle one and "
            "the third last).",
            metavar="LAYERS",
        ),
    ] = "",
    decay: Decay = 0.8,
    detach: Detach = False,
    first: FirstHead = None,
) -> TrainOptions:
    """Trains an EAGLE-3 head. The same command goes on after a stop."""
    check_within(("decay", decay, 0.0, 1.0))
    layers = layer_numbers(taps)

    from yggc.train.eagle3_learner import Eagle3Options

    return Eagle3Options(
        **shared.fields,
        draft_vocab=draft_vocab,
        num_steps=draft_steps,
        taps=layers,
        decay=decay,
        detach=detach,
        first=first,
    )


def layer_numbers(text: str) -> tuple[int, ...]:
    """Of "2,15,27"; RecipeError for anything else than numbers."""
    from yggc.errors import RecipeError

    found = numbers_in(text) if text else ()
    if found is None:
        raise RecipeError(f"--taps is {text!r}, wanted numbers of layers as in 2,15,27")
    return found
