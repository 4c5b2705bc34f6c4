"""Errors of a build that the user can fix; each has a message and, where there is one, a tip."""

from __future__ import annotations

from yggrt.core.errors import YggError


class RecipeError(YggError):
    """A recipe or a flag with an unknown key, a wrong type or a value that cannot be used."""


class SourceError(YggError):
    """A verifier or drafter source that is missing, damaged or of an unsupported kind."""


class PreflightError(YggError):
    """Something the build needs is missing on this machine."""


class StageError(YggError):
    """A stage that could not finish: no space left, a compiler that failed, a check that did not
    hold.
    """
