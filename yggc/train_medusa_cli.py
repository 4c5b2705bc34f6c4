"""`yggc train medusa`: Medusa heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from yggc.heads import MAX_BLOCKS, MAX_HEADS
from yggc.train_command import SharedFlags, check_within, training_command
from yggc.train_flags import Decay, DraftVocab, FirstHead

if TYPE_CHECKING:
    from yggc.train.run import TrainOptions


@training_command(learning_rate=1e-3)
def medusa(
    shared: SharedFlags,
    *,
    draft_vocab: DraftVocab = 8192,
    heads: Annotated[
        int,
        typer.Option(
            help="Tokens that are guessed beyond the verifier's own.", min=1, max=MAX_HEADS
        ),
    ] = 4,
    blocks: Annotated[
        int, typer.Option(help="Residual blocks of a head.", min=0, max=MAX_BLOCKS)
    ] = 1,
    decay: Decay = 0.8,
    first: FirstHead = None,
) -> TrainOptions:
    """Trains Medusa heads. The same command goes on after a stop."""
    check_within(("decay", decay, 0.0, 1.0))

    from yggc.train.medusa_learner import MedusaOptions

    return MedusaOptions(
        **shared.fields,
        draft_vocab=draft_vocab,
        num_steps=heads,
        num_blocks=blocks,
        decay=decay,
        first=first,
    )
