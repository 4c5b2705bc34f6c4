"""Compiled graphs over one set of mapped weights: the only module that touches torch's loader.

Knows rows, slots and tensors; knows nothing of text, drafters or acceptance.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from yggrt.core.errors import BundleError, RequestError
from yggrt.core.passes import DraftOutput, PassOutput
from yggrt.core.schema import DRAFTER_KINDS, VERIFIER_KINDS, GraphSpec, ModelInfo
from yggrt.core.tree import TokenTree
from yggrt.graph_inputs import GraphInputs, NumbersBySize
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


def _mask(tree: TokenTree, num_rows: int) -> list[bytes | bytearray]:
    """[num_rows, num_rows] bytes: the ancestors of each of the tree's rows, itself included;
    padding sees itself.
    """
    num = tree.num_nodes
    if tree.parents == tuple(range(-1, num - 1)):
        mask: list[bytes | bytearray] = [
            b"\1" * seen + bytes(num_rows - seen) for seen in range(1, num + 1)
        ]
    else:
        behind = bytes(num_rows - num)
        mask = [bytes(row) + behind for row in tree.ancestor_mask()]
    return mask + [_seeing([row], num_rows) for row in range(num, num_rows)]


def _seeing(rows: Sequence[int], num_columns: int) -> bytearray:
    """A row of a mask in which these tree rows are seen."""
    mask = bytearray(num_columns)
    for row in rows:
        mask[row] = 1
    return mask


def _first(rows: torch.Tensor, num: int) -> torch.Tensor:
    return rows if len(rows) == num else rows[:num]


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
        # By how many rows they have, of which a dynamic graph takes several numbers.
        self._inputs: dict[int, GraphInputs] = {}

    @property
    def feature_size(self) -> int:
        """Values of the feature that a head reads beside each token; 0 for other graphs."""
        return next((one.shape[-1] for one in self.spec.inputs if one.name == "features"), 0)

    def padded_rows(self, num_rows: int) -> int:
        """Rows that a call for `num_rows` rows computes."""
        return max(num_rows, self.spec.min_rows)

    @property
    def num_columns(self) -> int:
        """Tree rows that a row of a static graph may see."""
        return self.spec.inputs[4].shape[1]

    def run(
        self,
        cache: KvCache,
        tree: TokenTree,
        length: int,
        row: int | None = None,
        features: Iterable[torch.Tensor] = (),
    ) -> list[torch.Tensor]:
        """ids, logits, hidden, hazards as tensors, padding rows included."""
        rows = self.padded_rows(tree.num_nodes)
        positions = [length + depth for depth in tree.depths]
        slots = range(length, length + rows)
        mask = _mask(tree, rows)
        return self._call(cache, tree.tokens, positions, slots, length, mask, row, features)

    def run_nodes(
        self,
        cache: KvCache,
        tokens: Sequence[int],
        paths: Sequence[Sequence[int]],
        length: int,
        features: Iterable[torch.Tensor] = (),
    ) -> list[torch.Tensor]:
        """As `run`, for nodes of a tree whose other rows are in the cache already (see
        `DraftGraphs.draft`); padding goes to the slots behind the tree's.
        """
        rows, columns = self.spec.max_rows, self.num_columns
        if rows == 1:
            # Its mask has no room for ancestors, but those of a chain are as good as a prefix.
            length, paths = length + paths[0][-1], [(0,)]
        num_padding = rows - len(paths)
        mask: list[bytes | bytearray] = [_seeing(path, columns) for path in paths]
        # What a padding row sees is nobody's concern, as long as it is something.
        mask += [_seeing((0,), columns)] * num_padding
        slots = [length + path[-1] for path in paths]
        slots += range(length + columns, length + columns + num_padding)
        positions = [length + len(path) - 1 for path in paths]
        return self._call(cache, tokens, positions, slots, length, mask, None, features)

    def _call(
        self,
        cache: KvCache,
        tokens: Sequence[int],
        positions: Sequence[int],
        slots: Sequence[int],
        length: int,
        mask: Sequence[bytes | bytearray],
        row: int | None,
        features: Iterable[torch.Tensor],
    ) -> list[torch.Tensor]:
        """The graph on rows that are padded in `slots` and `mask` already."""
        rows = len(slots)
        inputs = self._inputs.get(rows)
        if inputs is None:
            inputs = self._inputs[rows] = GraphInputs(rows, len(mask[0]), self.feature_size)
        last, num_padding = cache.max_model_len - 1, rows - len(tokens)
        given = inputs.set(
            [*tokens, *[0] * num_padding],
            [min(position, last) for position in positions] + [last] * num_padding,
            slots,
            length,
            mask,
            row,
            features,
        )
        outputs: list[torch.Tensor] = self._loader.run([*given, *cache.tensors])
        return outputs


Part = tuple[GraphSpec, Path, dict[str, torch.Tensor]]


class _ModelGraphs:
    """What the graphs of both models share: loaded passes by kind, caches, prefill."""

    def __init__(self, model: ModelInfo, graphs: Sequence[Part], operators: Any) -> None:
        self.model = model
        self.operators = operators
        passes = [
            CompiledPass(spec, directory, constants) for spec, directory, constants in graphs
        ]
        passes.sort(key=lambda one: one.spec.max_rows)
        self._sources, self._targets = NumbersBySize(), NumbersBySize()
        self._trees = [one for one in passes if one.spec.kind in ("verify", "draft")]
        self._prefill = [one for one in passes if one.spec.kind in ("prefill", "draft_prefill")]

    @property
    def prefill_buckets(self) -> tuple[int, ...]:
        return tuple(one.spec.max_rows for one in self._prefill)

    @property
    def max_model_len(self) -> int:
        return self.model.max_model_len

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all graphs, smallest first."""
        return tuple(one.spec.name for one in (*self._trees, *self._prefill))

    @property
    def top_shares(self) -> Callable[..., Any] | None:
        found: Callable[..., Any] | None = getattr(self.operators, "top_shares", None)
        return found

    def new_cache(self) -> KvCache:
        return KvCache(self.model)

    def prefill(
        self,
        cache: Any,
        tokens: Sequence[int],
        length: int,
        features: Iterable[torch.Tensor] = (),
    ) -> PassOutput:
        num = len(tokens)
        chain = TokenTree(tuple(tokens), tuple(range(-1, num - 1)), (1.0,) * num)
        compiled = next(one for one in self._prefill if one.spec.max_rows >= num)
        ids, logits, hidden, hazards = compiled.run(cache, chain, length, num - 1, features)
        return PassOutput(ids.tolist(), logits, _first(hidden, num), hazards)

    def move(self, cache: Any, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Moves rows of the caches between slots; every load before any store."""
        moves = [pair for pair in zip(sources, targets, strict=True) if pair[0] != pair[1]]
        if moves:
            loads, stores = zip(*moves, strict=True)
            self.operators.kv_commit(
                cache.tensors, self._sources.set(loads), self._targets.set(stores)
            )


class AotGraphs(_ModelGraphs):
    """The verifier's graphs (see `yggrt.core.passes.Graphs`). One decoding thread; a cache per
    sequence.

    `graphs` gives, per graph, its folder and tensors by the graph's own names. `operators` is the
    loaded operator namespace.
    """

    def __init__(self, model: ModelInfo, graphs: Sequence[Part], operators: Any) -> None:
        super().__init__(model, graphs, operators)
        specs = [one.spec for one in self._trees]
        self._row_counts = tuple(
            sorted({n for spec in specs for n in range(spec.min_rows, spec.max_rows + 1)})
        )

    @classmethod
    def from_bundle(cls, bundle: Bundle, unpacked: Path) -> AotGraphs:
        """Loads operators and the verifier's graphs from `unpacked`, weights mapped from the
        bundle.
        """
        return cls(bundle.manifest.model, *_load_parts(bundle, unpacked, VERIFIER_KINDS))

    @property
    def row_counts(self) -> tuple[int, ...]:
        return self._row_counts

    def verify(self, cache: Any, tree: TokenTree, length: int) -> PassOutput:
        num = tree.num_nodes
        compiled = next((one for one in self._trees if one.spec.max_rows >= num), None)
        if compiled is None:
            raise RequestError(
                f"a tree of {num} rows, the largest verify graph holds {self._row_counts[-1]}",
                "choose a smaller `verify` in --tree, or build with a larger bucket",
            )
        ids, logits, hidden, hazards = compiled.run(cache, tree, length)
        return PassOutput(
            ids.tolist()[:num], _first(logits, num), _first(hidden, num), _first(hazards, num)
        )

    def commit(self, cache: Any, length: int, path: Sequence[int]) -> None:
        self.move(
            cache, [length + row for row in path], [length + 1 + i for i in range(len(path))]
        )


class AotDraftGraphs(_ModelGraphs):
    """The graphs of a model that drafts (see `yggrt.core.passes.DraftGraphs`)."""

    @classmethod
    def from_bundle(cls, bundle: Bundle, unpacked: Path) -> AotDraftGraphs:
        """As for AotGraphs; the bundle has a drafter of its own."""
        model = bundle.manifest.drafter
        assert model is not None
        return cls(model, *_load_parts(bundle, unpacked, DRAFTER_KINDS))

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(one.spec.max_rows for one in self._trees)

    @property
    def max_expanded(self) -> int:
        return self._trees[-1].num_columns

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def feature_size(self) -> int:
        return self._trees[0].feature_size

    def draft(
        self,
        cache: Any,
        tokens: Sequence[int],
        paths: Sequence[Sequence[int]],
        length: int,
        features: Iterable[torch.Tensor] = (),
    ) -> DraftOutput:
        num = len(tokens)
        # The graph of one row is for nodes whose path is the tree's first rows.
        is_chain = num == 1 and len(paths[0]) == paths[0][-1] + 1
        compiled = next(
            one
            for one in self._trees
            if one.spec.max_rows >= num and (one.spec.max_rows > 1 or is_chain)
        )
        _, logits, hidden, _ = compiled.run_nodes(cache, tokens, paths, length, features)
        return DraftOutput(_first(logits, num), _first(hidden, num))


def _load_parts(bundle: Bundle, unpacked: Path, kinds: Collection[str]) -> tuple[list[Part], Any]:
    """The graphs of these kinds with their tensors, and the loaded operators."""
    manifest = bundle.manifest
    operators = getattr(torch.ops, manifest.operator_namespace)
    # A second library with the namespace of a first would end the process; the name is a
    # digest of the code, so the first is as good.
    if not hasattr(operators, "kv_commit"):
        load_operators(unpacked / manifest.operators)
    parts = [
        (
            spec,
            # torch's loader wants the folder above its own `data/aotinductor/model/`.
            (unpacked / spec.library).parents[3],
            {fqn: bundle.weight(name) for fqn, name in spec.constants.items()},
        )
        for spec in manifest.graphs
        if spec.kind in kinds
    ]
    return parts, operators
