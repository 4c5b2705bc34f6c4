"""A checkpoint as transformers' model, in the arithmetic that the machine is fastest in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM
from transformers.initialization import no_init_weights

from yggc.models.adapt import refuse_inexact
from yggc.models.checkpoint import Checkpoint, check_state, empty_model
from yggc.models.drafter import chosen_layers
from yggc.train.slots import ATTENTION, register_attention


class _FloatHead(nn.Module):
    """The output matrix with logits in float32: in bfloat16 the likeliest tokens often tie."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(head.weight.float(), requires_grad=False)
        self.bias = None if head.bias is None else nn.Parameter(head.bias.float(), False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x.float(), self.weight, self.bias)


@contextmanager
def fast_products(dtype: str) -> Iterator[None]:
    """While entered, float32 products of a bfloat16 engine are of numbers rounded to bfloat16,
    which its head's are already. For the whole process, which is why it ends.
    """
    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    if dtype == "bfloat16":
        matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def read_model(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    layers: Sequence[int] | None = None,
    **options: Any,
) -> Any:
    """transformers' model with the checkpoint's weights in `dtype`, of these layers alone if they
    are named; `options` as `from_config` takes them. Gives back the memory of what was read.
    """
    config, sources = checkpoint.config, {name: name for name in checkpoint.tensor_names}
    if layers is not None:
        config = chosen_layers(config, layers)
        named = {name: _in_layer(name, layers) for name in empty_model(config).state_dict()}
        sources = {name: source for name, source in named.items() if source in sources}
        # Layers of another kind have other tensors.
        shapes = {name: checkpoint.shape(source) for name, source in sources.items()}
        check_state(
            f"{checkpoint.source.location}, layers {[*layers]}", empty_model(config), shapes
        )
    with no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, **options)
    state = {name: checkpoint.read(source).to(dtype) for name, source in sources.items()}
    # What is missing is tied to what is there.
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    checkpoint.release()
    return model.eval()


def _in_layer(name: str, layers: Sequence[int]) -> str:
    """The name of a parameter of layer i as that of layer layers[i]: the first number in it."""
    parts = name.split(".")
    at = next((index for index, part in enumerate(parts) if part.isdecimal()), None)
    if at is not None:
        parts[at] = str(layers[int(parts[at])])
    return ".".join(parts)


def load_model(checkpoint: Checkpoint, dtype: str, device: str) -> Any:
    """transformers' model with the checkpoint's weights in float32 or bfloat16, for an Engine."""
    refuse_inexact(checkpoint.config)
    register_attention()
    model = read_model(checkpoint, getattr(torch, dtype), attn_implementation=ATTENTION)
    if dtype == "bfloat16":
        model.set_output_embeddings(_FloatHead(model.get_output_embeddings()))
    return model.to(device)


def best_dtype(device: str) -> str:
    """bfloat16 where the machine multiplies it faster than float32: without instructions for it
    oneDNN is slower.
    """
    if device == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    return "bfloat16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "float32"
