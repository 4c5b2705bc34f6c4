"""Loads a compiled operator library and tells torch the shapes of its results.

Used at export time only: the runtime loads the library itself and calls it through its graphs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from ygg_kernels.formats import FORMATS

_LIST = "const AtenTensorHandle*, int64_t"
_INTS = "const int64_t*, int64_t"
# Parameters of the C functions by which compiled graphs call an operator (see cpu/ops.cpp).
_C_PARAMETERS = {
    "linear": f"AtenTensorHandle, {_LIST}, {_LIST}, {_INTS}, {_INTS}, int32_t, ...",
    "linear_unbiased": f"AtenTensorHandle, {_LIST}, {_INTS}, {_INTS}, int32_t, ...",
    "tree_attention": ", ".join(["AtenTensorHandle"] * 6)
    + ", double, int64_t, double, AtenTensorHandle*",
    "argmax": "AtenTensorHandle, AtenTensorHandle*",
    "silu_mul": "AtenTensorHandle, AtenTensorHandle, AtenTensorHandle*",
    "materialize": "AtenTensorHandle, AtenTensorHandle*",
}


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
    argmax: Callable[[Tensor], Tensor]
    silu_mul: Callable[[Tensor, Tensor], Tensor]
    materialize: Callable[[Tensor], Tensor]

    def c_shims(self) -> dict[Any, list[str]]:
        """What `torch._inductor.config.aot_inductor.custom_ops_to_c_shims` wants: declarations of
        C functions, by operator.

        Inductor names them without the namespace; the symbols have it, since two libraries may
        be in one process.
        """
        return {
            getattr(self, name): [
                f"AOTITorchError aoti_torch_cpu_{name}({parameters}) "
                f'__asm__("{self.namespace}_{name}")'
            ]
            for name, parameters in _C_PARAMETERS.items()
        }


def load_library(path: Path, namespace: str) -> Operators:
    """Loads the library and registers the shapes of its results, once per process."""
    loaded = getattr(torch.ops, namespace)
    if not hasattr(loaded, "linear"):
        # Not torch.ops.load_library: graphs find C functions only in a library that is global.
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    # Asked apart: a runtime in the same process loads the library and needs no shapes.
    if not _has_shapes(namespace):
        _register_shapes(namespace)
    return Operators(
        namespace=namespace,
        linear=loaded.linear.default,
        linear_unbiased=loaded.linear_unbiased.default,
        embedding=loaded.embedding.default,
        tree_attention=loaded.tree_attention.default,
        kv_write=loaded.kv_write.default,
        kv_commit=loaded.kv_commit.default,
        argmax=loaded.argmax.default,
        silu_mul=loaded.silu_mul.default,
        materialize=loaded.materialize.default,
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

    def linear_unbiased(
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

    def argmax(logits: Tensor) -> Tensor:
        return logits.new_empty(logits.shape[:1], dtype=torch.int64)

    def silu_mul(a: Tensor, b: Tensor) -> Tensor:
        return a.new_empty(a.shape)

    def materialize(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    shapes = (linear, linear_unbiased, embedding, tree_attention, kv_write, kv_commit)
    for shape in (*shapes, argmax, silu_mul, materialize):
        torch.library.register_fake(f"{namespace}::{shape.__name__}", shape)
