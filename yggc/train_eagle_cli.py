"""`yggc train eagle`: an EAGLE head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from yggc.train_command import SharedFlags, check_within, training_command
from yggc.train_flags import Decay, Detach, DraftVocab, FirstHead

if TYPE_CHECKING:
    from yggc.train.run import TrainOptions


@training_command()
def eagle(
    shared: SharedFlags,
    *,
    draft_vocab: DraftVocab = 8192,
    draft_steps: Annotated[
        int, typer.Option(help="Steps that a draft is trained for, on its own features.", min=1)
    ] = 4,
    feature_weight: Annotated[float, typer.Option(help="Of the loss on features.")] = 1.0,
    token_weight: Annotated[float, typer.Option(help="Of the loss on tokens.")] = 1.0,
    decay: Decay = 0.8,
    noise: Annotated[float, typer.Option(help="Width of uniform noise on features.")] = 0.0,
    detach: Detach = False,
    first: FirstHead = None,
) -> TrainOptions:
    """Trains an EAGLE head. The same command goes on after a stop."""
    check_within(("noise", noise, 0.0, 1e6), ("decay", decay, 0.0, 1.0))

    from yggc.train.eagle_learner import EagleOptions

    return EagleOptions(
        **shared.fields,
        draft_vocab=draft_vocab,
        num_steps=draft_steps,
        feature_weight=feature_weight,
        token_weight=token_weight,
        decay=decay,
        noise=noise,
        detach=detach,
        first=first,
    )
