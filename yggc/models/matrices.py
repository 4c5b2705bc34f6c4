"""Which parameters of a model are matrices that the operators read, and how they are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D


@dataclass(frozen=True, slots=True)
class Matrix:
    """A product or lookup [num_outputs, num_inputs]; `transposed` if the model has it the other
    way round, `is_vocabulary` for the embedding and the output head.
    """

    num_outputs: int
    num_inputs: int
    transposed: bool = False
    is_vocabulary: bool = False


def find_matrices(model: Any) -> dict[str, Matrix]:
    """All matrices of a transformers model by parameter name, tied ones under each of their
    names.
    """
    lookup, head = model.get_input_embeddings(), model.get_output_embeddings()
    matrices = {}
    for name, module in model.named_modules():
        if module is lookup or isinstance(module, nn.Linear | Conv1D):
            transposed = isinstance(module, Conv1D)
            num_outputs, num_inputs = module.weight.shape[:: -1 if transposed else 1]
            vocabulary = module is lookup or module is head
            matrices[f"{name}.weight"] = Matrix(num_outputs, num_inputs, transposed, vocabulary)
    return matrices


def tied_names(model: nn.Module) -> dict[str, str]:
    """Alias -> owner for parameters that share one tensor."""
    owners: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owner = owners.setdefault(id(parameter), name)
        if owner != name:
            tied[name] = owner
    return tied
