"""Random iterations: a shape and its models, for the host's parts and the device's program."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from tensor_model import HashDraftGraphs, HashGraphs, HashModel
from torch import Tensor
from torch.utils import _pytree as pytree
from ygg_kernels.reference import kv_commit
from ygg_kernels.triton.reference import topk_logsumexp

from yggrt.core import schema
from yggrt.core.device.children import Calibration
from yggrt.core.device.choice import DepthCosts, RowCosts
from yggrt.core.device.committing import Context
from yggrt.core.device.iteration import (
    Iteration,
    IterationShape,
    Operators,
    Settings,
    Tables,
)
from yggrt.core.device.noise import Draw
from yggrt.core.passes import prefill_chunks
from yggrt.core.schema import TreeSpec
from yggrt.core.shares import shares_of
from yggrt.drafters.lm import LmDrafter

OPERATORS = Operators(topk_logsumexp, kv_commit)
CONTEXT = 64


def top_shares(logits: Tensor, temperatures: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """The operator of that name, equals in order, by torch's own sums."""
    values, places, _ = topk_logsumexp(logits, num)
    return places, shares_of(values, logits, temperatures)


@dataclass
class Lab:
    """A shape, a verifier and a drafter that is often right, and how the drafter is believed."""

    shape: IterationShape
    verifier: HashModel
    drafter: HashModel
    temperatures: tuple[float, ...]
    min_score: float
    prompt: list[int]

    @classmethod
    def random(cls, seed: int, **fixed: Any) -> Lab:
        """All at random but what `fixed` says of the shape."""
        rng = random.Random(seed)
        vocab = rng.choice((3, 8, 40))
        sizes: dict[str, Any] = {
            "width": rng.randrange(1, 6),
            "depth": rng.randrange(1, 6),
            "children": rng.randrange(1, 8),
            "rows": rng.randrange(2, 13),
            "frontier": rng.choice(("global", "level")),
            "max_model_len": CONTEXT,
            "draft_len": rng.choice((CONTEXT, 24)),
        }
        shape = IterationShape(**sizes | fixed)
        # Coarse steps give equal logits, a spread of 0 gives nothing else.
        look = {"spread": rng.choice((0.0, 3.0, 12.0)), "step": rng.choice((0.5, 2.0, 2**-12))}
        verifier = HashModel(seed, vocab, **look, blur=0.0)
        drafter = HashModel(seed, vocab, **look, blur=rng.choice((0.0, 0.3)))
        temperatures = tuple(rng.choice((0.5, 1.0, 1.7)) for _ in range(rng.randrange(1, 4)))
        longest = min(shape.max_model_len, shape.draft_len) - 1
        prompt = [rng.randrange(vocab) for _ in range(rng.randrange(1, longest))]
        return cls(shape, verifier, drafter, temperatures, rng.choice((0.0, 0.01, 0.2)), prompt)

    @property
    def spec(self) -> TreeSpec:
        shape = self.shape
        return TreeSpec(
            policy="egt", width=shape.width, depth=shape.depth, children=shape.children,
            verify=shape.rows, frontier=shape.frontier,
        )  # fmt: skip

    def graphs(self) -> HashGraphs:
        slots = self.shape.max_model_len + self.shape.rows
        return HashGraphs(self.verifier, (1, self.shape.rows), slots, self.shape.max_model_len)

    def draft_graphs(self) -> HashDraftGraphs:
        shape = self.shape
        slots = shape.max_model_len + shape.num_run
        return HashDraftGraphs(self.drafter, (1,), slots, shape.draft_len, top_shares=top_shares)

    def new_drafter(self) -> LmDrafter:
        parameters = schema.LmDrafter(temperatures=self.temperatures)
        return LmDrafter(self.draft_graphs(), parameters, self.verifier.vocab)

    def program(self) -> Iteration:
        return Iteration(self.shape, self.drafter, self.drafter, self.verifier, OPERATORS)

    def tables(self) -> Tables:
        temperatures = torch.tensor(self.temperatures)
        calibration = Calibration(temperatures, torch.ones(1, dtype=torch.float64))
        # All rows cost the same.
        rows = torch.tensor([1, self.shape.rows])
        seconds, rest_s = torch.ones(1, 2).double(), torch.zeros(1).double()
        return Tables(calibration, RowCosts(rows, seconds, rest_s))

    def settings(self, temperature: float, seed: int) -> Settings:
        draw = None
        if temperature:
            warmth = torch.tensor([temperature], dtype=torch.float64)
            draw = Draw(torch.tensor([signed(seed), 0]), warmth)
        return Settings(torch.ones(1).double(), torch.tensor([self.min_score]).double(), draw=draw)

    def begin(self, ids: list[int]) -> tuple[Context, list[Tensor], list[Tensor]]:
        """Where an iteration on top of `ids` begins, the drafter's caches and the verifier's."""
        caches = []
        for graphs, known in ((self.draft_graphs(), 2), (self.graphs(), 1)):
            cache = graphs.new_cache()
            for first, last in prefill_chunks(graphs.prefill_buckets, 0, len(ids) - known):
                graphs.prefill(cache, ids[first:last], first)
            caches.append([cache])
        previous, root, length = (torch.tensor([one]) for one in (*ids[-2:], len(ids) - 1))
        return Context(previous, root, length), *caches


def arguments(lab: Lab, temperature: float) -> tuple[Any, ...]:
    """Of one iteration that also chooses a depth."""
    context, draft_caches, caches = lab.begin([1, 2, 0, 1, 2, 2, 1])
    context = context._replace(hazards=torch.full((3,), 0.5).double())
    seconds = torch.tensor([[1.3, 1.9, 1.1, 1.6]]).double()
    base_tokens, smoothing = torch.tensor([[1.2], [0.3]]).double()
    costs = DepthCosts(seconds, base_tokens, torch.ones(3).double(), smoothing)
    tables = Tables(*lab.tables()[:2], costs)
    return context, lab.settings(temperature, 5), tables, draft_caches, caches


def copied(values: Any) -> Any:
    """Other tensors with the same values: a program writes its caches."""
    return pytree.tree_map_only(Tensor, Tensor.clone, values)


def signed(word: int) -> int:
    """The int64 with the bits of a 64-bit word."""
    return word - 2**64 if word >= 2**63 else word
