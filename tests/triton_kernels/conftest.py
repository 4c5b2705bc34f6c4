"""The cases of every kernel, run once in Triton's interpreter.

TRITON_INTERPRET counts when triton is imported, and would then hold for all that runs in the same
process. So processes of their own run the cases, two side by side, and the tests read what they
printed; this process never sets it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

# About equal in time.
SHARES = (
    ("attention", "accept", "kv_commit", "topk"),
    ("attention_rows", "linear", "linear_rows", "keyed"),
)

Results = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="session")
def results() -> Results:
    """What every case found, by group."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "ygg_kernels.triton.cases", *groups],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for groups in SHARES
    ]
    found: Results = {}
    for process in running:
        out, err = process.communicate()
        for line in out.splitlines():
            result = json.loads(line)
            found.setdefault(result["group"], []).append(result)
        # 1 says that a case failed, which its own test reports.
        assert process.returncode in (0, 1), err
        assert "Traceback" not in err, err
    return found
