"""The cache directory: native code unpacked once per bundle, and notes of which files were hashed
in full.

Code is loaded from here, so the directory must belong to the user and be writable by nobody else.
Two processes may use it at once: everything appears under its final name by a rename. Knows
nothing of what the code does.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from yggrt.core.errors import YggError
from yggrt.core.schema import Member

ENVIRONMENT_VARIABLE = "YGG_CACHE"

_OURS = re.compile(r"[0-9a-f]{64}(\.verified)?|\.(new|old)-\w{8}")
# A file changed this shortly before it was hashed could change again without a new time stamp.
_CLOCK_TICK_NS = 100_000_000
# Longer than any unpacking takes.
_WORK_S = 3600.0


@dataclass(frozen=True, slots=True)
class Removed:
    """One thing that `Cache.prune` removed."""

    path: Path
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Cache:
    """A checked cache directory. `notes` are sentences for the user, mostly none."""

    root: Path
    notes: tuple[str, ...] = ()
    _temporary: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)

    def is_verified(self, digest: str, status: os.stat_result) -> bool:
        """True if this very file, unchanged since, was hashed in full before."""
        try:
            return _stamp(status) in self._stamp_file(digest).read_text().splitlines()
        except FileNotFoundError:
            return False

    def mark_verified(self, digest: str, status: os.stat_result) -> None:
        """Remembers that the file was hashed in full, unless it was changed a moment ago."""
        if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) < _CLOCK_TICK_NS:
            return
        target = self._stamp_file(digest)
        stamp = _stamp(status)
        lines = target.read_text().splitlines() if target.exists() else []
        kept = [line for line in lines if line != stamp][-15:]
        try:
            handle, name = tempfile.mkstemp(prefix=".new-", dir=self.root)
            with os.fdopen(handle, "w") as file:
                file.write("\n".join([*kept, stamp]) + "\n")
            os.replace(name, target)
        except OSError:
            # Without the note the next open hashes the file again; nothing else hangs on it.
            return

    def unpack(
        self, digest: str, members: Mapping[str, Member], read: Callable[[str], bytes]
    ) -> Path:
        """The directory that holds exactly `members` with the right bytes, written if need be.

        Raises YggError if it cannot be written or lies on a file system mounted noexec.
        """
        final = self.root / digest
        try:
            if not _holds(final, members):
                with self._locked():
                    # Another process may have written it before this one got the lock.
                    if not _holds(final, members):
                        self._write(final, members, read)
            os.utime(final)
        except OSError as error:
            raise YggError(
                f"cache directory {self.root}: cannot unpack {_total(members)} bytes: "
                f"{error.strerror}, {shutil.disk_usage(self.root).free} bytes free",
                "make room there or name another directory with --cache-dir",
            ) from error
        _check_executable(final, members)
        return final

    def prune(self, max_age_s: float = 0.0) -> list[Removed]:
        """Removes what this module wrote and was last used at least `max_age_s` seconds ago."""
        removed = []
        for entry in sorted(self.root.iterdir()):
            # A hidden name is another process at work, or what is left of one that was killed.
            wanted_age_s = max(max_age_s, _WORK_S if entry.name.startswith(".") else 0.0)
            if (
                not _OURS.fullmatch(entry.name)
                or time.time() - entry.lstat().st_mtime < wanted_age_s
            ):
                continue
            removed.append(Removed(entry, _num_bytes(entry)))
            if entry.is_dir():
                _remove_directory(entry)
            else:
                entry.unlink(missing_ok=True)
        return removed

    def _stamp_file(self, digest: str) -> Path:
        return self.root / f"{digest}.verified"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time, however it ends."""
        with (self.root / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _write(
        self, final: Path, members: Mapping[str, Member], read: Callable[[str], bytes]
    ) -> None:
        fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=self.root))
        try:
            for name in members:
                path = fresh / name
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                path.write_bytes(read(name))
                path.chmod(0o700)
            _remove_directory(final)
            os.rename(fresh, final)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def open_cache(argument: Path | None = None, environ: Mapping[str, str] = os.environ) -> Cache:
    """The cache directory: `argument`, else YGG_CACHE, else XDG_CACHE_HOME/yggrt, else
    ~/.cache/yggrt.

    Without a writable default, a private directory that vanishes when the process ends, with a
    note that says so. A directory that was asked for and cannot be used is an error.
    """
    asked = argument or (
        Path(environ[ENVIRONMENT_VARIABLE]) if environ.get(ENVIRONMENT_VARIABLE) else None
    )
    if asked is not None:
        root = asked.expanduser().absolute()
        problem = _prepare(root)
        if problem:
            raise YggError(
                f"cache directory {root}: {problem}, wanted a directory that can be written",
                f"name another one with --cache-dir or {ENVIRONMENT_VARIABLE}",
            )
        return Cache(root)
    tried = []
    bases = [Path(environ.get("XDG_CACHE_HOME", "")), Path(environ.get("HOME", "")) / ".cache"]
    # The XDG specification has relative paths ignored.
    for root in (base / "yggrt" for base in bases if base.is_absolute()):
        problem = _prepare(root)
        if not problem:
            return Cache(root)
        tried.append(f"{root} ({problem})")
    temporary = _temporary_directory()
    reason = ", ".join(tried) or "neither XDG_CACHE_HOME nor HOME is set"
    note = (
        f"no cache directory can be written: {reason}; using {temporary.name} for this run only. "
        f"Name a lasting one with --cache-dir or {ENVIRONMENT_VARIABLE}"
    )
    return Cache(Path(temporary.name), (note,), temporary)


