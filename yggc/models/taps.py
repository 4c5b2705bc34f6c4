"""What a head reads inside its verifier: the inputs of some of its layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from yggc.errors import SourceError


def watch_layers(
    decoder: nn.Module,
    num_layers: int,
    taps: Sequence[int],
    note: Callable[[int, torch.Tensor], None],
) -> None:
    """From now on `note(i, hidden)` is told what layer `taps[i]` of `decoder` is given,
    [..., hidden size], whenever it runs.

    Raises SourceError for a decoder whose layers are not one list of that length, and when it runs
    for one whose layers are not given hidden states first.
    """
    lists = [one for one in decoder.children() if isinstance(one, nn.ModuleList)]
    lists = [one for one in lists if len(one) == num_layers]
    if len(lists) != 1:
        raise SourceError(
            f"{type(decoder).__name__} has {len(lists)} lists of {num_layers} layers, wanted one: "
            "an EAGLE-3 head reads the inputs of its layers",
            "take an EAGLE-1 head, which reads the last hidden states",
        )

    def watch(place: int, layer: nn.Module) -> None:
        def hook(_layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            hidden = given[0] if given else named.get("hidden_states")
            if not isinstance(hidden, torch.Tensor) or hidden.dim() != 3:
                raise SourceError(
                    f"{type(layer).__name__} is not given hidden states [batch, tokens, size], "
                    "which an EAGLE-3 head reads",
                    "take an EAGLE-1 head, which reads the last hidden states",
                )
            note(place, hidden)

        layer.register_forward_pre_hook(hook, with_kwargs=True)

    for place, number in enumerate(taps):
        watch(place, lists[0][number])
