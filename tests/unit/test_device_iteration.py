"""Whole iterations, one after another, against the engine; and what torch.export makes of them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from device_programs import CONTEXT, Lab, arguments, copied
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as pytree

from yggrt.core.device.flat import FlatIteration, flat
from yggrt.core.device.iteration import IterationShape, Settings
from yggrt.engine import Engine
from yggrt.gate import OpenGate
from yggrt.sampling.params import SamplingParams
from yggrt.sampling.sampler import Sampler

# Read a value on the host, or make a shape of one; of aten and of what export may add to it.
FORBIDDEN = {
    "_assert_async", "_assert_scalar", "_local_scalar_dense", "argwhere", "bincount", "equal",
    "is_nonzero", "item", "masked_scatter", "masked_select", "nonzero", "nonzero_static",
    "repeat_interleave", "sym_constrain_range", "sym_constrain_range_for_size", "unique_dim",
    "_unique2", "unique_consecutive",
}  # fmt: skip
INDEXING = {"index", "index_put", "index_put_"}
SHAPES: tuple[dict[str, Any], ...] = (
    {"width": 4, "depth": 4, "children": 8, "rows": 12},
    {"width": 3, "depth": 5, "children": 4, "rows": 7, "frontier": "level"},
    {"width": 1, "depth": 6, "children": 2, "rows": 4},
    {"width": 5, "depth": 1, "children": 5, "rows": 8},
)


def engine_tokens(lab: Lab, sampler: Sampler | None, prompt: list[int]) -> tuple[list[int], int]:
    """Every token up to the end of the context, and how many passes there were."""
    graphs = lab.graphs()
    engine = Engine(
        graphs, graphs.new_cache(), lab.new_drafter(), lab.spec, lambda rows, context: 1.0, 0.0,
        OpenGate(),
    )  # fmt: skip
    tokens = [engine.start(prompt, sampler=sampler)]
    while engine.room:
        tokens += engine.step().tokens
    return tokens, engine.stats.num_passes


def device_tokens(
    lab: Lab, program: Any, settings: Settings, prompt: list[int], first: int
) -> tuple[list[int], int]:
    """The same of the device's program, the host looking at nothing but its reports."""
    context, draft_caches, caches = lab.begin([*prompt, first])
    tokens, num_passes, depth = [first], 0, lab.shape.depth
    while len(prompt) + len(tokens) < lab.shape.max_model_len:
        context, report = program(context, settings, lab.tables(), draft_caches, caches)
        values = report.tolist()
        tokens += values[: values[depth + 1]]
        num_passes += 1
    return tokens, num_passes


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.7])
@pytest.mark.parametrize("sizes", SHAPES)
def test_a_text_is_the_engines(sizes: dict[str, Any], temperature: float) -> None:
    total = 0
    for seed in range(6):
        lab = Lab.random(seed, draft_len=CONTEXT, **sizes)
        lab.min_score = 0.0
        prompt = lab.prompt[:20]
        params, vocab = SamplingParams(temperature=temperature), lab.verifier.vocab
        sampler = Sampler(params, prompt, vocab_size=vocab, seed=seed) if temperature else None
        wanted, wanted_passes = engine_tokens(lab, sampler, prompt)
        settings = lab.settings(temperature, seed)
        found, num_passes = device_tokens(lab, lab.program(), settings, prompt, wanted[0])
        assert found == wanted
        assert num_passes == wanted_passes
        total += len(found) - num_passes
    assert total > 50, "hardly a draft was accepted"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("sizes", SHAPES)
def test_an_exported_iteration_is_static_and_the_same(
    sizes: dict[str, Any], temperature: float
) -> None:
    lab = Lab.random(3, **sizes)
    program, given = lab.program(), arguments(lab, temperature)
    exported = torch.export.export(program, copied(given))
    assert not exported.range_constraints
    assert len(called(exported)) > 20
    assert not list(offences(exported))
    runs = [copied(given) for _ in range(2)]
    wanted, found = (
        run(*one) for run, one in zip((program, exported.module()), runs, strict=True)
    )
    for one, other in zip(flat((wanted, runs[0])), flat((found, runs[1])), strict=True):
        assert torch.equal(one, other)


