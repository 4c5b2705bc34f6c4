"""A compile process does not outlive the build that started it."""

from __future__ import annotations

import subprocess
import sys

CHILD = """
import sys, time
from yggc.worker import end_with_parent
end_with_parent(int(sys.argv[1]))
print("ready", flush=True)
time.sleep(60)
"""
PARENT = f"""
import os, subprocess, sys
subprocess.run([sys.executable, "-c", {CHILD!r}, str(os.getpid())])
"""


def test_it_ends_when_its_parent_is_killed() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    parent.kill()
    # The pipe ends when the child, which holds it too, has ended.
    remaining, _ = parent.communicate(timeout=20)
    assert remaining == ""


def test_it_ends_when_its_parent_was_gone_before() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD, "1"], timeout=20, check=False)
    assert done.returncode == 1
