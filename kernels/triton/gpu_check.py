"""What only a GPU can show, in under nine minutes, on a machine without a network.

`make gpu-check` runs it. Preflight; then in parallel every kernel against its reference, bits of
rows, AOTInductor and CUDA graphs; then, alone, bandwidth. Each step is a process of its own with a
deadline, and the JSON file is written after each, so neither a crash nor a timeout loses what was
found before. Exit 2: not a machine for this; 1: a step failed; 0: all passed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yggrt.core.errors import TargetError, YggError

PACKAGE = "ygg_kernels.triton"
WANTED = "an NVIDIA GPU of compute capability 8.0 or above, torch >= 2.11 for CUDA, triton >= 3.6"
# Seconds for the steps that run side by side, and for the one that needs the GPU alone.
CHECKS_LIMIT_S = 300
BANDWIDTH_LIMIT_S = 150


@dataclass(frozen=True, slots=True)
class Step:
    """A module of this package to be run with arguments; it prints one JSON object a line."""

    name: str
    module: str
    arguments: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        """The command line."""
        return [sys.executable, "-m", f"{PACKAGE}.{self.module}", *self.arguments]


CHECKS = (
    *(
        Step(group, "cases", (group, "--device", "cuda"))
        for group in (
            "attention", "attention_rows", "linear", "linear_rows", "topk", "keyed", "accept",
            "kv_commit",
        )
    ),
    Step("embedding", "embed_check"),
)  # fmt: skip
BANDWIDTH = Step("bandwidth", "bandwidth")


def _refuse(found: str, tip: str) -> TargetError:
    return TargetError(f"gpu-check: found {found}, wanted {WANTED}; nothing was measured", tip)


def _version(module: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in module.__version__.split("+")[0].split(".")[:2])


def preflight() -> dict[str, Any]:
    """Facts of a machine that the check can use. Raises TargetError, nothing imported before."""
    modules = {}
    for name, least in (("torch", (2, 11)), ("triton", (3, 6))):
        wanted = ".".join(map(str, least))
        try:
            modules[name] = importlib.import_module(name)
        except ImportError:
            raise _refuse(
                f"no {name} in {sys.executable}", f"name a Python that has {name}: make gpu-check "
                "PYTHON=...",
            ) from None  # fmt: skip
        if _version(modules[name]) < least:
            raise _refuse(f"{name} {modules[name].__version__}", f"install {name} >= {wanted}")
    torch, triton = modules["torch"], modules["triton"]
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise _refuse("TRITON_INTERPRET=1", "unset it: the interpreter is not a GPU")
    if not torch.cuda.is_available():
        raise _refuse(
            f"no GPU (torch {torch.__version__} sees none)",
            "run it on a machine with an NVIDIA GPU, its driver, and torch for CUDA",
        )
    capability = torch.cuda.get_device_capability()
    name = torch.cuda.get_device_name()
    if capability < (8, 0):
        found = f"{name} of compute capability {capability[0]}.{capability[1]}"
        raise _refuse(found, "use a GPU of the Ampere generation or a later one")
    free, total = torch.cuda.mem_get_info()
    if free < 6 * 2**30:
        raise _refuse(
            f"{free / 2**30:.1f} GiB of {total / 2**30:.1f} free on {name}", "free 6 GiB of it"
        )
    return {
        "gpu": name,
        "capability": f"{capability[0]}.{capability[1]}",
        "memory_bytes": total,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
    }


class Report:
    """The JSON file: complete after every `add`."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self._path = path
        self._content: dict[str, Any] = {"machine": facts, "steps": {}}
        self._write()

    def add(self, step: str, outcome: dict[str, Any]) -> None:
        """Records a step."""
        self._content["steps"][step] = outcome
        self._write()

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self._path.with_suffix(".part")
        scratch.write_text(json.dumps(self._content, indent=1) + "\n", encoding="utf-8")
        os.replace(scratch, self._path)


def run_steps(steps: tuple[Step, ...], limit_s: float, scratch: Path) -> Iterator[
    tuple[str, dict[str, Any]]
]:  # fmt: skip
    """Runs steps side by side and yields the outcome of each as it ends, or at the limit."""
    scratch.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with contextlib.ExitStack() as files:
        running = {}
        for step in steps:
            out, err = (
                files.enter_context((scratch / f"{step.name}.{kind}").open("w"))
                for kind in ("jsonl", "err")
            )
            running[step.name] = subprocess.Popen(step.command, stdout=out, stderr=err)
        while running:
            late = time.monotonic() - begun > limit_s
            for name, process in list(running.items()):
                if process.poll() is None and not late:
                    continue
                process.kill()
                process.wait()
                del running[name]
                yield name, _outcome(name, process.returncode, late, begun, scratch)
            time.sleep(0.2)


def _outcome(name: str, status: int, late: bool, begun: float, scratch: Path) -> dict[str, Any]:
    """What a step printed, and how it ended."""
    results = []
    for line in (scratch / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        # The last line of a process that was killed may be half a line.
        with contextlib.suppress(json.JSONDecodeError):
            results.append(json.loads(line))
    ended = "deadline" if late else "done" if status == 0 else f"exit status {status}"
    errors = (scratch / f"{name}.err").read_text(encoding="utf-8").strip().splitlines()
    return {
        "passed": status == 0 and bool(results),
        "ended": ended,
        "seconds": round(time.monotonic() - begun, 1),
        "num_results": len(results),
        "failed": [each for each in results if not each.get("passed", True)],
        "results": results,
        "stderr": errors[-5:] if status != 0 else [],
    }


def main() -> int:
    """`python -m ygg_kernels.triton.gpu_check`."""
    parser = argparse.ArgumentParser(prog="ygg_kernels.triton.gpu_check", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(".cache/gpu_check/result.json"))
    options = parser.parse_args()
    try:
        facts = preflight()
    except YggError as error:
        print(f"ERROR {error.message}\nTIP {error.tip}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(facts), file=sys.stderr)
    report = Report(options.out, facts)
    passed = True
    for steps, limit_s in ((CHECKS, CHECKS_LIMIT_S), ((BANDWIDTH,), BANDWIDTH_LIMIT_S)):
        for name, outcome in run_steps(steps, limit_s, options.out.parent):
            report.add(name, outcome)
            passed = passed and outcome["passed"]
            print(
                f"{name}: {'passed' if outcome['passed'] else 'FAILED'} "
                f"({outcome['num_results']} results, {len(outcome['failed'])} failed, "
                f"{outcome['ended']}, {outcome['seconds']} s)",
                file=sys.stderr,
            )
    print(json.dumps({"passed": passed, "report": str(options.out)}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