def called(exported: torch.export.ExportedProgram) -> set[str]:
    """Names of what the program calls; of operators without their namespace and overload."""
    targets = {node.target for node in exported.graph.nodes if node.op == "call_function"}
    return {target.__name__.partition(".")[0] for target in targets - {operator.getitem}}


def offences(exported: torch.export.ExportedProgram) -> Iterator[str]:
    """Operators that wait for the device, indexing by a mask, and sizes that are no numbers."""
    yield from called(exported) & FORBIDDEN
    for node in exported.graph.nodes:
        value = node.meta.get("val")
        values = value if isinstance(value, list | tuple) else [value]
        for one in values:
            if isinstance(one, Tensor) and not all(type(size) is int for size in one.shape):
                yield f"{node}: shape {one.shape}"
            if isinstance(one, torch.SymInt | torch.SymFloat | torch.SymBool):
                yield f"{node}: a number"
        if getattr(node.target, "__name__", "").partition(".")[0] in INDEXING:
            places = [one.meta["val"] for one in node.args[1] if one is not None]
            if any(place.dtype in (torch.bool, torch.uint8) for place in places):
                yield f"{node}: a mask"


@pytest.mark.parametrize(
    "offence",
    [
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: torch.full((2,), x.sum().item()),
        lambda x: x.masked_select(x > 1),
        lambda x: x.unique(),
        lambda x: torch.where(x > 0)[0],
        lambda x: x.repeat_interleave(x),
    ],
)
def test_what_must_not_be_there_would_be_found(offence: Callable[[Tensor], Tensor]) -> None:
    class Offender(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return offence(x)

    exported = torch.export.export(Offender(), (torch.arange(4),))
    assert list(offences(exported))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_flat_iteration_is_the_same_program(temperature: float) -> None:
    lab = Lab.random(3, **SHAPES[0])
    given = arguments(lab, temperature)
    one, other = copied(given), copied(given)
    found = FlatIteration(lab.program(), given)(*flat(one))
    wanted = flat(lab.program()(*other))
    assert len(found) == len(wanted) == 5
    for tensor, as_it_should_be in zip([*found, *flat(one)], [*wanted, *flat(other)], strict=True):
        assert torch.equal(tensor, as_it_should_be)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_everything_stays_on_the_device(temperature: float) -> None:
    """A fake tensor mixes with none from elsewhere and has no value that could be read; torch
    without CUDA fakes none that lie there, so these lie on `meta`."""
    lab = Lab.random(3, **SHAPES[0])
    there = pytree.tree_map_only(Tensor, lambda one: one.to("meta"), arguments(lab, temperature))
    with FakeTensorMode() as mode:
        results = lab.program()(*pytree.tree_map_only(Tensor, mode.from_tensor, there))
    assert {one.device.type for one in flat(results)} == {"meta"}


@pytest.mark.parametrize("sizes", [{"depth": 0}, {"rows": 1}, {"width": 0}, {"children": 0}])
def test_a_shape_without_drafts_is_refused(sizes: dict[str, int]) -> None:
    all_sizes = {"width": 1, "depth": 1, "children": 1, "rows": 2} | sizes
    with pytest.raises(ValueError, match="no drafted row"):
        IterationShape(**all_sizes, max_model_len=8, draft_len=8)


def test_garbage_ends_and_emits_the_verifiers_token() -> None:
    """Logits that are no numbers make a tree of nothing, and no walk without an end."""
    lab = Lab.random(3, width=3, depth=3, children=3, rows=6)
    lab.drafter.spread = math.nan
    context, settings, tables, draft_caches, caches = arguments(lab, 0.0)
    _, report = lab.program()(context, settings, tables, draft_caches, caches)
    assert report[4:6].tolist() == [1, 1]
