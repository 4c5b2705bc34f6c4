"""The device's iteration over the Triton operators, in Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
# A process of its own: TRITON_INTERPRET counts when triton is imported.
PROGRAM = """
import json
import torch
from device_programs import Lab
from ygg_kernels.triton.accept import accept
from ygg_kernels.triton.kv import kv_commit
from ygg_kernels.triton.topk import topk_logsumexp
from yggrt.core.device.iteration import Iteration, Operators

def commit(caches, sources, targets):
    # The operator moves floating rows; the models' are one integer of as many bits as two.
    kv_commit([cache.view(torch.float32) for cache in caches], sources, targets)

found = []
for seed in range(40):
    lab = Lab.random(seed)
    ids = [*lab.prompt, 1]
    for temperature in (0.0, 0.9):
        settings, tables = lab.settings(temperature, seed), lab.tables()
        plain = lab.program()
        one = Iteration(lab.shape, plain.head, plain.step, plain.verify,
                        Operators(topk_logsumexp, commit, accept))
        runs = []
        for program in (one, plain):
            context, draft_caches, caches = lab.begin(ids)
            after, report = program(context, settings, tables, draft_caches, caches)
            runs.append([*after[:3], report, *draft_caches, *caches])
        same = all(torch.equal(a, b) for a, b in zip(*runs))
        found.append([same, int(report[lab.shape.depth + 1])])
print(json.dumps(found))
"""


def test_the_operators_fit() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(TESTS)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert all(same for same, _ in found)
    assert max(num_emitted for _, num_emitted in found) > 2
