"""Errors that a user can cause. Each is one line of message and, where there is one, a tip with
the next step.
"""


class YggError(Exception):
    """Something the user can fix: the value found and the value wanted in `message`, the next step
    in `tip`.
    """

    exit_code = 2

    def __init__(self, message: str, tip: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.tip = tip


class BundleError(YggError):
    """A `.ygg` file that is damaged, incomplete, foreign or of another format version."""


class TargetError(YggError):
    """A bundle or a build that does not fit the machine at hand."""


class RequestError(YggError):
    """A request that the bundle cannot serve: too long, empty, a tree that no graph holds."""


class CheckFailed(YggError):
    """A check ran to its end and found a difference."""

    exit_code = 1
