"""A whole iteration through AOTInductor, for the CPU: the values that it has uncompiled."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from device_programs import Lab, arguments, copied

from yggrt.core.device.flat import FlatIteration, flat

pytestmark = pytest.mark.tiny


# The noise is what takes g++ longest, so the sampled program has one step of it.
@pytest.mark.parametrize(("temperature", "depth"), [(0.0, 2), (0.8, 1)])
def test_a_compiled_iteration_is_the_same(temperature: float, depth: int, tmp_path: Path) -> None:
    lab = Lab.random(3, width=2, depth=depth, children=3, rows=3)
    given = arguments(lab, temperature)
    program = FlatIteration(lab.program(), given)
    exported = torch.export.export(program, tuple(flat(copied(given))))
    path = str(tmp_path / "iteration.pt2")
    torch._inductor.aoti_compile_and_package(exported, package_path=path)
    compiled = torch._inductor.aoti_load_package(path)
    # Another context than the one that it was compiled at.
    for ids in ([1, 2, 0, 1, 2, 2, 1], [2, 0, 1, 1], [0, 1, 2] * 9):
        context, draft_caches, caches = lab.begin(ids)
        context = context._replace(hazards=given[0].hazards)
        now = (context, *given[1:3], draft_caches, caches)
        one, other = flat(copied(now)), flat(copied(now))
        found, wanted = compiled(*one), program(*other)
        for tensor, as_it_should_be in zip([*found, *one], [*wanted, *other], strict=True):
            assert torch.equal(tensor, as_it_should_be)
