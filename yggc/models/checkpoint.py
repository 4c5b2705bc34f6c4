"""One reader for models in any source: configuration, one tensor at a time, tokenizer, end ids.

Tensor names are those of the transformers model
(`AutoModelForCausalLM.from_config(checkpoint.config)`), each tied parameter once. Opening checks
that every parameter is there with the right shape and reads no tensor.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import safe_open
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming, rename_source_key
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from yggc.errors import SourceError
from yggc.heads import is_head
from yggc.models import shards
from yggc.models.matrices import tied_names
from yggc.models.source import ResolvedSource, check_config
from yggc.models.tokenizer import check_vocabulary, describe_text, end_ids, load_tokenizer
from yggrt.core.schema import TextInfo

StoredDtype = Literal["float32", "float16", "bfloat16"]
_DTYPES: dict[str, StoredDtype] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# Buffers that old checkpoints carry and modelling code computes anew.
_COMPUTED = (
    ".rotary_emb.inv_freq",
    ".attn.bias",
    ".attn.masked_bias",
    ".attention.bias",
    ".attention.masked_bias",
)


class Checkpoint(ABC):
    """A model on disk. `notes` are things a user should be told."""

    def __init__(self, source: ResolvedSource, config: PreTrainedConfig) -> None:
        self.source = source
        self.config = config
        self.license = source.license
        self.notes: tuple[str, ...] = ()

    @property
    @abstractmethod
    def tensor_names(self) -> tuple[str, ...]:
        """Names of the model's state, in the model's order, tied ones once."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it."""

    @abstractmethod
    def read(self, name: str) -> torch.Tensor:
        """One tensor in its stored dtype (float32 if it was quantised), contiguous, on the CPU."""

    @property
    @abstractmethod
    def dtype(self) -> StoredDtype:
        """The dtype of most of the stored values; `float32` for a quantised file."""

    @cached_property
    @abstractmethod
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The transformers tokenizer, None if the model has none."""

    @property
    def stored_formats(self) -> Mapping[str, str]:
        """Formats of the quantised matrices that can be taken over as they are stored; none but in
        a GGUF file.
        """
        return {}

    @property
    def not_kept(self) -> Mapping[str, str]:
        """The other quantised matrices, each with the reason why it cannot be taken over."""
        return {}

    def read_blocks(self, name: str) -> np.ndarray:
        """The blocks of a matrix of `stored_formats`: uint8 [num_outputs, bytes], rows in the
        model's order.
        """
        raise AssertionError(f"{name} is not stored in blocks")

    @abstractmethod
    def release(self) -> None:
        """Gives back the memory of what was read; what is read later is mapped anew."""

    @property
    def num_parameters(self) -> int:
        return sum(math.prod(self.shape(name)) for name in self.tensor_names)

    def tokenizer_json(self) -> bytes | None:
        """The tokenizer in the `tokenizers` library's format; None for a model that works on ids
        alone.
        """
        return (
            None if self.tokenizer is None else self.tokenizer.backend_tokenizer.to_str().encode()
        )

    def text_info(self) -> TextInfo:
        """Chat template and special tokens; empty without a tokenizer."""
        return TextInfo() if self.tokenizer is None else describe_text(self.tokenizer)

    def eos_ids(self) -> tuple[int, ...]:
        """All ids that end a generation: generation config, config and tokenizer together,
        ascending.
        """
        from_tokenizer = None if self.tokenizer is None else self.tokenizer.eos_token_id
        stated = (self.config.eos_token_id, from_tokenizer, *self._stated_ends())
        return end_ids(self.config.vocab_size, *stated)

    def _stated_ends(self) -> tuple[Any, ...]:
        return ()

    def _checked(
        self, tokenizer: PreTrainedTokenizerBase | None
    ) -> PreTrainedTokenizerBase | None:
        note = None if tokenizer is None else check_vocabulary(tokenizer, self.config.vocab_size)
        self.notes += () if note is None else (note,)
        return tokenizer


class DirectoryCheckpoint(Checkpoint):
    """A Hugging Face directory with safetensors."""

    def __init__(self, source: ResolvedSource) -> None:
        super().__init__(source, read_config(source.path))
        self._stored = shards.read_headers(shards.find_shards(source.path))
        self._files: dict[Path, Any] = {}
        model = empty_model(self.config)
        self._names = self._match(model)

    def _match(self, model: PreTrainedModel) -> dict[str, str]:
        """Model name -> stored name."""
        # Renamings only: a checkpoint whose tensors must be joined or split is refused as
        # incomplete.
        steps = get_model_conversion_mapping(model)
        renamings = [step for step in steps if isinstance(step, WeightRenaming)]
        state = model.state_dict()
        named = {
            rename_source_key(key, renamings, [], model.base_model_prefix, state)[0]: key
            for key in self._stored
        }
        tied = tied_names(model)
        names = {name: named[name] for name in wanted_state(model) if name in named}
        joined = len(steps) > len(renamings)
        if joined and len(names) < len(wanted_state(model)):
            raise SourceError(
                f"{self.source.path}: architecture {self.config.model_type!r} joins or splits "
                "stored tensors as it loads (mostly a mixture of experts), which is not covered",
                "docs/architecture.md lists the covered families",
            )
        check_state(
            str(self.source.path),
            model,
            {name: self._stored[key].shape for name, key in names.items()},
        )
        self._check_tied(
            {named[copy]: names[name] for copy, name in tied.items() if copy in named}
        )
        unused = sorted(
            key for name, key in named.items() if name not in names and name not in tied
        )
        unused = [name for name in unused if not name.endswith(_COMPUTED)]
        if unused:
            self.notes += (
                f"{len(unused)} stored tensors are not part of the model, first {unused[0]!r}",
            )
        return names

    def _check_tied(self, pairs: Mapping[str, str]) -> None:
        """`pairs`: stored tensors that the configuration says are equal."""
        for copy, original in pairs.items():
            if not torch.equal(self._read_stored(copy), self._read_stored(original)):
                raise SourceError(
                    f"{self.source.path}: config.json ties {copy!r} to {original!r}, "
                    "the stored tensors differ",
                    "set tie_word_embeddings to false in config.json, or save the model again",
                )

    @property
    def tensor_names(self) -> tuple[str, ...]:
        return tuple(self._names)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._stored[self._names[name]].shape

    def read(self, name: str) -> torch.Tensor:
        return self._read_stored(self._names[name])

    def release(self) -> None:
        self._files.clear()

    def _read_stored(self, key: str) -> torch.Tensor:
        file = self._stored[key].file
        if file not in self._files:
            self._files[file] = safe_open(file, framework="pt", device="cpu")
        tensor: torch.Tensor = self._files[file].get_tensor(key)
        return tensor

    @property
    def dtype(self) -> StoredDtype:
        return stored_dtype(self._stored[key] for key in self._names.values())

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        return self._checked(load_tokenizer(self.source.path))

    def _stated_ends(self) -> tuple[Any, ...]:
        path = self.source.path / "generation_config.json"
        if not path.is_file():
            return ()
        try:
            stated = json.loads(path.read_bytes())
            ids = stated.get("eos_token_id")
            if not all(
                isinstance(one, int) for one in (ids if isinstance(ids, list) else [ids or 0])
            ):
                raise ValueError(f"eos_token_id is {ids!r}, wanted a token id or a list of them")
        except (ValueError, AttributeError, RecursionError) as error:
            raise SourceError(f"{path}: is not valid: {error}", "fetch the file again") from error
        return (ids,)


def stored_dtype(tensors: Iterable[shards.StoredTensor]) -> StoredDtype:
    """The dtype of most of the values."""
    sizes: dict[str, int] = {}
    for stored in tensors:
        sizes[stored.dtype] = sizes.get(stored.dtype, 0) + math.prod(stored.shape)
    return _DTYPES[max(sizes, key=lambda dtype: sizes[dtype])]


def open_drafter(source: ResolvedSource, verifier: Checkpoint) -> Checkpoint:
    """As `open_checkpoint`, of a model that drafts, which may be a head over the verifier."""
    from yggc.models.head import HeadCheckpoint, layout_of

    layout = None if source.is_gguf else layout_of(source.path)
    return open_checkpoint(source) if layout is None else HeadCheckpoint(source, verifier, layout)


def open_checkpoint(source: ResolvedSource) -> Checkpoint:
    """The reader for a resolved source; SourceError if the model is not whole."""
    if not source.is_gguf and is_head(check_config(source.path)):
        raise SourceError(
            f"{source.path}: is a head that drafts for a verifier, wanted a whole model",
            "give the verifier with --verifier and this with --drafter",
        )
    if source.is_gguf:
        from yggc.models.gguf import GgufCheckpoint

        return GgufCheckpoint(source)
    return DirectoryCheckpoint(source)


def read_config(folder: Path) -> PreTrainedConfig:
    """The configuration of a model directory; SourceError if transformers refuses it."""
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # each configuration class checks in its own way
        raise SourceError(
            f"{folder / 'config.json'}: transformers cannot read it: {one_line(error)}",
            "correct the value, or fetch the file again",
        ) from error


def one_line(error: BaseException) -> str:
    """An exception's text for the middle of a message."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def context_limit(config: PreTrainedConfig) -> int:
    """The longest context in tokens; a configuration that states none has no limit."""
    return int(getattr(config, "max_position_embeddings", 1 << 30))


