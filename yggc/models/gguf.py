"""A GGUF file as a Checkpoint: transformers' configuration and names over our own reading of the
container.

Tensors are dequantised one at a time, or taken over in their blocks. transformers' helpers say
which tensor is which and undo llama.cpp's changes (the q/k row order of Llama, the +1 of Gemma's
norms). What its configuration
leaves out is compared with the file and refused when it differs, since a model with the wrong rope
would still run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH_NAMES, get_tensor_name_map
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor

from yggc.errors import SourceError
from yggc.models.checkpoint import Checkpoint, StoredDtype, check_state, empty_model, wanted_state
from yggc.models.gguf_file import GgufFile
from yggc.models.matrices import Matrix, find_matrices
from yggc.models.source import ResolvedSource
from yggc.models.tokenizer import load_tokenizer
from yggrt.core.formats import FORMATS

# Several stored tensors make one parameter, or the model is not a plain decoder.
NOT_COVERED = frozenset(
    {
        "qwen2moe",
        "qwen3moe",
        "gpt-oss",
        "gpt_oss",
        "minimax-m2",
        "t5",
        "t5encoder",
        "mamba",
        "lfm2",
        "qwen35",
    }
    | {"qwen35moe", "deci", "gemma4"}
)
# Tensors beside the model's parameters: the factors are checked by `_check_rope`.
_ROPE_FACTORS = frozenset(
    {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}
)
_TIP = "give the model's safetensors checkpoint instead"


class GgufCheckpoint(Checkpoint):
    """One `.gguf` file."""

    def __init__(self, source: ResolvedSource) -> None:
        self._file = GgufFile(source.path)
        architecture = self._file.architecture
        if architecture in NOT_COVERED:
            raise SourceError(
                f"{source.path.name}: GGUF files of architecture {architecture!r} are not read",
                _TIP,
            )
        super().__init__(source, _read_config(source))
        check_configuration(self._file, self.config)
        model = empty_model(self.config)
        processor_class = TENSOR_PROCESSORS.get(architecture, TensorProcessor)
        self._processor = processor_class(config=self.config.to_dict())
        self._names = self._match(model)
        self._matrices = find_matrices(model)

    def _match(self, model: PreTrainedModel) -> dict[str, str]:
        """Model name -> name in the file."""
        mapped = {
            stored: name
            for stored, name in gguf_names(model, self._file.architecture).items()
            if stored in self._file.tensors
        }
        stored_by_name = {name: stored for stored, name in mapped.items()}
        unknown = sorted(set(self._file.tensors) - set(mapped) - _ROPE_FACTORS)
        if unknown:
            raise SourceError(
                f"{self.source.path.name}: tensor {unknown[0]!r} ({len(unknown)} in all) has no "
                "place in "
                f"{type(model).__name__}",
                _TIP,
            )
        # In the model's own order.
        names = {
            name: stored_by_name[name] for name in wanted_state(model) if name in stored_by_name
        }
        state = model.state_dict()
        shapes = {
            name: self._shape_in_model(stored, tuple(state[name].shape))
            for name, stored in names.items()
        }
        check_state(self.source.path.name, model, shapes)
        self._shapes = shapes
        return names

    def _shape_in_model(self, stored: str, wanted: tuple[int, ...]) -> tuple[int, ...]:
        # A Conv1D of the model is a transposed matrix of the file; `read` checks the result.
        shape = self._file.tensors[stored].shape
        return wanted if shape[::-1] == wanted else shape

    @property
    def tensor_names(self) -> tuple[str, ...]:
        return tuple(self._names)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def read(self, name: str) -> torch.Tensor:
        stored = self._names[name]
        tensor = torch.from_numpy(self._in_model(stored, self._file.read(stored))).contiguous()
        assert tuple(tensor.shape) == self._shapes[name], name
        return tensor

    def _in_model(self, stored: str, values: np.ndarray) -> np.ndarray:
        """What the model has where the file has `values`."""
        # A processor that handles a tensor by itself leaves it here and answers with no name.
        aside: dict[str, torch.Tensor] = {}
        result = self._processor.process(
            weights=values, name=stored, parsed_parameters={"tensors": aside}
        )
        processed: np.ndarray = (
            result.weights if result.name is not None else next(iter(aside.values())).numpy()
        )
        return processed

    @property
    def stored_formats(self) -> Mapping[str, str]:
        return {
            name: self._file.tensors[self._names[name]].type_name.lower()
            for name, found in self._quantised.items()
            if not isinstance(found, str)
        }

    @property
    def not_kept(self) -> Mapping[str, str]:
        return {name: why for name, why in self._quantised.items() if isinstance(why, str)}

    def release(self) -> None:
        self._file.release()

    def read_blocks(self, name: str) -> np.ndarray:
        order = self._quantised[name]
        assert not isinstance(order, str), order
        return self._file.read_bytes(self._names[name])[order]

    @cached_property
    def _quantised(self) -> dict[str, np.ndarray | str]:
        """For each quantised matrix the file's rows in the model's order, or why it has none."""
        found: dict[str, np.ndarray | str] = {}
        for name, matrix in self._matrices.items():
            tensor = self._file.tensors.get(self._names.get(name, ""))
            if tensor is None or not tensor.is_quantised:
                continue
            if tensor.type_name.lower() not in FORMATS:
                found[name] = f"is of type {tensor.type_name}"
                continue
            order = self._row_order(tensor.name, tensor.shape, matrix)
            found[name] = "does not keep its rows in the model" if order is None else order
        return found

    def _row_order(self, stored: str, shape: tuple[int, ...], matrix: Matrix) -> np.ndarray | None:
        """Where row i of a matrix lies in the file; None if its blocks do not stay whole.

        The processor tells: it is given the number of each value's row and column.
        """
        if shape != (matrix.num_outputs, matrix.num_inputs):
            return None
        numbers = [np.arange(size, dtype=np.int32) for size in shape]
        given = np.broadcast_to(numbers[0][:, None], shape)
        rows = self._in_model(stored, given)
        if rows is given and not matrix.transposed:
            return numbers[0]
        columns = self._in_model(stored, np.broadcast_to(numbers[1], shape))
        if matrix.transposed:
            rows, columns = rows.T, columns.T
        if rows.shape != shape or not np.array_equal(np.sort(rows[:, 0]), numbers[0]):
            return None
        whole = (rows == rows[:, :1]).all() and (columns == numbers[1]).all()
        return np.array(rows[:, 0]) if whole else None

    @property
    def dtype(self) -> StoredDtype:
        return "float32"

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        if "tokenizer.ggml.tokens" not in self._file.metadata:
            return None
        return self._checked(load_tokenizer(self.source.path.parent, self.source.path.name))

    def _stated_ends(self) -> tuple[Any, ...]:
        names = (f"tokenizer.ggml.{key}_token_id" for key in ("eos", "eot", "eom"))
        return tuple(
            int(self._file.number(name, 0)) for name in names if name in self._file.metadata
        )


def gguf_names(model: PreTrainedModel, architecture: str) -> dict[str, str]:
    """Name in a GGUF file -> name in `model`, by the gguf package's table of both."""
    kind = next((key for key, name in MODEL_ARCH_NAMES.items() if name == architecture), None)
    if kind is None:
        raise SourceError(f"the gguf package has no names for architecture {architecture!r}", _TIP)
    table = get_tensor_name_map(kind, model.config.num_hidden_layers)
    names: dict[str, str] = {}
    state = list(model.state_dict())
    # The table has some models by the names of their base model, so leading parts are dropped by
    # and by; a match with more of the name wins.
    for dropped in range(max(name.count(".") for name in state)):
        for name in state:
            base, _, suffix = name.rpartition(".")
            stored = table.get_name(".".join(base.split(".")[dropped:]))
            if stored is not None:
                names.setdefault(f"{stored}.{suffix}", name)
    return names


