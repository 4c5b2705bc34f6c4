"""How the threads of torch's OpenMP runtime wait for each other."""

from __future__ import annotations

import os

# Some tens of microseconds: longer than the gaps between a pass's parallel regions.
SPIN_COUNT = "1000"
OWN_SETTINGS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def wait_briefly() -> None:
    """Lets a thread that waits go to sleep soon, in this process and those it starts.

    libgomp spins for milliseconds by default. On a machine with other work the waiting thread then
    keeps a processor from the thread that it waits for, and passes take many times as long
    (docs/log.md). libgomp reads the environment once, so call this before torch is imported;
    later it has no effect. A setting of the user's own stays.
    """
    if not any(name in os.environ for name in OWN_SETTINGS):
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
