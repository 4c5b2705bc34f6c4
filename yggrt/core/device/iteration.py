"""One whole iteration as one program, for each (width, depth, rows) that a target freezes.

Stages and their order are the engine's. A language model drafts; what stays on the host is
what happens between iterations: the gate's trust, the end of the text, and a second drafter, which
such iterations do without. A pass without a tree is the verify graph of one row; after it the
drafter's rows are brought up to the context stage by stage before the next iteration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from yggrt.core.device.acceptance import Accept, drawn, emitted
from yggrt.core.device.children import Calibration, TopK, children
from yggrt.core.device.choice import (
    DepthCosts,
    RowCosts,
    block_of,
    choose_depth,
    choose_num_rows,
)
from yggrt.core.device.committing import Context, KvCommit, following, moves
from yggrt.core.device.frontier import Drafted, Frontier, clip_depth, grow
from yggrt.core.device.noise import Draw
from yggrt.core.device.passes import Forward, head_inputs, step_inputs, verify_inputs
from yggrt.core.device.pruning import prune


@dataclass(frozen=True, slots=True)
class IterationShape:
    """What is frozen. width, depth, children, frontier: of the equal-growth tree; rows: of the
    verify pass. max_model_len, draft_len: contexts of verifier and drafter. context_block:
    lengths that share a row of the cost tables. Raises ValueError for a tree without nodes.
    """

    width: int
    depth: int
    children: int
    rows: int
    max_model_len: int
    draft_len: int
    frontier: Frontier = "global"
    context_block: int = 64

    def __post_init__(self) -> None:
        sizes = (self.width, self.depth, self.children, self.rows - 1)
        if min(sizes) < 1:
            raise ValueError(f"{self} has no drafted row to verify")

    @property
    def num_run(self) -> int:
        """Rows of the tree that the drafter runs: all but the last step's."""
        return 1 + self.width * (self.depth - 1)


class Operators(NamedTuple):
    """What a target has kernels for; see the package. Without `accept` the walk is torch's."""

    top_k: TopK
    kv_commit: KvCommit
    accept: Accept | None = None


class Settings(NamedTuple):
    """What the host may set before an iteration. trust, min_score [1] float64: the gate's factor
    on path probabilities, and the least that a node may have. rate [1] float64: of the
    lagrangian, None for the ratio. draw: None where the most likely token is taken."""

    trust: Tensor
    min_score: Tensor
    rate: Tensor | None = None
    draw: Draw | None = None


class Tables(NamedTuple):
    """What was measured and lies on the device: data, so that measuring again compiles nothing.
    depth_costs: None where no predictor chooses depths."""

    calibration: Calibration
    row_costs: RowCosts
    depth_costs: DepthCosts | None = None


class Iteration(torch.nn.Module):
    """The program of one shape. `head` and `step` are the drafter's passes of 2 and of `width`
    rows, whose logits are of tokens that may be drafted alone and which take any token of the
    verifier's; `verify` is the verifier's of `rows`.

    Caches have slots for `max_model_len` (`draft_len`) tokens and `rows` (`num_run`) more.
    """

    def __init__(
        self,
        shape: IterationShape,
        head: Forward,
        step: Forward,
        verify: Forward,
        operators: Operators,
    ) -> None:
        super().__init__()
        self.shape, self.operators = shape, operators
        self.head, self.step, self.verify = head, step, verify

    def forward(
        self,
        context: Context,
        settings: Settings,
        tables: Tables,
        draft_caches: list[Tensor],
        caches: list[Tensor],
    ) -> tuple[Context, Tensor]:
        """Where the next iteration begins, and what the host waits for, in one tensor: int64
        [D + 5], D the depth. The context has fewer than `draft_len` rows, and room for a token.

        It holds the emitted tokens [D + 1], -1 behind them; how many; the rows of the verified
        tree; and for the next iteration the index among the row counts that would have been best
        for this tree, and the depth by the hazards, -1 without a predictor.
        """
        shape, operators, length = self.shape, self.operators, context.length
        tree = self.draft(context, settings, tables.calibration, draft_caches)
        pruned = prune(tree, shape.rows)
        inputs = verify_inputs(pruned, length, shape.max_model_len)
        choices, logits, _, hazards = self.verify(*inputs, *caches)
        if settings.draw is not None:
            depths, num_depths = pruned.depths, shape.depth + 1
            choices = drawn(logits, depths, num_depths, length + 1, settings.draw)
        done = emitted(pruned, choices, shape.depth, operators.accept)
        path = done.path[1 : shape.rows]
        operators.kv_commit(caches, *moves(path, done.num_accepted, length, shape.rows))
        drafted = torch.where(path >= 0, pruned.rows[path.clamp(min=0)], -1)
        operators.kv_commit(
            draft_caches, *moves(drafted, done.num_accepted, length, shape.num_run)
        )
        hazards = hazards[done.path[done.num_accepted]][0]
        after = following(context, done, hazards, tables.depth_costs)
        report = [done.tokens, done.num_accepted + 1, pruned.num_rows]
        return after, torch.cat([*report, *self._next(tree, settings, tables, after)])

    def draft(
        self,
        context: Context,
        settings: Settings,
        calibration: Calibration,
        caches: list[Tensor],
    ) -> Drafted:
        """The whole tree, what the context has no room for absent."""
        shape, length = self.shape, context.length

        def propose(tree: Drafted, first: int) -> tuple[Tensor, Tensor]:
            logits = self._logits(tree, first, context, caches)
            depths, num, top_k = tree.depths[first:], shape.children, self.operators.top_k
            return children(logits, depths, num, calibration, top_k, settings.draw, length + 1)

        tree = grow(
            context.root, shape.width, shape.depth, shape.frontier, propose,
            settings.min_score, shape.draft_len - 1 - length,
        )  # fmt: skip
        # The bonus token needs a place too.
        return clip_depth(tree, shape.max_model_len - 2 - length)

    def _logits(self, tree: Drafted, first: int, context: Context, caches: list[Tensor]) -> Tensor:
        """The drafter's logits after the rows from `first` on."""
        shape = self.shape
        if first == 0:
            inputs = head_inputs(context.previous, context.root, context.length)
            return self.head(*inputs, *caches)[1][1:]
        inputs = step_inputs(tree, first, shape.num_run, context.length, shape.draft_len)
        return self.step(*inputs, *caches)[1]

    def _next(
        self, tree: Drafted, settings: Settings, tables: Tables, context: Context
    ) -> tuple[Tensor, Tensor]:
        """The report's last two values."""
        row_costs, depth_costs = tables.row_costs, tables.depth_costs
        block = block_of(context.length, len(row_costs.rest_s), self.shape.context_block)
        rows = choose_num_rows(tree.scores, settings.trust, row_costs, block, settings.rate)
        if depth_costs is None or context.hazards is None:
            return rows, torch.full_like(rows, -1)
        return rows, choose_depth(context.hazards, depth_costs, block, settings.rate)