def _temporary_directory() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="yggrt-", ignore_cleanup_errors=True)
    except OSError as error:
        raise YggError(
            f"no directory for unpacked code can be written, not even a temporary one: "
            f"{error.strerror}",
            f"name one with --cache-dir or {ENVIRONMENT_VARIABLE}",
        ) from error


def _prepare(root: Path) -> str:
    """Makes and checks the directory; why it cannot be written, or "". YggError if unsafe."""
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = root.stat()
    except OSError as error:
        return error.strerror or str(error)
    tip = f"run `chmod 700 {root}` if it is yours, or name another directory with --cache-dir"
    if status.st_uid != os.geteuid():
        raise YggError(
            f"cache directory {root}: owned by user {status.st_uid}, wanted {os.geteuid()}: code "
            f"is loaded from it",
            tip,
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise YggError(
            f"cache directory {root}: mode {stat.S_IMODE(status.st_mode):o} lets others write, "
            f"wanted 700: "
            "code is loaded from it",
            tip,
        )
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".new-", dir=root))
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _stamp(status: os.stat_result) -> str:
    times = f"{status.st_mtime_ns} {status.st_ctime_ns}"
    return f"{status.st_size} {times} {status.st_dev} {status.st_ino}"


def _holds(directory: Path, members: Mapping[str, Member]) -> bool:
    """True if the directory holds exactly these files with the right bytes."""
    try:
        found = {
            p.relative_to(directory).as_posix() for p in directory.rglob("*") if not p.is_dir()
        }
        return found == set(members) and all(_matches(directory / n, members[n]) for n in members)
    except FileNotFoundError:
        return False


def _matches(path: Path, member: Member) -> bool:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == member.sha256


def _check_executable(directory: Path, members: Mapping[str, Member]) -> None:
    """Maps one file the way the dynamic linker would."""
    for name, member in members.items():
        if not member.num_bytes:
            continue
        with (directory / name).open("rb") as file:
            try:
                mmap.mmap(
                    file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC
                ).close()
            except PermissionError as error:
                raise YggError(
                    f"cache directory {directory.parent}: its file system is mounted noexec, and "
                    f"compiled code must "
                    "be loaded from it",
                    f"name a directory elsewhere with --cache-dir or {ENVIRONMENT_VARIABLE}",
                ) from error
        return


def _remove_directory(path: Path) -> None:
    """Removes a directory, for others at one stroke. Code that is loaded from it stays mapped."""
    aside = Path(tempfile.mkdtemp(prefix=".old-", dir=path.parent))
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, aside / path.name)
    shutil.rmtree(aside, ignore_errors=True)


def _num_bytes(path: Path) -> int:
    files = [path] if not path.is_dir() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.lstat().st_size for file in files)


def _total(members: Mapping[str, Member]) -> int:
    return sum(member.num_bytes for member in members.values())
