"""`yggc build --dry-run`: what a build would take, printed, and whether its target can hold it."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from yggc.config import OPTIONS, BuildConfig
from yggc.estimate import CUDA_BYTES, Estimate, estimate
from yggc.targets import GPU_TARGETS, find_gpu_target
from yggrt.core.errors import TargetError
from yggrt.terminal import note

Plan = tuple[BuildConfig, Estimate]


def show_plan(config: BuildConfig, as_json: bool) -> Plan:
    """The plan of one build, printed: as lines, or as one line of JSON."""
    config, needs = estimate(config)
    if as_json:
        print(json.dumps({"config": msgspec.to_builtins(config), "estimate": _plain(needs)}))
    else:
        _print(config, needs)
    return config, needs


def check_fit(plans: Sequence[Plan]) -> None:
    """Raises TargetError that names every build which its target cannot hold."""
    lines = []
    tip = ""
    for config, needs in plans:
        gpu = find_gpu_target(config.target)
        if gpu is None or needs.fits:
            continue
        lines.append(
            f"{config.name} does not fit {gpu.name}: it takes {_parts(needs)} = "
            f"{needs.device_bytes / 1e9:.1f} GB of the device, the {gpu.title} has "
            f"{gpu.memory_gb} GB"
        )
        larger = [one.name for one in GPU_TARGETS if one.memory_bytes >= needs.device_bytes]
        where = f", or build for one that holds it: {', '.join(larger)}" if larger else ""
        tip = f"take --quant int8 or int4, --kv-dtype int8 or a smaller --max-model-len{where}"
    if lines:
        raise TargetError("; ".join(lines), tip)


def _parts(needs: Estimate) -> str:
    return (
        f"weights {needs.weights_bytes / 1e9:.2f}, keys and values {needs.kv_bytes / 1e9:.2f}, "
        f"workspace {needs.workspace_bytes / 1e9:.2f}, CUDA {CUDA_BYTES / 1e9:.2f}"
    )


def _plain(needs: Estimate) -> dict[str, object]:
    plain: dict[str, object] = msgspec.to_builtins(needs)
    return plain | {"fits": needs.fits}


def _print(config: BuildConfig, needs: Estimate) -> None:
    for line in needs.notes:
        note(line)
    for key in OPTIONS:
        print(f"{key} = {getattr(config, key)}")
    print(f"graphs: {', '.join(needs.graphs)}")
    if not needs.num_parameters:
        return
    print(f"parameters: {needs.num_parameters / 1e6:.1f} M")
    print(f"compile time: about {needs.compile_s / 60:.1f} minutes in {config.jobs} processes")
    print(
        f"memory to run: weights {needs.weights_bytes / 1e9:.2f} GB, keys and values "
        f"{needs.kv_bytes / 1e9:.2f} GB, workspace {needs.workspace_bytes / 1e9:.2f} GB"
    )
    if needs.device_memory_bytes:
        print(
            f"device memory: about {needs.device_bytes / 1e9:.1f} GB of "
            f"{needs.device_memory_bytes / 1e9:.0f} GB"
        )
    print(f"memory to build: about {needs.memory_bytes / 1e9:.1f} GB")
    print(
        f"bundle: about {needs.output_bytes / 1e9:.2f} GB; work directory: "
        f"{needs.work_bytes / 1e9:.2f} GB"
    )
