"""An iteration as compilers and loaders take it: tensors in, tensors out, in one row each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from yggrt.core.device.iteration import Iteration


def flat(values: Any) -> list[Tensor]:
    """The tensors of an iteration's arguments or results in their order, nothing for None."""
    return [leaf for leaf in pytree.tree_leaves(values) if leaf is not None]


class FlatIteration(torch.nn.Module):
    """The program over `flat(arguments)`, which gives `flat(results)`. `arguments`: those of one
    call, of which what is None stays None."""

    def __init__(self, program: Iteration, arguments: tuple[Any, ...]) -> None:
        super().__init__()
        self.program = program
        leaves, self._structure = pytree.tree_flatten(arguments)
        self._given = [leaf is not None for leaf in leaves]

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        rest = iter(tensors)
        leaves = [next(rest) if given else None for given in self._given]
        return flat(self.program(*pytree.tree_unflatten(leaves, self._structure)))
