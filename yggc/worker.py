"""A compile process that ends with the build that started it, even if that is killed.

One that lived on would write into the folder of the next build's compile of the same graph.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Has the kernel kill this process when the thread that started it ends; Linux only."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        # It ended before the kernel knew.
        raise SystemExit(1)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))

    from yggc.aot import main

    main(sys.argv[2:])
