"""A predictor and its traces as files: safetensors with what they were made for, and ONNX."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from yggc.depth.hazards import Predictor
from yggc.depth.traces import Traces
from yggc.errors import PreflightError, RecipeError, SourceError
from yggc.train.head import replace_file
from yggrt.drafters.calibrate import Recording

WEIGHTS, ONNX = "predictor.safetensors", "predictor.onnx"
_OPSET = 17
_TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class Traced:
    """Traces with the prompts, answers and categories that they are of."""

    traces: Traces
    recordings: Sequence[Recording]
    categories: Sequence[str]


def check_onnx() -> None:
    """Before a run: PreflightError without onnx."""
    if importlib.util.find_spec("onnx") is None:
        raise PreflightError(
            "--weights writes ONNX too and needs onnx, which is not installed",
            "pip install 'yggdrasil-decode[onnx]', or leave --weights out",
        )


def write_predictor(folder: Path, predictor: Predictor, facts: Mapping[str, Any]) -> None:
    """Writes `predictor.safetensors` and `predictor.onnx`, which gives `hazards` [n, D_max] of
    `hidden` [n, d]; both hold `facts`. Raises RecipeError where they cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        data = save(_tensors(predictor), {key: json.dumps(one) for key, one in facts.items()})
        replace_file(folder / WEIGHTS, lambda path: path.write_bytes(data))
        model = onnx_model(predictor, facts).SerializeToString()
        replace_file(folder / ONNX, lambda path: path.write_bytes(model))
    except OSError as error:
        raise RecipeError(
            f"--weights {folder}: cannot be written: {error.strerror}", "give another folder"
        ) from error


def read_predictor(folder: Path, wanted: Mapping[str, Any]) -> Predictor:
    """What `write_predictor` wrote; SourceError for one that was made for something else than
    `wanted`, with both values."""
    found, facts = _read(folder / WEIGHTS, "a folder of `yggc train depth --weights`")
    try:
        predictor = Predictor(**found)
    except TypeError as error:
        raise SourceError(
            f"{folder / WEIGHTS}: has the tensors {', '.join(sorted(found))}, no predictor's",
            "give a folder of `yggc train depth --weights`",
        ) from error
    _check(folder / WEIGHTS, facts, wanted, "train one for this bundle, without --from")
    return predictor


def onnx_model(predictor: Predictor, facts: Mapping[str, Any]) -> Any:
    """An ONNX model of the predictor, checked against plain torch by onnx's own evaluator."""
    from onnx import TensorProto, checker, helper, numpy_helper
    from onnx.reference import ReferenceEvaluator

    tensors = _tensors(predictor)
    max_depth, hidden_size = len(predictor.decode_bias), predictor.encode_weight.shape[1]
    nodes = [
        helper.make_node("Gemm", ["hidden", *list(tensors)[:2]], ["encoded"], transB=1),
        helper.make_node("Sigmoid", ["encoded"], ["gates"]),
        helper.make_node("Mul", ["encoded", "gates"], ["units"]),
        helper.make_node("Gemm", ["units", *list(tensors)[2:]], ["logits"], transB=1),
        helper.make_node("Sigmoid", ["logits"], ["hazards"]),
    ]
    graph = helper.make_graph(
        nodes,
        "depth_predictor",
        [helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["rows", hidden_size])],
        [helper.make_tensor_value_info("hazards", TensorProto.FLOAT, ["rows", max_depth])],
        [numpy_helper.from_array(one.numpy(), name) for name, one in tensors.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)])
    helper.set_model_props(model, {key: json.dumps(one) for key, one in facts.items()})
    checker.check_model(model, full_check=True)
    rows = torch.randn(3, hidden_size, generator=torch.Generator().manual_seed(0))
    [given] = ReferenceEvaluator(model).run(None, {"hidden": rows.numpy()})
    away = (torch.from_numpy(given) - predictor.hazards(rows)).abs().max()
    assert away < _TOLERANCE, f"the ONNX model is {away} off"
    return model


def write_traces(path: Path, traced: Traced, facts: Mapping[str, Any]) -> None:
    """Traces with what they are of; RecipeError where they cannot be written."""
    tensors = {one.name: getattr(traced.traces, one.name).clone() for one in fields(Traces)}
    for name in ("prompt", "output"):
        ids = [list(getattr(one, name)) for one in traced.recordings]
        tensors[f"{name}_sizes"] = torch.tensor([len(one) for one in ids])
        tensors[f"{name}_ids"] = torch.tensor([token for one in ids for token in one])
    held = {**facts, "categories": list(traced.categories)}
    data = save(tensors, {key: json.dumps(one) for key, one in held.items()})
    try:
        replace_file(path, lambda partial: partial.write_bytes(data))
    except OSError as error:
        raise RecipeError(
            f"--traces {path}: cannot be written: {error.strerror}", "name another file"
        ) from error


def read_traces(path: Path, wanted: Mapping[str, Any]) -> Traced:
    """What `write_traces` wrote; SourceError for traces of something else than `wanted`."""
    found, facts = _read(path, "a file that `yggc train depth --traces` wrote")
    _check(path, facts, wanted, "leave --traces out, or name a new file")
    texts = []
    for name in ("prompt", "output"):
        sizes: list[int] = found[f"{name}_sizes"].tolist()
        texts.append([one.tolist() for one in found[f"{name}_ids"].split(sizes)])
    recordings = [Recording(*pair) for pair in zip(*texts, strict=True)]
    traces = Traces(**{one.name: found[one.name] for one in fields(Traces)})
    return Traced(traces, recordings, json.loads(facts["categories"]))


def _tensors(predictor: Predictor) -> dict[str, torch.Tensor]:
    return {one.name: getattr(predictor, one.name).contiguous() for one in fields(Predictor)}


def _read(path: Path, wanted: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise SourceError(f"{path}: cannot be read: {error}", f"give {wanted}") from error


def _check(path: Path, facts: Mapping[str, str], wanted: Mapping[str, Any], tip: str) -> None:
    for key, value in wanted.items():
        found = json.loads(facts.get(key, "null"))
        if found != value:
            raise SourceError(
                f"{path}: its {key.replace('_', ' ')} is {found!r}, this run's is {value!r}", tip
            )
