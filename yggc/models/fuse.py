"""Passes over an exported graph: join products that share an input, hand elementwise work to
operators where the compiler would do it again and again or on one thread, and refuse products
outside our operators.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from ygg_kernels.ops import Operators

from yggc.errors import SourceError

# aten products whose accumulation order over the contracted dimension depends on the number of
# rows.
_PRODUCTS = frozenset(
    {
        "aten::addmm",
        "aten::baddbmm",
        "aten::bmm",
        "aten::einsum",
        "aten::linear",
        "aten::matmul",
        "aten::mm",
        "aten::_grouped_mm",
        "aten::scaled_dot_product_attention",
        "aten::layer_norm",
        "aten::native_layer_norm",
    }
)


def _contracted_size(node: Node) -> int:
    left = node.args[0]
    value = left.meta.get("val") if isinstance(left, Node) else None
    return int(value.shape[-1]) if isinstance(value, torch.Tensor) and value.dim() else 0


def refuse_foreign_products(program: ExportedProgram) -> None:
    """Raises SourceError if a row's bits could depend on how many rows the call has (a contraction
    over 1 cannot).
    """
    for node in program.graph.nodes:
        if node.op != "call_function" or not hasattr(node.target, "_schema"):
            continue
        name = node.target._schema.name
        if name in _PRODUCTS and _contracted_size(node) != 1:
            raise SourceError(
                f"the model computes {name} outside its linear layers (at '{node.name}')",
                "its result would depend on the number of rows; this architecture is not covered",
            )


def gate_by_operator(program: ExportedProgram, operators: Operators) -> int:
    """Replaces silu(a) * b, of a's shape, by one operator, which all threads share; returns how
    many.

    The operator rounds otherwise than the compiler, so whether it is taken may not depend on the
    number of rows: neither on how tensors lie nor on whether b happens to have as many rows as a.
    """
    graph = program.graph
    count = 0
    for node in list(graph.nodes):
        if node.target is not torch.ops.aten.mul.Tensor:
            continue
        left, right = node.args
        if not isinstance(left, Node) or not isinstance(right, Node) or left is right:
            continue
        swapped = left.target is not torch.ops.aten.silu.default
        gate, other = (right, left) if swapped else (left, right)
        if gate.target is not torch.ops.aten.silu.default or len(gate.users) > 1:
            continue
        [source] = gate.args
        assert isinstance(source, Node)
        values = [one.meta["val"] for one in (source, other, node)]
        if any(value.dtype != torch.float32 for value in values):
            continue
        if values[2].shape != values[0].shape:
            continue
        with graph.inserting_before(node):
            gated = graph.call_function(operators.silu_mul, (source, other))
        gated.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(gated)
        graph.erase_node(node)
        graph.erase_node(gate)
        count += 1
    graph.lint()
    program.graph_module.recompile()
    return count


def compute_angles_once(program: ExportedProgram, operators: Operators) -> int:
    """Makes the sines and cosines of positions results in memory; returns how many.

    Inductor computes elementwise functions anew wherever they are read, and every layer's queries
    and keys read these.
    """
    graph = program.graph
    functions = (torch.ops.aten.cos.default, torch.ops.aten.sin.default)
    nodes = [node for node in graph.nodes if node.target in functions]
    for node in nodes:
        with graph.inserting_after(node):
            kept = graph.call_function(operators.materialize, (node,))
        kept.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(kept, delete_user_cb=lambda user, kept=kept: user is not kept)
    graph.lint()
    program.graph_module.recompile()
    return len(nodes)


def join_linears(program: ExportedProgram, operators: Operators) -> int:
    """Replaces single products of one input (q/k/v, gate/up) by one call; returns how many calls
    it saved.
    """
    graph = program.graph
    groups: dict[tuple[Any, Any, bool], list[Any]] = {}
    for node in graph.nodes:
        if node.target in (operators.linear, operators.linear_unbiased):
            groups.setdefault((node.args[0], node.target, node.args[-1]), []).append(node)
    saved = 0
    for (source, target, integer), nodes in groups.items():
        if len(nodes) == 1:
            continue
        saved += len(nodes) - 1
        lists = [
            [item for node in nodes for item in node.args[i]]
            for i in range(1, len(nodes[0].args) - 1)
        ]
        # Weights are inputs of the graph, so the first product's place is late enough for all.
        with graph.inserting_before(nodes[0]):
            joined = graph.call_function(target, (source, *lists, integer))
            joined.meta["val"] = [value for node in nodes for value in node.meta["val"]]
            outputs = [
                graph.call_function(operator.getitem, (joined, i)) for i in range(len(nodes))
            ]
        for node, output in zip(nodes, outputs, strict=True):
            output.meta["val"] = node.meta["val"][0]
            for user in list(node.users):
                user.replace_all_uses_with(output)
                graph.erase_node(user)
            graph.erase_node(node)
    graph.lint()
    program.graph_module.recompile()
    return saved