def _read_config(source: ResolvedSource) -> PreTrainedConfig:
    try:
        return AutoConfig.from_pretrained(source.path.parent, gguf_file=source.path.name)
    except (ValueError, KeyError, IndexError) as error:
        raise SourceError(
            f"{source.path.name}: transformers cannot read its configuration: "
            f"{str(error).splitlines()[0]}",
            _TIP,
        ) from error


def check_configuration(file: GgufFile, config: PreTrainedConfig) -> None:
    """Refuses a file whose metadata says something else than the configuration made from it."""
    scaling = file.metadata.get(f"{file.architecture}.rope.scaling.type", "none")
    factors = sorted(_ROPE_FACTORS & set(file.tensors))
    if scaling != "none" or factors:
        raise SourceError(
            f"{file.path.name}: has rope scaling ({factors[0] if factors else scaling}), which "
            "transformers does not "
            "read from GGUF files",
            _TIP,
        )
    for key, read in _FACTS.items():
        name = f"{file.architecture}.{key}"
        if name not in file.metadata:
            continue
        stated = file.number(name, 0.0)
        found = read(config)
        if not any(
            value is not None and abs(value - stated) <= 1e-6 * abs(stated) for value in found
        ):
            raise SourceError(
                f"{file.path.name}: {key} is {stated}, the configuration made from it has "
                f"{found[0]}",
                _TIP,
            )


def _rope(config: PreTrainedConfig, key: str) -> list[Any]:
    rope = config.rope_parameters
    # Models with two kinds of layers have one set of rope parameters for each.
    sets = rope.values() if all(isinstance(value, dict) for value in rope.values()) else [rope]
    return [one.get(key) for one in sets]


def _head_dim(config: PreTrainedConfig) -> int:
    return int(
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )


def _rope_dims(config: PreTrainedConfig) -> list[Any]:
    return [_head_dim(config) * (factor or 1) for factor in _rope(config, "partial_rotary_factor")]


def _attribute(name: str) -> Callable[[PreTrainedConfig], list[Any]]:
    return lambda config: [getattr(config, name, None)]


# What of the metadata changes the model's arithmetic -> what the configuration says about it.
_FACTS: dict[str, Callable[[PreTrainedConfig], list[Any]]] = {
    "rope.freq_base": lambda config: _rope(config, "rope_theta"),
    "rope.dimension_count": _rope_dims,
    "attention.key_length": lambda config: [_head_dim(config)],
    "attention.value_length": lambda config: [_head_dim(config)],
    "attention.sliding_window": _attribute("sliding_window"),
    "attn_logit_softcapping": _attribute("attn_logit_softcapping"),
    "final_logit_softcapping": _attribute("final_logit_softcapping"),
    "logit_scale": _attribute("logit_scale"),
    "embedding_scale": _attribute("embedding_multiplier"),
    "residual_scale": _attribute("residual_multiplier"),
    "attention.scale": _attribute("attention_multiplier"),
}
