"""Atomic file writing: a reader never sees a partially written file."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import HeadForcingError


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` if the `with` block succeeds, delete it if it fails.

    The temporary name keeps the suffix, because encoders choose the container format by it. Raises HeadForcingError
    if `path` cannot be written.
    """
    path = Path(path)
    check_writable(path)
    temporary = _temporary(path)
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())  # data first, then the name: a crash must not leave `path` empty
        temporary.chmod(0o666 & ~_umask())  # some writers create files that only their owner can read
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: str | Path | None) -> None:
    """Raise HeadForcingError if a file at `path` cannot be written; creates its folder. None is accepted.

    Called before a render starts, so that hours of work are not lost to a wrong path. It tries to create a file
    because permission bits are not reliable (network drives, Windows, full disks).
    """
    if path is None:
        return
    path = Path(path)
    probe = _temporary(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise HeadForcingError(f"{path} cannot be written ({reason}): choose another place") from error
    if path.is_dir():
        raise HeadForcingError(f"{path} is a folder: give the name of a file in it")


def check_regular(path: str | Path) -> None:
    """Raise HeadForcingError unless `path` is a regular file: reading a pipe can wait forever, a device has no end."""
    if os.path.isdir(path):
        raise HeadForcingError(f"{path} is a folder: choose a file in it")
    if not os.path.isfile(path):  # also for names that the system does not allow
        found = "is a pipe or a device, not a file" if os.path.exists(path) else "was not found"
        raise HeadForcingError(f"{path} {found}: check the name and folder")


def cache_folder() -> Path | None:
    """The user's folder for what can be computed again; None where the system knows no home folder."""
    with suppress(RuntimeError, OSError):
        named = os.environ.get("XDG_CACHE_HOME", "")
        return (Path(named) if os.path.isabs(named) else Path.home() / ".cache") / "headforcing"
    return None


def _temporary(path: Path) -> Path:
    # the stem is cut because file names are limited to 255 bytes
    return path.with_name(f".{path.stem[:100]}.{uuid.uuid4().hex[:8]}{path.suffix}")


def _umask() -> int:
    mask = os.umask(0)  # the only way to read it is to set it
    os.umask(mask)
    return mask
