"""`yggc train`: what a trained drafter is made with."""

from __future__ import annotations

import typer

from yggc.train_data_cli import data
from yggc.train_depth_cli import depth
from yggc.train_distill_cli import distill
from yggc.train_eagle3_cli import eagle3
from yggc.train_eagle_cli import eagle
from yggc.train_export_cli import export
from yggc.train_medusa_cli import medusa
from yggrt.terminal import ReportingGroup

train = typer.Typer(
    name="train",
    cls=ReportingGroup,
    help="Trains drafters, and what chooses their depth: writes the text that they learn from, "
    "then fits them to it.",
    no_args_is_help=True,
)


@train.callback()
def _train() -> None:
    pass


train.command()(data)
train.command()(eagle)
train.command()(eagle3)
train.command()(medusa)
train.command()(distill)
train.command()(export)
train.command()(depth)
