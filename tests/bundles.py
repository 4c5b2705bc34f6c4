"""Real bundles for tests, built by the command line once and kept below `.cache/`, which a fresh
clone does not have.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import gguf
import torch
from drafting import prompts as random_prompts
from filelock import FileLock
from gguf_files import write_llama
from safetensors.torch import save_file
from tiny_tokenizers import CHATML, byte_level
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from yggc.models.eagle import EagleForCausalLM, head_config
from yggc.models.eagle3 import Eagle3ForCausalLM, head3_config
from yggc.models.medusa import MedusaForCausalLM, medusa_config

ROOT = Path(__file__).parent.parent
CACHE = ROOT / ".cache"
WORK = CACHE / "work"
HEAD = ROOT / "artifacts/drafters/smollm2-135m-eagle"
RECIPE = ROOT / "artifacts/recipes/smollm2-135m-cpu-float32.toml"

P = ParamSpec("P")


def one_at_a_time(make: Callable[P, Path]) -> Callable[P, Path]:
    """Test processes that run side by side share what lies below `.cache/`."""

    @wraps(make)
    def locked(*args: P.args, **kwargs: P.kwargs) -> Path:
        CACHE.mkdir(exist_ok=True)
        with FileLock(CACHE / f"{make.__name__}.lock"):
            return make(*args, **kwargs)

    return locked


def yggc_build(output: Path, *arguments: str | Path) -> Path:
    """Runs `yggc build`; raises AssertionError with its output if it fails."""
    output.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "yggc", "build", *map(str, arguments)]
    command += ["--gpu", "cpu", "-o", str(output), "--work-dir", str(WORK)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return output


def tiny_config() -> LlamaConfig:
    """Two layers, grouped heads, tied embeddings; logits sharp enough for ties to be rare."""
    return LlamaConfig(
        vocab_size=400,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=True,
    )


def save_tiny(folder: Path) -> Path:
    """The tiny model's directory, with a byte-level tokenizer and a chat template; always the same
    weights.
    """
    if not (folder / "config.json").exists():
        torch.manual_seed(0)
        model = LlamaForCausalLM(tiny_config())
        model.save_pretrained(folder)
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=byte_level(), eos_token="<|im_end|>", bos_token="<|im_start|>"
        )
        tokenizer.chat_template = CHATML
        tokenizer.save_pretrained(folder)
    return folder


@one_at_a_time
def tiny_model() -> Path:
    return save_tiny(CACHE / "tiny-llama")


@one_at_a_time
def tiny_recipe() -> Path:
    """The bundle of the recipe that needs no download, as it is shipped."""
    return yggc_build(CACHE / "tiny-cpu.ygg", ROOT / "artifacts/recipes/tiny-cpu.toml")


@one_at_a_time
def tiny(graphs: str) -> Path:
    """The tiny bundle with static buckets 1, 4, 16, 64, or one graph for 1 row and a dynamic one
    for 2 to 64.
    """
    recipe = CACHE / f"tiny-{graphs}.toml"
    recipe.write_text(
        f'name = "tiny-{graphs}"\nverifier = "{tiny_model()}"\ngraphs = "{graphs}"\n'
        "buckets = [1, 4, 16, 64]\nprefill_buckets = [16]\nmax_model_len = 256\n"
        "calibration_tokens = 8\n"
        'tree = "egt:width=4,depth=4,children=8,verify=16"\n'
    )
    return yggc_build(CACHE / f"tiny-{graphs}.ygg", recipe)


def save_small(folder: Path) -> Path:
    """A model to draft with: one narrow layer, a vocabulary padded to 448, a context of 64, and
    the tokenizer of the tiny model.
    """
    if not (folder / "config.json").exists():
        torch.manual_seed(1)
        config = tiny_config()
        config.update({"vocab_size": 448, "hidden_size": 32, "intermediate_size": 48})
        config.update({"num_hidden_layers": 1, "max_position_embeddings": 64})
        LlamaForCausalLM(config).save_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(tiny_model())
        tokenizer.save_pretrained(folder)
    return folder


@one_at_a_time
def small_model() -> Path:
    return save_small(CACHE / "tiny-small")


def save_head(folder: Path) -> Path:
    """A head for the tiny model with random weights, which gives the logits of 384 of its ids."""
    if not (folder / "config.json").exists():
        torch.manual_seed(2)
        config = head_config(tiny_config(), draft_vocab_size=384)
        config.initializer_range = 0.3
        state = EagleForCausalLM(config).state_dict()
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            del state[name]
        ids = torch.randperm(400)[:384].sort().values
        folder.mkdir(parents=True, exist_ok=True)
        save_file({**state, "draft_ids": ids}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config.to_dict()))
    return folder


@one_at_a_time
def random_head() -> Path:
    return save_head(CACHE / "tiny-head")


@one_at_a_time
def deep_model() -> Path:
    """A model as the tiny one, of four layers: with some between whose inputs a head can read."""
    folder = CACHE / "tiny-deep"
    if not (folder / "config.json").exists():
        torch.manual_seed(3)
        config = tiny_config()
        config.num_hidden_layers = 4
        LlamaForCausalLM(config).save_pretrained(folder)
        AutoTokenizer.from_pretrained(tiny_model()).save_pretrained(folder)
    return folder


def save_head3(folder: Path) -> Path:
    """An EAGLE-3 head for the deep model with random weights, over 384 of its ids."""
    if not (folder / "config.json").exists():
        torch.manual_seed(4)
        config = head3_config(tiny_config(), 384, taps=[1, 2, 3])
        config.initializer_range = 0.3
        state = Eagle3ForCausalLM(config).state_dict()
        del state["model.embed_tokens.weight"]
        # Norms that are all ones would not show which of them is where.
        for name, value in state.items():
            if value.dim() == 1:
                state[name] = torch.rand(value.shape) + 0.5
        ids = torch.randperm(400)[:384].sort().values
        folder.mkdir(parents=True, exist_ok=True)
        save_file({**state, "draft_ids": ids}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config.to_dict()))
    return folder


@one_at_a_time
def random_head3() -> Path:
    return save_head3(CACHE / "tiny-head3")


@one_at_a_time
def deep_drafted() -> Path:
    """The deep model with its random head and n-grams, in as few graphs as tests need."""
    recipe = CACHE / "tiny-eagle3.toml"
    recipe.write_text(
        f'name = "tiny-eagle3"\nverifier = "{deep_model()}"\n'
        f'drafter = "{random_head3()}+ngram"\nbuckets = [1, 16]\nprefill_buckets = [16]\n'
        "drafter_widths = [1, 8]\nmax_model_len = 256\ncalibration_tokens = 8\n"
        'tree = "egt:width=4,depth=4,children=8,verify=16"\n'
    )
    return yggc_build(CACHE / "tiny-eagle3.ygg", recipe, "--drafter-quant", "none")


def save_medusa(folder: Path) -> Path:
    """Three Medusa heads for the tiny model over 384 of its ids, fitted to what the model says
    after some prompts, so that they are often right there.
    """
    if (folder / "config.json").exists():
        return folder
    torch.manual_seed(6)
    config = medusa_config(tiny_config(), 384, num_heads=3, num_blocks=1)
    heads = MedusaForCausalLM(config)
    ids = torch.randperm(400)[:384].sort().values
    verifier = reference(tiny_model())
    texts = [[*one, *greedy_ids(verifier, one, 60)] for one in random_prompts(6, (5, 20), seed=9)]
    with torch.no_grad():
        hidden = [verifier.model(torch.tensor([one])).last_hidden_state[0] for one in texts]
        heads.lm_head.weight.copy_(verifier.get_output_embeddings().weight[ids])
    column = torch.full((400,), -100).scatter(0, ids, torch.arange(384))
    optimizer = torch.optim.Adam(heads.heads.parameters(), lr=1e-2)
    for _ in range(120):
        # Head k from the state of token t: token t + 1 + k.
        loss = sum(
            torch.nn.functional.cross_entropy(
                heads.lm_head(head(torch.cat([rows[: -1 - k] for rows in hidden]))),
                torch.cat([column[torch.tensor(one[1 + k :])] for one in texts]),
            )
            for k, head in enumerate(heads.heads, 1)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    state = {name: one for name, one in heads.state_dict().items() if name.startswith("heads.")}
    folder.mkdir(parents=True, exist_ok=True)
    save_file({**state, "draft_ids": ids}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    return folder


@one_at_a_time
def fitted_medusa() -> Path:
    return save_medusa(CACHE / "tiny-medusa")


@one_at_a_time
def medusa_drafted() -> Path:
    """The tiny model with its Medusa heads and n-grams, in as few graphs as tests need."""
    recipe = CACHE / "tiny-medusa.toml"
    recipe.write_text(
        f'name = "tiny-medusa"\nverifier = "{tiny_model()}"\n'
        f'drafter = "{fitted_medusa()}+ngram"\nbuckets = [1, 16]\nprefill_buckets = [16]\n'
        "max_model_len = 256\ncalibration_tokens = 8\n"
        'tree = "egt:width=4,depth=3,children=8,verify=13"\n'
    )
    return yggc_build(CACHE / "tiny-medusa.ygg", recipe, "--drafter-quant", "none")


@one_at_a_time
def tiny_drafted(name: str, drafter: str, *flags: str) -> Path:
    """The tiny bundle with static buckets and a model that drafts."""
    recipe = CACHE / f"tiny-{name}.toml"
    recipe.write_text(
        f'name = "tiny-{name}"\nverifier = "{tiny_model()}"\ndrafter = "{drafter}"\n'
        "buckets = [1, 4, 16, 64]\nprefill_buckets = [16]\nmax_model_len = 256\n"
        "calibration_tokens = 8\n"
        'tree = "egt:width=4,depth=4,children=8,verify=16"\n'
    )
    return yggc_build(CACHE / f"tiny-{name}.ygg", recipe, *flags)


@one_at_a_time
def tiny_gguf() -> Path:
    """The tiny model as a Q4_1 file; it has no tokenizer."""
    path = CACHE / "tiny-q4_1.gguf"
    if not path.exists():
        model = LlamaForCausalLM.from_pretrained(tiny_model())
        write_llama(path, model, gguf.GGMLQuantizationType.Q4_1)
    return path


@one_at_a_time
def tiny_quantised(name: str, verifier: Path, *flags: str) -> Path:
    """A bundle of the tiny model with two verify graphs, for 1 and for 2 to 16 rows."""
    recipe = CACHE / f"tiny-{name}.toml"
    recipe.write_text(
        f'name = "tiny-{name}"\nverifier = "{verifier}"\ngraphs = "dynamic"\n'
        "buckets = [1, 16]\nprefill_buckets = [16]\nmax_model_len = 128\ncalibration_tokens = 4\n"
        'tree = "egt:width=4,depth=4,children=8,verify=16"\n'
    )
    return yggc_build(CACHE / f"tiny-{name}.ygg", recipe, *flags)


@one_at_a_time
def smol(dtype: str = "float32") -> Path:
    """SmolLM2-135M-Instruct from the recipe; few calibration tokens, since tests choose their
    trees. Its 4-bit matrices are dequantised.
    """
    flags = ["--dtype", dtype, "--calibration-tokens", "8"]
    return yggc_build(CACHE / f"smollm2-{dtype}.ygg", RECIPE, *flags)


@one_at_a_time
def smol_for_tests() -> Path:
    """As `smol`, with the three graphs that tests need, and those of the head: each of the
    verifier costs a fresh clone a minute.
    """
    recipe = CACHE / "smollm2-tests.toml"
    changed = ("name", "buckets", "prefill_buckets", "drafter")
    kept = [line for line in RECIPE.read_text().splitlines() if not line.startswith(changed)]
    few = ['name = "smollm2-tests"', "buckets = [1, 16]", "prefill_buckets = [64]"]
    head = [f'drafter = "{HEAD}+ngram"', "drafter_widths = [1, 4]"]
    recipe.write_text("\n".join([*kept, *few, *head]))
    return yggc_build(CACHE / "smollm2-tests.ygg", recipe, "--calibration-tokens", "8")


def smol_gguf() -> Path:
    """The model file that the recipe fetched."""
    [path] = WORK.rglob("SmolLM2-135M-Instruct.Q4_1.gguf")
    return path


def reference(source: Path, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """transformers' own model of a directory or GGUF file: eager attention, float32 arithmetic on
    weights rounded to `dtype`.
    """
    if source.suffix == ".gguf":
        # Not `from_pretrained`: for GGUF files it asks for a package of its own.
        config = AutoConfig.from_pretrained(source.parent, gguf_file=source.name)
        model = AutoModelForCausalLM.from_config(
            config, attn_implementation="eager", dtype=torch.float32
        )
        read = load_gguf_checkpoint(str(source), return_tensors=True, model_to_load=model)
        missing = model.load_state_dict(read["tensors"], strict=False).missing_keys
        assert set(missing) <= {"lm_head.weight"}, missing
        model.tie_weights()
    else:
        model = AutoModelForCausalLM.from_pretrained(
            source, attn_implementation="eager", dtype=torch.float32
        )
    if dtype is not torch.float32:
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype).to(torch.float32)
    return model.eval()


def greedy_ids(reference: Any, prompt: list[int], num: int) -> list[int]:
    """What `generate` of transformers' own model says after `prompt`, EOS or not."""
    with torch.no_grad():
        out = reference.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=num,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    ids: list[int] = out[0, len(prompt) :].tolist()
    return ids
