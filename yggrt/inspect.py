"""What `yggrt inspect` shows, as a plain dictionary and as tables. No native code, no torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from yggrt.bundle import Bundle
from yggrt.core.footprint import Footprint, beside, kv_bytes, workspace_bytes
from yggrt.core.formats import FORMATS, PANEL, quantised_format
from yggrt.core.schema import (
    DRAFTER_KINDS,
    DRAFTER_PREFIX,
    VERIFIER_KINDS,
    GraphKind,
    Manifest,
    MedusaDrafter,
    ModelInfo,
    WeightSpec,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from yggrt.cache import Cache

_NUM_LARGEST = 10

Row = tuple[Any, ...]


def inspect_bundle(path: Path, full: bool = False, cache: Cache | None = None) -> dict[str, Any]:
    """Opens and checks a bundle, with `full` every byte, and describes it; or BundleError."""
    with Bundle.open(path, full=full, cache=cache) as bundle:
        return describe_bundle(bundle)


def describe_bundle(bundle: Bundle) -> dict[str, Any]:
    """What an open bundle holds, in JSON types."""
    manifest = bundle.manifest
    plain = msgspec.to_builtins(manifest)
    return {
        "file": {
            "path": str(bundle.path),
            "name": manifest.name,
            "num_bytes": bundle.num_bytes,
            "digest": bundle.digest,
            "format_version": manifest.format_version,
            "built_by": manifest.built_by,
            "exactness": manifest.exactness,
            "verified": bundle.verified,
        },
        "target": plain["target"],
        "verifier": describe_verifier(manifest),
        "model": plain["model"],
        "drafter": plain["drafter"],
        "draft_model": describe_drafter(manifest),
        "sources": plain["sources"],
        "graphs": [_graph(graph, manifest) for graph in plain["graphs"]],
        "operators": {"member": manifest.operators, "namespace": manifest.operator_namespace},
        "weights": _weights(manifest),
        "memory": _memory(manifest),
        "latency": plain["latency"],
        "profile": plain["profile"],
        "schedule": _schedule(plain["schedule"]),
        "text": _text(manifest),
        "num_golden": len(manifest.golden),
        "members": plain["members"],
        "config": plain["config"],
        "inputs": plain["inputs"],
    }


def render(description: dict[str, Any], console: Console) -> None:
    """Prints what `inspect_bundle` returned as tables."""
    for title, table in _tables(description):
        console.print(title, style="bold", markup=False, highlight=False)
        console.print(table)
        console.print()


def _graph(graph: dict[str, Any], manifest: Manifest) -> dict[str, Any]:
    names = (graph["library"], graph["calls"], graph["metadata"])
    return {
        **{key: value for key, value in graph.items() if key != "constants"},
        "num_constants": len(graph["constants"]),
        "num_bytes": sum(manifest.members[name].num_bytes for name in names),
    }


def _weights(manifest: Manifest) -> dict[str, Any]:
    largest = sorted(manifest.weights.items(), key=lambda item: (-item[1].num_bytes, item[0]))
    by_dtype: dict[str, int] = {}
    for weight in manifest.weights.values():
        by_dtype[weight.dtype] = by_dtype.get(weight.dtype, 0) + weight.num_bytes
    return {
        "num_tensors": len(manifest.weights),
        "num_bytes": sum(by_dtype.values()),
        "bytes_by_dtype": by_dtype,
        "largest": [
            {"name": name, "dtype": w.dtype, "shape": list(w.shape), "num_bytes": w.num_bytes}
            for name, w in largest[:_NUM_LARGEST]
        ],
    }


def _schedule(schedule: dict[str, Any]) -> dict[str, Any]:
    """The schedule; of the recordings, which can be long, only how many there are."""
    rest = {key: value for key, value in schedule.items() if key != "recordings"}
    return {**rest, "num_recordings": len(schedule["recordings"])}


def _text(manifest: Manifest) -> dict[str, Any]:
    """The text part; of the template, which can be pages long, only whether there is one."""
    text: dict[str, Any] = msgspec.to_builtins(manifest.text)
    text["chat_template"] = bool(text["chat_template"])
    return text


def describe_verifier(manifest: Manifest) -> str:
    """In words what is computed, so that nobody takes a quantised model for the original."""
    return _describe(manifest, manifest.model, VERIFIER_KINDS)


def describe_drafter(manifest: Manifest) -> str:
    """As `describe_verifier`, for a model that drafts; "" if none does."""
    if manifest.drafter is None:
        return ""
    return _describe(manifest, manifest.drafter, DRAFTER_KINDS)


def model_weights(manifest: Manifest, kinds: Collection[str]) -> dict[str, WeightSpec]:
    """The weights of the model whose graphs are of these kinds: all but what only the other's
    graphs read. What a drafter has in the verifier's graphs is the drafter's.
    """
    own: set[str] = set()
    others: set[str] = set()
    for graph in manifest.graphs:
        (own if graph.kind in kinds else others).update(graph.constants.values())
    heads = {name for name in manifest.weights if name.startswith(DRAFTER_PREFIX)}
    foreign = (others - own) | heads if kinds == VERIFIER_KINDS else others - own - heads
    return {name: spec for name, spec in manifest.weights.items() if name not in foreign}


def _describe(manifest: Manifest, model: ModelInfo, kinds: Collection[str]) -> str:
    formats = _formats(model_weights(manifest, kinds))
    origin = {
        "none": f"{model.weight_dtype} weights",
        "keep": f"{formats} as stored",
    }.get(model.quant, f"{formats} rounded from the source")
    cache = "" if model.kv_dtype == "float32" else f", {model.kv_dtype} keys and values"
    return f"{origin}, {model.activations} activations{cache}"


def _formats(weights: Mapping[str, WeightSpec]) -> str:
    """The formats of a model's matrices, the one with most bytes first."""
    num_bytes: dict[str, int] = {}
    for key, weight in weights.items():
        # Packed matrices have three dimensions; the predictor is not the model's.
        own_name = key.removeprefix(DRAFTER_PREFIX)
        if len(weight.shape) == 3 and not own_name.startswith("predictor."):
            name = quantised_format(weight.dtype, weight.shape) or weight.dtype
            num_bytes[name] = num_bytes.get(name, 0) + weight.num_bytes
    return " + ".join(sorted(num_bytes, key=lambda name: (-num_bytes[name], name)))


