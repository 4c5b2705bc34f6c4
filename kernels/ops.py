"""Loads a compiled operator library and tells torch the shapes of its results.

Used at export time only: the runtime loads the library itself and calls it through its graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from ygg_kernels.formats import FORMATS


@dataclass(frozen=True, slots=True)
class Operators:
    """The overloads of one loaded library; signatures as in `ygg_kernels.reference`."""

    namespace: str
    linear: Callable[..., list[Tensor]]
    linear_unbiased: Callable[..., list[Tensor]]
    embedding: Callable[..., Tensor]
    tree_attention: Callable[..., Tensor]
    kv_write: Callable[..., None]
    kv_commit: Callable[..., None]


def load_library(path: Path, namespace: str) -> Operators:
    """Loads the library and registers the shapes of its results, once per process."""
    loaded = getattr(torch.ops, namespace)
    if not hasattr(loaded, "linear"):
        torch.ops.load_library(str(path))
    # Asked apart: a runtime in the same process loads the library and needs no shapes.
    if not _has_shapes(namespace):
        _register_shapes(namespace)
    return Operators(
        namespace=namespace,
        linear=loaded.linear.default,
        linear_unbiased=loaded.linear.unbiased,
        embedding=loaded.embedding.default,
        tree_attention=loaded.tree_attention.default,
        kv_write=loaded.kv_write.default,
        kv_commit=loaded.kv_commit.default,
    )


def _has_shapes(namespace: str) -> bool:
    entry = torch._library.simple_registry.singleton.find(f"{namespace}::linear")
    return entry.fake_impl.kernel is not None


def _register_shapes(namespace: str) -> None:
    def linear(
        x: Tensor,
        weights: list[Tensor],
        biases: list[Tensor],
        sizes: list[int],
        formats: list[int],
        integer: bool,
    ) -> list[Tensor]:
        return [x.new_empty((*x.shape[:-1], size)) for size in sizes]

    def unbiased(
        x: Tensor, weights: list[Tensor], sizes: list[int], formats: list[int], integer: bool
    ) -> list[Tensor]:
        return linear(x, weights, [], sizes, formats, integer)

    def embedding(ids: Tensor, weight: Tensor, size: int, format: int) -> Tensor:
        num_k = weight.shape[1] * max(1, FORMATS[format].group)
        return weight.new_empty((*ids.shape, num_k), dtype=torch.float32)

    def tree_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, *rest: Any) -> Tensor:
        # An int8 row ends with the four bytes of its scale.
        size = v_cache.shape[3] - (4 if v_cache.dtype == torch.uint8 else 0)
        return q.new_empty((1, q.shape[2], q.shape[1], size))

    def kv_write(cache: Tensor, rows: Tensor, slots: Tensor) -> None:
        return None

    def kv_commit(caches: list[Tensor], sources: Tensor, targets: Tensor) -> None:
        return None

    for shape in (linear, embedding, tree_attention, kv_write, kv_commit):
        torch.library.register_fake(f"{namespace}::{shape.__name__}", shape)
    torch.library.register_fake(f"{namespace}::linear.unbiased", unbiased)
