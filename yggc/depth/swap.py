"""The predictor's constants in a bundle: what they are packed as, and other ones in their place.

Graphs read constants where they lie, so values that are written there count from the next pass on;
nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from yggc.depth.hazards import Predictor
from yggc.models.packing import pack_matrix
from yggrt.bundle import Bundle
from yggrt.core.errors import BundleError

PREFIX = "predictor."
_NAMES = ("encode.weight", "encode.bias", "decode.weight", "decode.bias")


def packed_constants(predictor: Predictor) -> dict[str, torch.Tensor]:
    """By their names in the weight table."""
    matrices = (predictor.encode_weight, predictor.decode_weight)
    encode, decode = (pack_matrix(one, torch.float32) for one in matrices)
    values = (encode, predictor.encode_bias, decode, predictor.decode_bias)
    return {
        f"{PREFIX}{name}": value.contiguous() for name, value in zip(_NAMES, values, strict=True)
    }


@dataclass(frozen=True, slots=True)
class Swap:
    """Writes a predictor's constants over those of an open bundle's loaded graphs, in memory."""

    constants: dict[str, torch.Tensor]

    @property
    def num_units(self) -> int:
        return len(self.constants[f"{PREFIX}encode.bias"])

    @property
    def num_heads(self) -> int:
        return len(self.constants[f"{PREFIX}decode.bias"])

    def __call__(self, predictor: Predictor) -> None:
        for name, value in packed_constants(predictor).items():
            self.constants[name].copy_(value)


@contextmanager
def swap_constants(bundle: Bundle) -> Iterator[Swap]:
    """While entered, what is given is what the graphs compute hazards with; then what was before.

    Raises BundleError for a bundle whose graphs have no predictor.
    """
    names = [f"{PREFIX}{name}" for name in _NAMES]
    for name in names:
        if name not in bundle.manifest.weights:
            raise BundleError(
                f"{bundle.path}: no weight {name!r}, wanted a verifier with a depth predictor",
                "build it again",
            )
    constants = {name: bundle.weight(name) for name in names}
    before = {name: value.clone() for name, value in constants.items()}
    try:
        yield Swap(constants)
    finally:
        for name, value in before.items():
            constants[name].copy_(value)
