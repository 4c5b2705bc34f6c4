"""Installs the distribution without extras into a fresh environment and runs a bundle there."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

import bundles

ABSENT = ("transformers", "safetensors", "gguf", "triton", "onnx")


def main() -> None:
    bundle = bundles.tiny("static")
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "bin", "python")
        subprocess.run([python, "-m", "pip", "install", "-q", str(bundles.ROOT)], check=True)
        probe = f"import importlib.util as u; assert not [n for n in {ABSENT} if u.find_spec(n)]"
        subprocess.run([python, "-c", probe], check=True)
        command = [Path(folder, "bin", "yggrt"), "run", bundle, "--prompt", "quick", "-n", "8"]
        subprocess.run(command, check=True, cwd=folder)
        subprocess.run([Path(folder, "bin", "yggrt"), "verify", bundle], check=True, cwd=folder)


if __name__ == "__main__":
    main()
