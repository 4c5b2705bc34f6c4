"""Compiled graphs over one set of mapped weights: the only module that touches torch's loader.

Knows rows, slots and tensors; knows nothing of text, drafters or acceptance.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from yggrt.core.errors import BundleError, RequestError
from yggrt.core.passes import PassOutput
from yggrt.core.schema import GraphSpec, ModelInfo
from yggrt.core.tree import TokenTree
from yggrt.kv import KvCache

if TYPE_CHECKING:
    from yggrt.bundle import Bundle


def open_loader(directory: Path) -> Any:
    """torch's loader on the folder of an unpacked graph; starts no compiler.

    The stock `aoti_load_package` compiles a C++ probe at load and parses its specs at every call.
    """
    return torch._C._aoti.AOTIModelPackageLoader(str(directory), "model", True, 1, -1)


def load_operators(path: Path) -> None:
    """Loads an operator library into the process, its C functions where graphs find them."""
    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def _mask(tree: TokenTree) -> torch.Tensor:
    """[num_nodes, num_nodes] bool: the ancestors of each row, itself included."""
    num = tree.num_nodes
    if tree.parents == tuple(range(-1, num - 1)):
        return torch.ones(num, num, dtype=torch.bool).tril()
    return torch.tensor(tree.ancestor_mask())


class CompiledPass:
    """One compiled graph, its weights bound; rows beyond a tree's own are padding that nobody
    sees.
    """

    def __init__(
        self, spec: GraphSpec, directory: Path, constants: dict[str, torch.Tensor]
    ) -> None:
        self.spec = spec
        self._loader = open_loader(directory)
        wanted = set(self._loader.get_constant_fqns())
        if wanted != set(constants):
            missing = sorted(wanted ^ set(constants))[0]
            raise BundleError(
                f"graph '{spec.name}' and the weight table disagree about constant '{missing}'",
                "the bundle is damaged; build it again",
            )
        # use_inactive, check_full_update, user_managed: pointers are stored, nothing is copied,
        # nothing is checked.
        self._loader.load_constants(constants, False, True, True)

    def padded_rows(self, num_rows: int) -> int:
        """Rows that a call for `num_rows` rows computes."""
        return max(num_rows, self.spec.min_rows)

    def run(
        self,
        cache: KvCache,
        tree: TokenTree,
        length: int,
        row: int | None = None,
    ) -> list[torch.Tensor]:
        """ids, logits, hidden, hazards as tensors, padding rows included."""
        num = tree.num_nodes
        rows = self.padded_rows(num)
        padding = rows - num
        tokens = torch.tensor([*tree.tokens, *[0] * padding])
        last = cache.max_model_len - 1
        positions = torch.tensor([min(length + d, last) for d in tree.depths] + [last] * padding)
        slots = torch.arange(length, length + rows)
        mask = torch.eye(rows, dtype=torch.bool)
        mask[:num, :num] = _mask(tree)
        inputs = [tokens, positions, slots, torch.tensor([length]), mask]
        if row is not None:
            inputs.append(torch.tensor([row]))
        outputs: list[torch.Tensor] = self._loader.run([*inputs, *cache.tensors])
        return outputs


class AotGraphs:
    """The graphs of one bundle (see `yggrt.core.passes.Graphs`). One decoding thread; a cache per
    sequence.

    `constants` gives, per graph, the tensors by the graph's own names. `operators` is the loaded
    operator namespace.
    """

    def __init__(
        self,
        model: ModelInfo,
        graphs: Sequence[tuple[GraphSpec, Path, dict[str, torch.Tensor]]],
        operators: Any,
    ) -> None:
        self.model = model
        self._operators = operators
        passes = [
            CompiledPass(spec, directory, constants) for spec, directory, constants in graphs
        ]
        self._verify = sorted(
            (one for one in passes if one.spec.kind == "verify"), key=lambda one: one.spec.max_rows
        )
        self._prefill = sorted(
            (one for one in passes if one.spec.kind == "prefill"),
            key=lambda one: one.spec.max_rows,
        )
        self._row_counts = tuple(
            sorted(
                {
                    n
                    for one in self._verify
                    for n in range(one.spec.min_rows, one.spec.max_rows + 1)
                }
            )
        )

    @classmethod
    def from_bundle(cls, bundle: Bundle, unpacked: Path) -> AotGraphs:
        """Loads operators and graphs from `unpacked`, weights mapped from the bundle."""
        manifest = bundle.manifest
        operators = getattr(torch.ops, manifest.operator_namespace)
        # A second library with the namespace of a first would end the process; the name is a
        # digest of the code, so the first is as good.
        if not hasattr(operators, "kv_commit"):
            load_operators(unpacked / manifest.operators)
        graphs = [
            (
                spec,
                # torch's loader wants the folder above its own `data/aotinductor/model/`.
                (unpacked / spec.library).parents[3],
                {fqn: bundle.weight(name) for fqn, name in spec.constants.items()},
            )
            for spec in manifest.graphs
        ]
        return cls(manifest.model, graphs, operators)

    @property
    def row_counts(self) -> tuple[int, ...]:
        return self._row_counts

    @property
    def prefill_buckets(self) -> tuple[int, ...]:
        return tuple(one.spec.max_rows for one in self._prefill)

    @property
    def max_model_len(self) -> int:
        return self.model.max_model_len

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all graphs, smallest first."""
        return tuple(one.spec.name for one in (*self._verify, *self._prefill))

    def new_cache(self) -> KvCache:
        return KvCache(self.model)

    def verify(self, cache: Any, tree: TokenTree, length: int) -> PassOutput:
        num = tree.num_nodes
        compiled = next((one for one in self._verify if one.spec.max_rows >= num), None)
        if compiled is None:
            raise RequestError(
                f"a tree of {num} rows, the largest verify graph holds {self._row_counts[-1]}",
                "choose a smaller `verify` in --tree, or build with a larger bucket",
            )
        ids, logits, hidden, hazards = compiled.run(cache, tree, length)
        return PassOutput(ids[:num].tolist(), logits[:num], hidden[:num], hazards[:num])

    def prefill(self, cache: Any, tokens: Sequence[int], length: int) -> PassOutput:
        num = len(tokens)
        chain = TokenTree(tuple(tokens), tuple(range(-1, num - 1)), (1.0,) * num)
        compiled = next(one for one in self._prefill if one.spec.max_rows >= num)
        ids, logits, hidden, hazards = compiled.run(cache, chain, length, row=num - 1)
        return PassOutput(ids.tolist(), logits, hidden[num - 1 : num], hazards)

    def commit(self, cache: Any, length: int, path: Sequence[int]) -> None:
        moves = [(length + row, length + 1 + i) for i, row in enumerate(path)]
        moves = [(source, target) for source, target in moves if source != target]
        if moves:
            sources, targets = zip(*moves, strict=True)
            self._operators.kv_commit(cache.tensors, torch.tensor(sources), torch.tensor(targets))
