"""Packed weights of an adapted model: made tensor by tensor from a checkpoint, kept in one file
beside their table.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path

import torch

from yggc.errors import SourceError
from yggc.models.adapt import Adapted
from yggc.models.blocks import Bytes, pack_blocks, quantise
from yggc.models.packing import pack_matrix
from yggrt.core.formats import FORMATS
from yggrt.core.schema import WeightSpec
from yggrt.safetensors_layout import ALIGNMENT
from yggrt.weights import tensor_chunks


def packed_tensors(
    adapted: Adapted,
    read: Callable[[str], torch.Tensor],
    weight_dtype: str,
    read_blocks: Callable[[str], Bytes] | None = None,
    skip: Container[str] = (),
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (name, tensor) for every parameter not in `skip`: matrices packed in their formats,
    the rest float32.

    Quantised matrices take the blocks [N, bytes] that `read_blocks` gives; without it the values
    that `read` gives are rounded to nearest. With a `weight_dtype` of bfloat16 all values that are
    not quantised are rounded to it, so that the reference is the rounded model in float32. Raises
    SourceError for a tensor of another shape than the model's.
    """
    dtype: torch.dtype = getattr(torch, weight_dtype)
    for name, parameter in adapted.model.named_parameters():
        if name in skip:
            continue
        form = adapted.formats.get(name)
        if form is not None and FORMATS[form].is_quantised and read_blocks is not None:
            tensor = pack_blocks(read_blocks(name), form, name)
        elif form is not None:
            tensor = read(name)
            tensor = tensor.t() if adapted.matrices[name].transposed else tensor
            if FORMATS[form].is_quantised:
                tensor = pack_blocks(quantise(tensor, form), form, name)
            else:
                tensor = pack_matrix(tensor, dtype)
        else:
            tensor = read(name)
            tensor = tensor.to(dtype).to(torch.float32).contiguous()
        if tensor.shape != parameter.shape:
            raise SourceError(
                f"tensor '{name}' has shape {list(tensor.shape)} once packed, the model wants "
                f"{list(parameter.shape)}",
                "the checkpoint does not belong to its configuration",
            )
        yield name, tensor
    for name, parameter in adapted.predictor.named_parameters():
        if f"predictor.{name}" not in skip:
            yield f"predictor.{name}", torch.zeros(parameter.shape)


def weight_name(adapted_tied: dict[str, str], constant: str) -> str:
    """Name in the weight table of a graph's constant: the model's own name, or that of the tensor
    it shares.
    """
    name = constant.removeprefix("verifier.")
    return adapted_tied.get(name, name)


def write_weight_file(
    path: Path, tensors: Iterable[tuple[str, torch.Tensor]], on_tensor: Callable[[int], None]
) -> dict[str, WeightSpec]:
    """Writes tensors one after another, each on a 64-byte boundary, and returns where they lie.

    `on_tensor` is told the bytes of each as it is written. Holds one tensor at a time.
    """
    table: dict[str, WeightSpec] = {}
    with path.open("wb") as file:
        for name, tensor in tensors:
            file.write(b"\0" * (-file.tell() % ALIGNMENT))
            table[name] = WeightSpec(
                dtype=str(tensor.dtype).removeprefix("torch."),  # type: ignore[arg-type]
                shape=tuple(tensor.shape),
                offset=file.tell(),
            )
            for chunk in tensor_chunks(tensor):
                file.write(chunk)
            on_tensor(table[name].num_bytes)
    return table