def _memory(manifest: Manifest) -> dict[str, int]:
    """Bytes that decoding at the context limit needs beside torch itself."""
    footprint = _footprint(manifest, manifest.model, VERIFIER_KINDS)
    if manifest.drafter is not None:
        drafter = _footprint(manifest, manifest.drafter, DRAFTER_KINDS)
        footprint = beside(footprint, drafter)
    if isinstance(manifest.schedule.drafter, MedusaDrafter):
        # The logits of its heads, beside the verifier's.
        logits = 4 * _verify_rows(manifest) * _num_hidden(manifest)
        footprint = replace(footprint, workspace_bytes=footprint.workspace_bytes + logits)
    weights_bytes = sum(weight.num_bytes for weight in manifest.weights.values())
    footprint = replace(footprint, weights_bytes=weights_bytes)
    return {**msgspec.to_builtins(footprint), "total_bytes": footprint.total_bytes}


def _verify_rows(manifest: Manifest) -> int:
    return max((one.max_rows for one in manifest.graphs if one.kind == "verify"), default=1)


def _num_hidden(manifest: Manifest) -> int:
    """Values that the verifier's graphs give as hidden of a row."""
    outputs = [one for graph in manifest.graphs for one in graph.outputs if one.name == "hidden"]
    return outputs[0].shape[-1] if outputs else 0


