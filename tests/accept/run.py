"""The long table: runs every acceptance command one after another and stops at the first that
fails.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
COMMANDS = [
    ["-m", "ygg_kernels.build", "--check-sanitizers"],
    ["-m", "ygg_kernels.build", "--check-neon"],
    [str(HERE / "exactness.py")],
    [str(HERE / "exactness.py"), "--dtype", "bfloat16", "--no-reference"],
    [str(HERE / "sampling.py"), "--law"],
    [str(HERE / "sampling.py"), "tiny"],
    [str(HERE / "sampling.py"), "smol", "--rotate", "--num-prompts", "4"],
    [str(HERE / "sampling.py"), "smol", "--cost", "--num-prompts", "6"],
    [str(HERE / "trained.py")],
    [str(HERE / "speed.py")],
    [str(HERE / "memory.py")],
    [str(HERE / "bare_install.py")],
]


def main() -> int:
    for command in COMMANDS:
        print("$ python", *command, flush=True)
        status = subprocess.run([sys.executable, *command], cwd=ROOT, check=False).returncode
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
