"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import HeadForcingError


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; move it there when the block succeeds, remove it when it fails.

    The temporary name keeps the suffix, because encoders choose the container by it.
    """
    path = Path(path)
    check_writable(path)
    temporary = _temporary(path)
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())  # some writers make files that only their owner can read
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: str | Path | None) -> None:
    """Refuse a path that cannot be written, by trying; its folder is made. For use before hours of work."""
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


def cache_folder() -> Path | None:
    """The user's folder for what can be computed again; None where the system knows no home folder."""
    with suppress(RuntimeError, OSError):
        named = os.environ.get("XDG_CACHE_HOME", "")
        return (Path(named) if os.path.isabs(named) else Path.home() / ".cache") / "headforcing"
    return None


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.stem[:100]}.{uuid.uuid4().hex[:8]}{path.suffix}")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
