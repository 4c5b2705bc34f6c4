"""Which format every matrix gets, and what the model then takes of memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from yggc.errors import SourceError
from yggc.models.matrices import find_matrices, tied_names
from yggrt.core.footprint import Footprint, kv_bytes, workspace_bytes
from yggrt.core.formats import FORMATS
from yggrt.core.schema import KvLayer

if TYPE_CHECKING:
    from yggc.config import BuildConfig
    from yggc.models.checkpoint import Checkpoint

# llama.cpp's four-bit files keep the vocabulary's matrices in more bits, too.
_ROUNDED = {"int8": ("q8_0", "q8_0"), "int4": ("q4_1", "q8_0")}


def choose_formats(
    model: Any,
    config: BuildConfig,
    checkpoint: Checkpoint | None,
    stored: tuple[str, str] | None = None,
) -> tuple[dict[str, str], list[str]]:
    """Formats of the quantised matrices by parameter name, tied ones once, and what a user should
    be told. `config.quant` is resolved; `keep` needs the checkpoint, or what its matrices and
    those of its vocabulary are `stored` in.
    """
    tied = tied_names(model)
    matrices = {name: one for name, one in find_matrices(model).items() if name not in tied}
    if config.quant == "none":
        return {}, []
    if config.quant == "keep" and stored is None:
        assert checkpoint is not None
        return _kept(checkpoint, config.dtype)
    body, vocabulary = stored if config.quant == "keep" and stored else _ROUNDED[config.quant]
    formats = {
        name: vocabulary if matrix.is_vocabulary else body
        for name, matrix in matrices.items()
        if matrix.num_inputs % FORMATS[body].group == 0
    }
    if not formats:
        raise SourceError(
            f"quant is {config.quant}, no matrix of the model has a multiple of "
            f"{FORMATS[body].group} inputs",
            "leave it out: this model stays in --dtype",
        )
    left = [name for name in matrices if name not in formats]
    notes = []
    if checkpoint is not None and checkpoint.stored_formats:
        notes.append("quant: what the file rounded is rounded again; keep takes it as stored")
    if left:
        notes.append(
            f"quant: {len(left)} of {len(matrices)} matrices stay in {config.dtype}, since their "
            f"inputs are no multiple of {FORMATS[body].group}; first {left[0]}"
        )
    return formats, notes


def _kept(checkpoint: Checkpoint, dtype: str) -> tuple[dict[str, str], list[str]]:
    formats = dict(checkpoint.stored_formats)
    notes = [f"quant: as stored, {describe_formats(formats)}"]
    if lost := checkpoint.not_kept:
        name, reason = next(iter(lost.items()))
        notes.append(
            f"quant: {len(lost)} quantised matrices become {dtype}; first {name}, which {reason}"
        )
    return formats, notes


def describe_formats(formats: Mapping[str, str]) -> str:
    """Each format with its number of matrices, the most used first."""
    counts: dict[str, int] = {}
    for form in formats.values():
        counts[form] = counts.get(form, 0) + 1
    most = sorted(counts, key=lambda form: (-counts[form], form))
    return ", ".join(f"{form} ({counts[form]})" for form in most)


def model_footprint(
    model: Any, config: BuildConfig, formats: Mapping[str, str], *, drafts: bool = False
) -> Footprint:
    """What the compiled model takes at its context limit, as the verifier or, with `drafts`, as
    the drafter; `config` is resolved for it. Caches are taken from the configuration, so they are
    an estimate for unusual attention. On a GPU norms and activations are bfloat16 as well.
    """
    value_bytes = 2 if config.on_gpu else 4
    tied = tied_names(model)
    matrices = find_matrices(model)
    weights = 0
    for name, parameter in model.named_parameters():
        matrix = matrices.get(name)
        if matrix is None:
            weights += value_bytes * parameter.numel()
        else:
            form = FORMATS[formats.get(tied.get(name, name), config.dtype)]
            weights += form.num_bytes(matrix.num_outputs, matrix.num_inputs)
    inner = [one for one in matrices.values() if not one.is_vocabulary]
    rows = config.drafter_widths[-1] if drafts else config.buckets[-1]
    most_rows = config.most_draft_rows if drafts else config.most_rows
    hf = model.config
    heads = getattr(hf, "num_key_value_heads", None) or hf.num_attention_heads
    dim = getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads
    layers = [KvLayer(num_heads=heads, key_dim=dim, value_dim=dim)] * hf.num_hidden_layers
    slots = config.max_model_len + most_rows
    widest = max((max(one.num_outputs, one.num_inputs) for one in inner), default=hf.hidden_size)
    return Footprint(
        weights_bytes=weights,
        kv_bytes=kv_bytes(layers, slots, config.kv_dtype),
        workspace_bytes=workspace_bytes(
            rows, config.prefill_buckets[-1], hf.vocab_size, widest, value_bytes
        ),
    )
