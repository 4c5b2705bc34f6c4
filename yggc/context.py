"""What every stage of one build is given beside its inputs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ygg_kernels.build import BuiltLibrary, build_library

from yggc.config import BuildConfig
from yggc.models.checkpoint import Checkpoint, open_checkpoint, open_drafter
from yggc.models.source import resolve_source
from yggc.report import Reporter
from yggc.workdir import WorkDir

if TYPE_CHECKING:
    from yggc.stages.graphs import BoundGraphs


@dataclass(frozen=True)
class Context:
    """Configuration, work directory and reporter of one build, and what is opened at most once in
    it.

    `folders` holds the output folder of each stage that is done, `bound` the graphs over the
    packed weights once a stage has run them (`yggc.stages.graphs.bind_graphs`).
    """

    config: BuildConfig
    work: WorkDir
    reporter: Reporter
    folders: dict[str, Path] = field(default_factory=dict)
    bound: dict[Path, BoundGraphs] = field(default_factory=dict)

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The verifier on disk; raises SourceError if it is not whole."""
        config = self.config
        return open_checkpoint(resolve_source(config.verifier, self.work, config.verifier_sha256))

    @cached_property
    def drafter_checkpoint(self) -> Checkpoint:
        """As `checkpoint`, of the model that drafts, if one does: the verifier's own where it
        drafts for itself.
        """
        config = self.config
        if config.self_layers is not None:
            return self.checkpoint
        source = resolve_source(
            config.draft_model, self.work, config.drafter_sha256, option="drafter_sha256"
        )
        return open_drafter(source, self.checkpoint)

    @cached_property
    def library(self) -> BuiltLibrary:
        """The operators, compiled for this machine."""
        return build_library(self.work.root / "operators", cxx=os.environ.get("CXX", "g++"))