def _footprint(manifest: Manifest, model: ModelInfo, kinds: tuple[GraphKind, ...]) -> Footprint:
    rows = dict.fromkeys(kinds, 1)
    for graph in manifest.graphs:
        if graph.kind in kinds:
            rows[graph.kind] = max(rows[graph.kind], graph.max_rows)
    weights = model_weights(manifest, kinds)
    widths = [_width(weight, model.vocab_size) for weight in weights.values()]
    widest = max((model.hidden_size, *widths))
    tree, prefill = (rows[kind] for kind in kinds)
    return Footprint(
        weights_bytes=sum(weight.num_bytes for weight in weights.values()),
        kv_bytes=kv_bytes(model.kv_layers, model.num_slots, model.kv_dtype),
        workspace_bytes=workspace_bytes(tree, prefill, model.vocab_size, widest),
    )


def _width(weight: WeightSpec, vocab_size: int) -> int:
    """The larger side of a packed matrix; 0 for the vocabulary's, whose outputs are logits."""
    if len(weight.shape) != 3:
        return 0
    name = quantised_format(weight.dtype, weight.shape)
    num_outputs = weight.shape[0] * PANEL
    num_inputs = weight.shape[1] * (FORMATS[name].group if name else 1)
    return 0 if num_outputs >= vocab_size else max(num_outputs, num_inputs)


def _tables(d: dict[str, Any]) -> Iterator[tuple[str, Table]]:
    file, model, weights = d["file"], d["model"], d["weights"]
    yield "File", _pairs({**file, "num_bytes": _size(file["num_bytes"])})
    yield from _target_tables(d["target"])
    yield "Model", _pairs({"verifier": d["verifier"], **_model_row(model)})
    if d["drafter"]:
        yield "Drafter", _pairs({"drafter": d["draft_model"], **_model_row(d["drafter"])})
    yield "Sources", _rows("role kind location revision licence files", map(_source, d["sources"]))
    yield "Graphs", _rows("name kind rows inputs constants size", map(_graph_row, d["graphs"]))
    largest = [
        (w["name"], w["dtype"], _list(w["shape"]), w["num_bytes"]) for w in weights["largest"]
    ]
    title = (
        f"Weights: {weights['num_tensors']} tensors, {_size(weights['num_bytes'])}; the largest"
    )
    yield title, _rows("name dtype shape bytes", largest)
    memory = {name.removesuffix("_bytes"): _size(value) for name, value in d["memory"].items()}
    yield f"Memory at {model['max_model_len']} tokens, beside torch itself", _pairs(memory)
    notes = d["profile"]
    others = notes["busy_share"]
    measured = {
        "other processes took": "not measured" if others is None else f"{others:.0%}",
        "warm-up": f"{notes['warmup_s']:.2f} s",
        "jumps": len(notes["jumps"]),
    }
    yield "Profile", _pairs(measured)
    yield "Latency, ms", _rows("graph rows context median spread", map(_latency, d["latency"]))
    yield from _schedule_tables(d["schedule"])
    yield "Text", _pairs({**d["text"], "golden prompts": d["num_golden"]})
    members = [(name, m["num_bytes"], m["sha256"][:16]) for name, m in d["members"].items()]
    yield "Members", _rows("name bytes sha256-starts", sorted(members))


def _model_row(model: dict[str, Any]) -> dict[str, Any]:
    layers, eos_ids = model["kv_layers"], _list(model["eos_ids"])
    return {**model, "kv_layers": len(layers), "eos_ids": eos_ids}


def _target_tables(target: dict[str, Any]) -> Iterator[tuple[str, Table]]:
    must, tuned = target["must_match"], target["tuned_for"]
    title = f"Target {target['name']}"
    yield f"{title}, must match", _pairs({**must, "isa": " ".join(must["isa"])})
    shown = {
        **{key: tuned[key] for key in ("device", "num_cores", "num_threads")},
        "memory": _size(tuned["memory_bytes"]),
        "read bandwidth": f"{tuned['read_bandwidth'] / 1e9:.1f} GB/s",
        "arithmetic": f"{tuned['flops'] / 1e9:.0f} GFLOP/s",
    }
    yield f"{title}, tuned for", _pairs(shown)


