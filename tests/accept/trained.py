"""What training brings: tokens that a drafter has accepted per pass after it and before.

    python tests/accept/trained.py [--kinds eagle,eagle3,distill] [--text FILE] [--keep DIR]

What a random verifier says next was not expected to be learned by a smaller model, so the
verifier is a three-layer model of bytes that is first trained on a text. It writes
20,000 tokens behind places of that text, half of them greedily and half at temperature 1; each
kind of drafter is trained on them, and bundles are built with what came out and with the same
folder whose matrices are drawn anew at their own scale. Both decode prompts that
neither model was trained on, whole trees with the gate open. Prints accepted tokens per pass;
exit 1 if a kind gains less than 0.2 or a token differs from plain decoding. The last line is JSON.
--keep holds the folders and takes what is there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from safetensors.torch import load_file, save_file

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from bundles import yggc_build
from prompts import DATA
from transformers import LlamaConfig, LlamaForCausalLM

from yggrt.loading import load
from yggrt.session import Session

# What each kind is asked for beside the options that all share.
KINDS = {
    "eagle": ["--draft-vocab", "256", "--learning-rate", "1e-3"],
    "eagle3": ["--draft-vocab", "256", "--taps", "0,1,2", "--learning-rate", "1e-3"],
    "medusa": ["--draft-vocab", "256", "--learning-rate", "1e-3"],
    "distill": ["--layers", "1", "--hidden-size", "64", "--heads", "2", "--learning-rate", "3e-3"],
}
SHARED = [
    *("--epochs", "10", "--batch-tokens", "1024", "--warmup", "20", "--held-out", "0.05"),
    *("--validate-every", "50", "--average", "0.98", "--threads", "2"),
]
TREE = "egt:width=4,depth=4,children=8,verify=16"
CONTEXT, PROMPT, WANTED = 256, 32, 0.2


def train_verifier(text: torch.Tensor, folder: Path, num_steps: int) -> Path:
    """A model of the bytes of `text`, with `num_steps` steps of AdamW."""
    if (folder / "config.json").exists():
        return folder
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, num_steps)
    for _ in range(num_steps):
        ids = windows(text, 32, 96)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    print(f"verifier: {num_steps} steps, {loss.item() / 0.6931:.2f} bits a byte", flush=True)
    model.save_pretrained(folder)
    return folder


def windows(text: torch.Tensor, num: int, length: int) -> torch.Tensor:
    """int64 [num, length] of random places."""
    starts = torch.randint(len(text) - length, (num, 1))
    return text[starts + torch.arange(length)].long()


def write_rows(verifier: Path, text: torch.Tensor, path: Path, num_tokens: int) -> Path:
    """Rows of training text, as `yggc train data` writes them for models with a tokenizer."""
    model = LlamaForCausalLM.from_pretrained(verifier).eval()
    torch.manual_seed(1)
    length, rows = 96, []
    for greedy in (True, False):
        prompts = windows(text, num_tokens // 2 // length + 1, PROMPT)
        how: dict[str, Any] = {"do_sample": False}
        if not greedy:
            how = {"do_sample": True, "temperature": 1.0, "top_k": 0}
        found = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=length,
            pad_token_id=0,
            **how,
        )
        rows += [{"ids": row.tolist(), "num_prompt": PROMPT} for row in found]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def train_drafter(kind: str, verifier: Path, text: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "yggc", "train", kind, *SHARED, *KINDS[kind]]
    command += ["--verifier", str(verifier), "--data", str(text), "-o", str(folder)]
    command += ["--cache-features", str(text.with_name("features"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def untrained(trained: Path, folder: Path) -> Path:
    """The drafter with random matrices of the scale that each has, norms as they are."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(trained, folder)
    generator = torch.Generator().manual_seed(2)
    tensors = load_file(folder / "model.safetensors")
    for name, one in tensors.items():
        if one.is_floating_point() and one.dim() > 1:
            drawn = torch.randn(one.shape, generator=generator) * one.float().std()
            tensors[name] = drawn.to(one.dtype)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def build(verifier: Path, drafter: Path) -> Path:
    recipe = drafter.with_suffix(".toml")
    recipe.write_text(
        f'name = "{drafter.name}"\nverifier = "{verifier}"\ndrafter = "{drafter}"\n'
        'graphs = "dynamic"\nbuckets = [1, 16]\nprefill_buckets = [32]\n'
        f'max_model_len = {CONTEXT}\ncalibration_tokens = 8\ntree = "{TREE}"\n'
    )
    return yggc_build(drafter.with_suffix(".ygg"), recipe)


def measure(session: Session, prompts: list[list[int]], num: int) -> dict[str, Any]:
    """Accepted tokens per pass, greedy and at temperature 1, and differences from plain."""
    found: dict[str, Any] = {"differences": 0}
    for name, how in (("greedy", {}), ("T=1", {"temperature": 1.0, "seed": 7})):
        accepted = []
        for prompt in prompts:
            options: Any = {"max_tokens": num, "gated": False, "ignore_eos": True, **how}
            drafted = session.generate(prompt, tree=TREE, **options)
            plain = session.generate(prompt, tree="plain", **options)
            found["differences"] += drafted.ids != plain.ids
            accepted.append(drafted.stats.mean_acceptance_length - 1)
        found[name] = fmean(accepted)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--text", type=Path, default=DATA / "tinyshakespeare.txt")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--verifier-steps", type=int, default=400)
    parser.add_argument("--num-prompts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    text = torch.frombuffer(bytearray(options.text.read_bytes()), dtype=torch.uint8)
    # The last tenth is for prompts alone.
    seen, unseen = text.split([len(text) * 9 // 10, len(text) - len(text) * 9 // 10])
    report: dict[str, Any] = {}
    with TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        verifier = train_verifier(seen, folder / "verifier", options.verifier_steps)
        rows = write_rows(verifier, seen, folder / "text.jsonl", 20_000)
        torch.manual_seed(3)
        prompts = windows(unseen, options.num_prompts, PROMPT).tolist()
        print("| kind | drafter | greedy | T=1 | outputs that differ from plain | s |")
        print("|---|---|---|---|---|---|")
        for kind in options.kinds.split(","):
            begin = perf_counter()
            trained = train_drafter(kind, verifier, rows, folder / kind)
            drafters = {
                "trained": trained,
                "untrained": untrained(trained, folder / f"{kind}-untrained"),
            }
            report[kind] = {}
            for name, drafter in drafters.items():
                session = load(build(verifier, drafter))
                found = measure(session, prompts, options.tokens)
                report[kind][name] = found
                cells = (f"{found[one]:.2f}" for one in ("greedy", "T=1"))
                print(
                    f"| {kind} | {name} | {' | '.join(cells)} | {found['differences']} | "
                    f"{perf_counter() - begin:.0f} |",
                    flush=True,
                )
            report[kind]["gain"] = {
                one: report[kind]["trained"][one] - report[kind]["untrained"][one]
                for one in ("greedy", "T=1")
            }
    print(json.dumps(report))
    failed = any(
        min(found["gain"].values()) < WANTED
        or found["trained"]["differences"]
        or found["untrained"]["differences"]
        for found in report.values()
    )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
