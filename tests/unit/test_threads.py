"""How long threads spin, as libgomp itself reports it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from yggrt.threads import OWN_SETTINGS, SPIN_COUNT

PROGRAM = "from yggrt.threads import wait_briefly; wait_briefly(); import torch"


def spin_count(**settings: str) -> str:
    """What libgomp says it took from the environment when torch brought it in."""
    own = {name: value for name, value in os.environ.items() if name not in OWN_SETTINGS}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**own, "OMP_DISPLAY_ENV": "verbose", **settings},
        capture_output=True,
        text=True,
        check=True,
    )
    [line] = [line for line in done.stderr.splitlines() if "GOMP_SPINCOUNT" in line]
    return line.split("'")[1]


@pytest.mark.skipif(sys.platform != "linux", reason="torch brings libgomp on Linux")
def test_threads_sleep_soon_unless_the_user_says_otherwise() -> None:
    assert spin_count() == SPIN_COUNT
    assert spin_count(GOMP_SPINCOUNT="12345") == "12345"
    assert spin_count(OMP_WAIT_POLICY="passive") == "0"
