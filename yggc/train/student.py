"""A small language model that learns from the verifier: its shape, and its folder."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

from yggc.models.checkpoint import Checkpoint, context_limit, wanted_state
from yggc.models.eagle import plain_rope
from yggc.train.head import replace_file, replace_model


def llama_config(
    checkpoint: Checkpoint, num_layers: int, hidden_size: int, num_heads: int, *, tied: bool
) -> LlamaConfig:
    """A Llama model with the verifier's tokens, context and end ids, in Llama's proportions.

    tied: the output head is the embedding.
    """
    config = checkpoint.config
    return LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=hidden_size,
        # A multiple of the blocks that matrices are rounded in.
        intermediate_size=-(-8 * hidden_size // 3 // 32) * 32,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        max_position_embeddings=context_limit(config),
        rope_parameters=plain_rope(config),
        bos_token_id=config.bos_token_id,
        eos_token_id=list(checkpoint.eos_ids()) or None,
        pad_token_id=None,
        tie_word_embeddings=tied,
    )


def default_heads(hidden_size: int) -> int:
    """Heads of 64 where that divides, else of the next larger even size that does."""
    most = max(1, hidden_size // 64)
    return next((n for n in range(most, 0, -1) if hidden_size % (2 * n) == 0), 1)


def write_student(
    folder: Path, model: PreTrainedModel, weights: Mapping[str, torch.Tensor], verifier: Checkpoint
) -> None:
    """Replaces the model in the folder: `config.json`, the verifier's tokenizer, and last the
    weights in bfloat16, `weights` in place of the parameters; each file is whole or as it was.
    """
    if verifier.tokenizer is not None:
        with TemporaryDirectory() as scratch:
            _tokenizer(verifier).save_pretrained(scratch)
            for path in sorted(Path(scratch).iterdir()):
                replace_file(folder / path.name, partial(shutil.copyfile, path))
    fields = model.config.to_diff_dict() | {"architectures": [type(model).__name__]}
    fields |= {"dtype": "bfloat16"}
    # Where the verifier lay.
    fields.pop("_name_or_path", None)
    state = model.state_dict()
    tensors = {
        name: weights.get(name, state[name]).detach().cpu().to(torch.bfloat16).contiguous()
        for name in wanted_state(model)
    }
    replace_model(folder, fields, tensors)


def _tokenizer(verifier: Checkpoint) -> PreTrainedTokenizerFast:
    """The tokenizer as the project reads it, in the class that takes `tokenizer.json` as it is:
    what files that name no class mean depends on the architecture beside them.
    """
    text = verifier.text_info()
    assert verifier.tokenizer is not None
    named = {
        "bos_token": text.bos_token,
        "eos_token": text.eos_token,
        "pad_token": text.pad_token,
        "unk_token": text.unk_token,
    }
    made = PreTrainedTokenizerFast(
        tokenizer_object=verifier.tokenizer.backend_tokenizer,
        model_max_length=context_limit(verifier.config),
        **{name: token for name, token in named.items() if token},
    )
    made.chat_template = text.chat_template or None
    return made