def _schedule_tables(schedule: dict[str, Any]) -> Iterator[tuple[str, Table]]:
    drafter = {
        key: f"{value:.3f}" if isinstance(value, float) else value
        for key, value in schedule["drafter"].items()
        if isinstance(value, str | int | float)
    }
    if "temperatures" in schedule["drafter"]:
        shares = schedule["drafter"]["temperatures"]
        drafter["temperatures"] = "/".join(f"{one:.2f}" for one in shares)
    if schedule["drafter"].get("token_ids"):
        drafter["draft ids"] = len(schedule["drafter"]["token_ids"])
    if schedule.get("ngram"):
        drafter["beside it"] = "ngram"
    shown = {
        "tree": schedule["tree"],
        "drafter": ", ".join(f"{key}={value}" for key, value in drafter.items()),
        "verify rows": _list(schedule["buckets"]),
        "host time per pass": f"{schedule['rest_s'] * 1e3:.2f} ms",
        "objective": schedule["objective"],
    }
    if schedule.get("depth"):
        shown["depth predictor"] = describe_depth(schedule["depth"])
    yield "Schedule", _pairs(shown)
    if schedule["candidates"]:
        rows = map(_candidate, schedule["candidates"])
        heads = "tree tokens/pass ms/token speedup measured-ms/token measured-speedup"
        yield "Candidates, as predicted and measured", _rows(heads, rows)


def describe_depth(depth: dict[str, Any]) -> str:
    """In words whether a depth predictor (its record in JSON types) is on, and what it brought."""
    low, high = depth["gain_interval"]
    gain = f"{depth['gain']:.3f}x [{low:.3f}, {high:.3f}]"
    return (
        f"{'on' if depth['is_on'] else 'off'}: {gain} of {depth['against']} in time per token on "
        f"{depth['num_measured']} held-out prompts, temperature {depth['temperature']:g}; "
        f"log-loss {depth['log_loss']:.3f}, of constant hazards {depth['constant_log_loss']:.3f}; "
        f"{depth['tree']}"
    )


def _source(source: dict[str, Any]) -> Row:
    files = source["files"]
    size = _size(sum(file["num_bytes"] for file in files))
    revision, licence = source["revision"] or "-", source["license"] or "not stated"
    return (
        source["role"],
        source["kind"],
        source["location"],
        revision,
        licence,
        f"{len(files)}, {size}",
    )


def _graph_row(graph: dict[str, Any]) -> Row:
    low, high = graph["min_rows"], graph["max_rows"]
    rows = str(low) if low == high else f"{low}-{high}"
    size = _size(graph["num_bytes"])
    return graph["name"], graph["kind"], rows, len(graph["inputs"]), graph["num_constants"], size


def _latency(point: dict[str, Any]) -> Row:
    median, spread = (f"{point[key] * 1e3:.2f}" for key in ("median_s", "spread_s"))
    return point["graph"], point["rows"], point["context"], median, spread


def _candidate(one: dict[str, Any]) -> Row:
    keys = ("mean_acceptance_length", "tpot_ms", "speedup", "measured_tpot_ms", "measured_speedup")
    numbers = (one[key] for key in keys)
    return one["tree"], *("-" if number is None else f"{number:.2f}" for number in numbers)


def _pairs(values: dict[str, Any]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None)
    for key, value in values.items():
        # Text: a file's own words are never taken for markup.
        table.add_row(Text(key.replace("_", " "), style="cyan"), Text(str(value), overflow="fold"))
    return table


def _rows(headings: str, rows: Iterable[Row]) -> Table:
    from rich.table import Table
    from rich.text import Text

    shown = list(rows)
    table = Table(box=None)
    for index, heading in enumerate(headings.split()):
        numeric = bool(shown) and isinstance(shown[0][index], int)
        justify: Literal["left", "right"] = "right" if numeric else "left"
        table.add_column(heading.replace("-", " "), justify=justify, overflow="fold")
    for row in shown:
        table.add_row(*(Text(str(value)) for value in row))
    return table


def _size(num_bytes: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes} B"


def _list(values: list[int]) -> str:
    return ", ".join(map(str, values)) or "-"
