"""What can be built for: one table of names, what this host is, and whether the two fit. Imports
no torch.
"""

from __future__ import annotations

import difflib
import shutil
import subprocess
from dataclasses import dataclass

from yggc.host import cpu_name
from yggrt.core.errors import TargetError


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """One GPU model; `memory_bytes` as sold (decimal gigabytes), `words` all occur in the driver's
    name for it.
    """

    name: str
    title: str
    compute_capability: str
    memory_gb: int
    words: tuple[str, ...]

    @property
    def memory_bytes(self) -> int:
        return self.memory_gb * 10**9

    def is_gpu(self, gpu: HostGpu) -> bool:
        """Whether `gpu` is of this model: compute capability, name and, within a fifth, memory."""
        words = gpu.name.upper().replace("-", " ").split()
        return (
            gpu.compute_capability == self.compute_capability
            and all(word in words for word in self.words)
            and abs(gpu.memory_bytes - self.memory_bytes) <= self.memory_bytes // 5
        )


@dataclass(frozen=True, slots=True)
class HostGpu:
    """One GPU of this machine, as its driver reports it."""

    name: str
    compute_capability: str
    memory_bytes: int


GPU_TARGETS = (
    GpuTarget("v100", "NVIDIA V100 16 GB", "7.0", 16, ("V100",)),
    GpuTarget("v100-32gb", "NVIDIA V100 32 GB", "7.0", 32, ("V100",)),
    GpuTarget("t4", "NVIDIA T4", "7.5", 16, ("T4",)),
    GpuTarget("a100", "NVIDIA A100 40 GB", "8.0", 40, ("A100",)),
    GpuTarget("a100-80gb", "NVIDIA A100 80 GB", "8.0", 80, ("A100",)),
    GpuTarget("a30", "NVIDIA A30", "8.0", 24, ("A30",)),
    GpuTarget("a40", "NVIDIA A40", "8.6", 48, ("A40",)),
    GpuTarget("a10", "NVIDIA A10", "8.6", 24, ("A10",)),
    GpuTarget("a10g", "NVIDIA A10G", "8.6", 24, ("A10G",)),
    GpuTarget("a6000", "NVIDIA RTX A6000", "8.6", 48, ("A6000",)),
    GpuTarget("rtx3090", "NVIDIA GeForce RTX 3090", "8.6", 24, ("RTX", "3090")),
    GpuTarget("l4", "NVIDIA L4", "8.9", 24, ("L4",)),
    GpuTarget("l40", "NVIDIA L40", "8.9", 48, ("L40",)),
    GpuTarget("l40s", "NVIDIA L40S", "8.9", 48, ("L40S",)),
    GpuTarget("rtx4090", "NVIDIA GeForce RTX 4090", "8.9", 24, ("RTX", "4090")),
    GpuTarget("h100", "NVIDIA H100 80 GB", "9.0", 80, ("H100",)),
    GpuTarget("h200", "NVIDIA H200", "9.0", 141, ("H200",)),
    GpuTarget("b200", "NVIDIA B200", "10.0", 180, ("B200",)),
    GpuTarget("rtx5090", "NVIDIA GeForce RTX 5090", "12.0", 32, ("RTX", "5090")),
)
TARGET_NAMES = ("cpu", "auto", *(target.name for target in GPU_TARGETS))


def find_gpu_target(name: str) -> GpuTarget | None:
    """The table's entry, None for `cpu` and `auto`; TargetError that lists the known names for any
    other.
    """
    found = next((target for target in GPU_TARGETS if target.name == name.lower()), None)
    if found is None and name not in ("cpu", "auto"):
        near = difflib.get_close_matches(name.lower(), TARGET_NAMES, n=1)
        raise TargetError(
            f"unknown target {name!r}; known are {', '.join(TARGET_NAMES)}",
            f"did you mean {near[0]}?" if near else "`yggc targets` describes them",
        )
    return found


def host_gpus() -> tuple[HostGpu, ...]:
    """The GPUs that nvidia-smi lists; none if it is absent or finds no driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    query = [program, "--query-gpu=name,compute_cap,memory.total", "--format=csv,noheader,nounits"]
    result = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    if result.returncode != 0:
        return ()
    gpus = []
    for line in result.stdout.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 3 and fields[2].isdigit():
            gpus.append(HostGpu(fields[0], fields[1], int(fields[2]) << 20))
    return tuple(gpus)


def resolve_target(name: str, *, dry_run: bool) -> tuple[str, list[str]]:
    """The concrete target and what "auto" chose; TargetError if it cannot be built here (a dry run
    may ask for any).

    What is not covered: this release has the CPU back end only, and says so to whoever asks for a
    GPU.
    """
    target = find_gpu_target(name)
    if name == "auto":
        gpus = host_gpus()
        seen = (
            f"{gpus[0].name} is not used: this release builds for the CPU only"
            if gpus
            else "no NVIDIA GPU here"
        )
        return "cpu", [f"target: auto is cpu ({cpu_name()}); {seen}"]
    if target is None:
        return "cpu", []
    if not dry_run:
        _refuse(target, host_gpus())
    return target.name, []


def _refuse(target: GpuTarget, gpus: tuple[HostGpu, ...]) -> None:
    asked = f"asked for {target.name} (compute capability {target.compute_capability})"
    tip = (
        f"it would run on a machine with an {target.title}, once there is a CUDA back end, which "
        "this release has not; build for this machine with --gpu cpu, or plan with --dry-run"
    )
    if not gpus:
        raise TargetError(
            f"{asked}, this machine has no NVIDIA GPU",
            tip,
        )
    if not any(target.is_gpu(gpu) for gpu in gpus):
        found = ", ".join(f"{gpu.name} ({gpu.compute_capability})" for gpu in gpus)
        raise TargetError(
            f"{asked}, this machine has {found}",
            tip,
        )
    raise TargetError(
        f"{asked}, which this machine has, but this release has no CUDA back end",
        "build with --gpu cpu",
    )
