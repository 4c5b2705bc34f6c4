"""Peak memory of a build of a random 1B-parameter model, and resident memory while SmolLM2
decodes.

Prints megabytes; the last line is JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path[:0] = [str(Path(__file__).parents[1])]

import bundles

from yggrt.bundle import Bundle


def resident_bytes(pid: int) -> int:
    """Resident memory of a process and its descendants, shared pages counted once a process."""
    total, todo = 0, [pid]
    while todo:
        process = todo.pop()
        try:
            status = Path(f"/proc/{process}/status").read_text()
            # A process is a child of the thread that started it.
            tasks = Path(f"/proc/{process}/task").iterdir()
            children = [c for t in tasks for c in (t / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        total += int(fields.get("VmRSS", "0 kB").split()[0]) * 1024
        todo += [int(child) for child in children]
    return total


def peak_of(command: list[str]) -> int:
    """Largest resident memory of a command's process tree, sampled ten times a second."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, resident_bytes(process.pid))
            time.sleep(0.1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    status = process.wait()
    done.set()
    watcher.join()
    assert status == 0, f"{command} ended with {status}"
    return peak


def weights_bytes(bundle: Path) -> int:
    with Bundle.open(bundle) as opened:
        return sum(spec.num_bytes for spec in opened.manifest.weights.values())


def billion() -> Path:
    """A random Llama of about a billion parameters in bfloat16, saved in shards."""
    folder = bundles.CACHE / "random-1b"
    if not (folder / "config.json").exists():
        config = LlamaConfig(
            vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22,
            num_attention_heads=32, num_key_value_heads=4, max_position_embeddings=2048,
        )  # fmt: skip
        torch.manual_seed(0)
        torch.set_default_dtype(torch.bfloat16)
        LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="500MB")
    return folder


def main() -> None:
    smol = bundles.smol()
    decode = [
        sys.executable,
        "-m",
        "yggrt",
        "run",
        str(smol),
        "--prompt",
        "Count to one hundred.",
        "-n",
        "200",
    ]
    build = [
        sys.executable, "-m", "yggc", "build", "--gpu", "cpu", "--verifier", str(billion()),
        "--dtype", "float32",
        "--work-dir", str(bundles.WORK), "-o", str(bundles.CACHE / "random-1b.ygg"),
        "--calibration-tokens", "2",
    ]  # fmt: skip
    result = {
        "decode_mb": peak_of(decode) / 1e6,
        "decode_weights_mb": weights_bytes(smol) / 1e6,
        "build_1b_mb": peak_of(build) / 1e6,
        "build_1b_weights_mb": weights_bytes(bundles.CACHE / "random-1b.ygg") / 1e6,
    }
    for name, value in result.items():
        print(f"{name}: {value:.0f}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