def empty_model(config: PreTrainedConfig) -> PreTrainedModel:
    """The causal model of `config` without storage; SourceError if transformers has none or cannot
    make it, or if its attention looks ahead.
    """
    kind = config.model_type
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise SourceError(
            f"architecture {kind!r} is not a decoder-only language model",
            "take a causal language model",
        )
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except Exception as error:  # modelling code fails in its own ways on values it does not know
        raise SourceError(
            f"architecture {kind!r}: transformers makes no model of its configuration: "
            f"{type(error).__name__}: {one_line(error)}",
            "correct config.json, or fetch it again",
        ) from error
    if any(getattr(module, "is_causal", True) is False for module in model.modules()):
        raise SourceError(
            f"architecture {kind!r} attends in both directions as it is configured, wanted causal "
            "attention only",
            "take a causal language model",
        )
    return model


def wanted_state(model: PreTrainedModel) -> list[str]:
    """Names of the model's state, tied parameters once."""
    tied = tied_names(model)
    return [name for name in model.state_dict() if name not in tied]


def check_state(where: str, model: PreTrainedModel, found: Mapping[str, tuple[int, ...]]) -> None:
    """Refuses a checkpoint that lacks part of the model or has it in another shape."""
    state = model.state_dict()
    wanted = wanted_state(model)
    missing = [name for name in wanted if name not in found]
    if missing:
        raise SourceError(
            f"{where}: {len(missing)} of {len(wanted)} tensors of {type(model).__name__} are "
            "missing, "
            f"first {missing[0]!r}",
            "the files are incomplete, or are not in the form that transformers saves",
        )
    for name in wanted:
        if tuple(state[name].shape) != tuple(found[name]):
            raise SourceError(
                f"{where}: tensor {name!r} has shape {list(found[name])}, the configuration wants "
                f"{list(state[name].shape)}",
                "weights and configuration belong to different models",
            )
