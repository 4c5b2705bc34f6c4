"""What the passes over an exported graph replace and what they leave alone."""

from __future__ import annotations

from collections.abc import Callable

import bundles
import pytest
import torch
from torch import Tensor, nn
from ygg_kernels.build import build_library
from ygg_kernels.ops import Operators, load_library

from yggc.models.fuse import compute_angles_once, gate_by_operator


@pytest.fixture(scope="module")
def operators() -> Operators:
    library = build_library(bundles.WORK / "operators")
    return load_library(library.path, library.namespace)


class Called(nn.Module):
    def __init__(self, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.call(*inputs)


def exported(call: Callable[..., Tensor], *inputs: Tensor) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(Called(call), inputs, strict=False)


def twice(a: Tensor, b: Tensor) -> Tensor:
    gate = nn.functional.silu(a)
    return gate * b + gate


def squared(a: Tensor, b: Tensor) -> Tensor:
    gate = nn.functional.silu(a)
    return gate * gate + b


def halves(a: Tensor, b: Tensor) -> Tensor:
    gate, up = a.chunk(2, dim=-1)
    return nn.functional.silu(gate) * up + b[..., :8]


@pytest.mark.parametrize(
    ("call", "replaced"),
    [
        (lambda a, b: nn.functional.silu(a) * b, 1),
        (lambda a, b: b * nn.functional.silu(a), 1),
        (lambda a, b: nn.functional.silu(a) * b[:1], 1),
        (lambda a, b: nn.functional.silu(a[:1]) * b, 0),
        (lambda a, b: nn.functional.silu(a) * 2.0 + b, 0),
        (twice, 0),
        (squared, 0),
        # Halves of one matrix do not lie densely.
        (halves, 1),
    ],
)
def test_gates(operators: Operators, call: Callable[..., Tensor], replaced: int) -> None:
    inputs = torch.randn(3, 16), torch.randn(3, 16)
    program = exported(call, *inputs)
    assert gate_by_operator(program, operators) == replaced
    assert torch.allclose(program.module()(*inputs), call(*inputs), rtol=1e-6, atol=1e-7)


def test_angles_are_computed_once(operators: Operators) -> None:
    def call(x: Tensor) -> Tensor:
        cos, sin = x.cos(), x.sin()
        return x * cos + sin + (x + 1) * cos * sin

    x = torch.randn(4, 8)
    program = exported(call, x)
    assert compute_angles_once(program, operators) == 2
    kept = [node for node in program.graph.nodes if node.target is operators.materialize]
    assert sorted(len(node.users) for node in kept) == [2, 2]
    assert torch.equal(program.module()(x), call(x))


@pytest.mark.parametrize("num_rows", [1, 2, 5])
def test_what_is_replaced_does_not_depend_on_rows(operators: Operators, num_rows: int) -> None:
    """A half of one row lies densely, one of several rows does not; the bits must be the same."""
    torch.manual_seed(0)
    a, b = torch.randn(1, 5, 16), torch.randn(1, 5, 16)
    program = exported(halves, a[:, :num_rows], b[:, :num_rows])
    assert gate_by_operator(program, operators) == 1
    found = program.module()(a[:, :num_rows], b[:, :num_rows])
    gate, up = a.chunk(2, dim=-1)
    wanted = operators.silu_mul(gate, up) + b[..., :8]
    assert torch.equal(found, wanted[:, :num_rows])
