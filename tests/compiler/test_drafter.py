"""Which models may draft for which, what a drafter is built as, and what both take."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import byte_level, metaspace
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.models.gemma3.configuration_gemma3 import Gemma3TextConfig

from yggc.config import BuildConfig, load_config
from yggc.errors import SourceError
from yggc.models.drafter import check_same_tokens, drafter_options, first_layers
from yggc.models.eagle import EagleConfig


def wrapped(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def swapped(first: int, second: int) -> PreTrainedTokenizerFast:
    """The byte-level tokenizer with two entries of its vocabulary exchanged."""
    plain = json.loads(byte_level().to_str())
    names = {token_id: token for token, token_id in plain["model"]["vocab"].items()}
    vocab = plain["model"]["vocab"]
    vocab[names[first]], vocab[names[second]] = second, first
    return wrapped(Tokenizer.from_str(json.dumps(plain)))


def test_equal_tokenizers_pass() -> None:
    check_same_tokens(wrapped(byte_level()), wrapped(byte_level()))
    check_same_tokens(None, None)


def test_the_first_id_that_differs_is_named_with_both_tokens() -> None:
    verifier, drafter = wrapped(byte_level()), swapped(300, 290)
    names = verifier.convert_ids_to_tokens([290, 300])
    with pytest.raises(SourceError, match="drafter has another tokenizer: id 290 is") as refusal:
        check_same_tokens(verifier, drafter)
    assert f"{names[1]!r} to it and {names[0]!r} to the verifier" in refusal.value.message
    with pytest.raises(SourceError, match="id 0 is"):
        check_same_tokens(verifier, wrapped(metaspace()))


def test_fewer_ordinary_tokens_are_another_tokenizer() -> None:
    """Its merges end earlier: text would be cut in another way than the model learned."""
    plain = json.loads(byte_level().to_str())
    last = max(plain["model"]["vocab"].values())
    plain["model"]["vocab"] = {t: i for t, i in plain["model"]["vocab"].items() if i != last}
    plain["model"]["merges"].pop()
    plain["added_tokens"] = [one for one in plain["added_tokens"] if one["id"] < last]
    with pytest.raises(SourceError, match=f"id {last} is None to it"):
        check_same_tokens(wrapped(byte_level()), wrapped(Tokenizer.from_str(json.dumps(plain))))


def test_added_tokens_that_one_lacks_are_no_difference() -> None:
    more = byte_level()
    more.add_special_tokens(["<|tool|>"])
    check_same_tokens(wrapped(more), wrapped(byte_level()))
    check_same_tokens(wrapped(byte_level()), wrapped(more))


@pytest.mark.parametrize("has", ["verifier", "drafter"])
def test_a_tokenizer_on_one_side_alone_is_refused(has: str) -> None:
    pair: dict[str, Any] = {"verifier": None, "drafter": None, has: wrapped(byte_level())}
    with pytest.raises(SourceError, match=f"the {has} has a tokenizer, the .* has none"):
        check_same_tokens(pair["verifier"], pair["drafter"])


def test_first_layers_keep_all_but_the_depth() -> None:
    config = Gemma3TextConfig(
        num_hidden_layers=4,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )
    cut = first_layers(config, 3)
    assert cut.num_hidden_layers == 3
    assert cut.layer_types == ["sliding_attention", "full_attention", "sliding_attention"]
    assert config.num_hidden_layers == len(config.layer_types) == 4
    assert first_layers(config, 0) is config
    with pytest.raises(SourceError, match="self:5, the verifier has 4 layers"):
        first_layers(config, 5)


def resolved(**flags: Any) -> BuildConfig:
    needed = {"verifier": "org/large", "output": "x.ygg", "target": "cpu", "max_model_len": 128}
    config, _ = load_config(None, {**needed, "dtype": "bfloat16", "quant": "int8", **flags})
    return config


def test_own_layers_take_the_verifiers_formats_unless_told_otherwise() -> None:
    config = resolved(drafter="self:2", activations="int8", kv_dtype="float32")
    options, notes = drafter_options(config, LlamaConfig(), 2048)
    assert (options.dtype, options.quant, options.activations) == ("bfloat16", "int8", "int8")
    assert (options.max_model_len, notes) == (128, [])
    config = resolved(drafter="self", drafter_quant="int4", drafter_dtype="float32")
    options, _ = drafter_options(config, LlamaConfig(), 2048)
    assert (options.dtype, options.quant, options.activations) == ("float32", "int4", "auto")


def test_another_model_is_resolved_by_its_own_file_and_context() -> None:
    options, notes = drafter_options(resolved(drafter="org/small"), LlamaConfig(), 32)
    assert (options.dtype, options.quant, options.max_model_len) == ("auto", "auto", 32)
    assert "its context of 32 tokens is shorter than the verifier's 128" in notes[0]


@pytest.mark.parametrize(("size", "wanted"), [(64, "int8"), (48, "none")])
def test_a_head_is_rounded_where_its_size_allows(size: int, wanted: str) -> None:
    head = EagleConfig(hidden_size=size, intermediate_size=96, num_attention_heads=4)
    options, notes = drafter_options(resolved(drafter="head"), head, 2048)
    assert (options.quant, options.activations) == (wanted, "auto")
    assert f"quant: auto is {wanted}, for a head" in notes
    given = resolved(drafter="head", drafter_quant="int4")
    assert drafter_options(given, head, 2048)[0].quant == "int4"


def yggc(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "yggc", "build", *arguments, "--gpu", "cpu"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_dry_run_counts_the_drafter(llama_dir: Path, tmp_path: Path) -> None:
    common = ["--verifier", str(llama_dir), "-o", str(tmp_path / "x.ygg"), "--json", "--dry-run"]
    common += ["--work-dir", str(tmp_path / "work"), "--dtype", "float32"]
    planned = {}
    for name, flags in {
        "ngram": [],
        "self": ["--drafter", "self:1"],
        "other": ["--drafter", str(llama_dir), "--drafter-widths", "1,8"],
    }.items():
        done = yggc(*common, *flags)
        assert done.returncode == 0, done.stderr
        planned[name] = json.loads(done.stdout)["estimate"]
    ngram, own, other = planned["ngram"], planned["self"], planned["other"]
    assert own["graphs"][-4:] == [
        "draft_001",
        "draft_004",
        "draft_prefill_064",
        "draft_prefill_256",
    ]
    assert "draft_008" in other["graphs"]
    assert own["weights_bytes"] == ngram["weights_bytes"]
    assert other["weights_bytes"] == 2 * ngram["weights_bytes"]
    assert ngram["kv_bytes"] < own["kv_bytes"] < other["kv_bytes"]
    assert ngram["compile_s"] < own["compile_s"] < other["compile_s"]


def test_a_build_with_another_tokenizer_is_refused_before_it_compiles(
    llama_dir: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    LlamaForCausalLM(LlamaConfig.from_pretrained(llama_dir)).save_pretrained(other)
    swapped(300, 290).save_pretrained(other)
    flags = ["--verifier", str(llama_dir), "--drafter", str(other)]
    flags += ["-o", str(tmp_path / "x.ygg"), "--work-dir", str(tmp_path / "work")]
    done = yggc(*flags)
    assert done.returncode == 2
    error = " ".join(done.stderr.split())
    assert "drafter has another tokenizer: id 290" in error
    assert "Traceback" not in done.stderr
    done = yggc(*flags, "--drafter-sha256", "0" * 64)
    assert done.returncode == 2
    assert "drafter_sha256 is given" in " ".join(done.stderr.split())
