"""Files that are written: atomically, by one process at a time, with one sentence where the file
system refuses.

Temporary files lie beside their target and are named `.STEM.<8 hex digits>.SUFFIX`, lock files
`.NAME.lock`. What a killed process leaves of them is removed by the next one that writes the same
target.
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from .errors import HeadForcingError

# a temporary file that was not written to for so long has no owner any more
ABANDONED_SECONDS = 3600.0
_ASK_AGAIN_SECONDS = 0.5  # while a lock is waited for
FOLDER_LOCK = ".lock"  # of a claimed folder
# of a target's name in those of its temporary files; file systems allow 255 in all
_NAME_BYTES = 100


_WINDOWS = os.name == "nt"
# names that Windows keeps for devices, with any ending
_DEVICE = re.compile(
    r"(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9¹²³])\s*(?:\..*)?", re.IGNORECASE
)
_MOST_BYTES = 200  # of a name that gets an ending and a number: file systems allow 255
Named = tuple[str, Path]
"""A file with the option that names it."""
Fields = dict[str, Any]
"""Values by name; often a JSON object, or what becomes one."""


def json_object(metadata: Mapping[str, str], key: str) -> Fields:
    """A JSON object in the metadata of a file; anything else, as other programs may write, counts
    as an empty object.
    """
    try:
        value = json.loads(metadata.get(key, "{}"))
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {}


def why_no_name(name: str, most_bytes: int = _MOST_BYTES) -> str:
    """Why no file or folder can have this name on every system, in a few words; empty if it can."""
    if _DEVICE.fullmatch(name):
        return "Windows keeps this name for a device"
    if name.endswith((".", " ")):
        return "a name may not end with a dot or a space"
    return "it is too long" if len(os.fsencode(name)) > most_bytes else ""


class TargetInUse(HeadForcingError):
    """Another process writes the same file."""


@contextmanager
def explained(
    what: str, errors: tuple[type[Exception], ...] = (OSError, SafetensorError)
) -> Iterator[None]:
    """Raise errors, by default of the file system, in the `with` block as HeadForcingError: `what`
    and the reason.
    """
    try:
        yield
    except errors as error:
        raise HeadForcingError(f"{what}: {reason(error)}") from error


def is_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is a disk or a quota without space."""
    while error is not None and not (
        isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    ):
        error = error.__cause__
    return error is not None


def reason(error: Exception) -> str:
    """Why the file system refused, in a few words."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.splitlines()[0]


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` if the `with` block succeeds,
    delete it if it fails.

    Raises HeadForcingError if `path` cannot be written, also for an OSError of the `with` block.
    """
    path = Path(path)
    check_writable(path)
    temporary = temporary_path(path)
    with opened_folder(path.parent) as folder:
        try:
            with explained(f"{path} cannot be written"):
                temporary.touch()
                mode = temporary.stat().st_mode
                yield temporary
                with open(temporary, "rb+") as file:
                    # data first, then the name: a crash must not leave `path` empty
                    os.fsync(file.fileno())
                temporary.chmod(mode)  # some writers create files that only their owner can read
                os.replace(temporary, path)
        finally:
            remove_from(folder, temporary)
    sync_folder(path.parent)


@contextmanager
def opened_folder(folder: Path) -> Iterator[int | None]:
    """A handle of a folder, also after it is renamed; None where the system has none."""
    handle = None
    if os.unlink in os.supports_dir_fd:
        with suppress(OSError):  # whatever is done in it says why
            handle = os.open(folder, os.O_RDONLY)
    try:
        yield handle
    finally:
        if handle is not None:
            os.close(handle)


def remove_from(folder: int | None, path: Path) -> None:
    """Remove a file, if it is there, from the folder that `opened_folder` has opened."""
    with suppress(OSError):  # what else went wrong is the error to report
        if folder is None:
            path.unlink(missing_ok=True)
        else:
            os.unlink(path.name, dir_fd=folder)


def check_writable(path: str | Path | None) -> None:
    """Raise HeadForcingError if a file at `path` cannot be written; creates its folder. None is
    accepted.

    It tries to create a file, because permission bits are not reliable (network drives, Windows,
    full disks), and removes abandoned temporary files of the same target.
    """
    if path is None:
        return
    path = Path(path)
    if _WINDOWS and (why := why_no_name(path.name, most_bytes=1000)):  # the system knows the limit
        raise HeadForcingError(f"{path} cannot be written: {why}; choose another name")
    probe = temporary_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        # whoever has just claimed the file may have taken it for a leftover
        probe.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        raise HeadForcingError(
            f"{path} cannot be written ({reason(error)}): choose another place"
        ) from error
    if path.is_dir():
        raise HeadForcingError(f"{path} is a folder: give the name of a file in it")
    remove_leftovers(path, ABANDONED_SECONDS)


def check_kept(reads: Iterable[Named], writes: Iterable[Named]) -> None:
    """Raise HeadForcingError if a file that is written is also one that is read, or is written for
    two options.

    Files are the same by device and inode, so through links and in another case, too. Nothing is
    opened.
    """
    read = {identity: named for named in reads if (identity := _identity(named[1])) is not None}
    written: dict[str, str] = {}
    for option, path in writes:
        identity = _identity(path)
        if identity is not None and identity in read:
            source = read[identity][0]
            raise HeadForcingError(
                f"{option} would write over {path}, which is read ({source}): choose another place"
            )
        place = os.path.join(os.path.realpath(path.parent), path.name)
        if written.setdefault(place, option) != option:
            raise HeadForcingError(
                f"{option} and {written[place]} would both write {path}: choose two names"
            )


def _identity(path: Path) -> tuple[int, int] | str | None:
    """Device and inode of a file, its real path where the file system has no inodes; None where
    there is no file.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino) if found.st_ino else os.path.realpath(path)


@contextmanager
def claimed(*paths: Path | None, patience: float = 0.0) -> Iterator[None]:
    """Claim these files for this process in the `with` block, and remove what dead processes left
    of them.

    Raises TargetInUse if another claim has a file for `patience` seconds, HeadForcingError if one
    cannot be written.
    """
    with ExitStack() as stack:
        for path in filter(None, paths):
            check_writable(path)
            stack.enter_context(_held(path, path.with_name(f".{_short(path.name)}.lock"), patience))
            remove_leftovers(path)
        yield


@contextmanager
def claimed_folder(folder: Path) -> Iterator[None]:
    """Claim a folder, which is created, for this process in the `with` block; raises as
    `claimed`.
    """
    check_writable(folder / "claim")
    with _held(folder, folder / FOLDER_LOCK):
        yield


@contextmanager
def claimed_first(paths: Iterable[Path], replaces: bool = False) -> Iterator[Path]:
    """Claim the first of these files that is not claimed and, unless it `replaces` one, does not
    exist; its path.
    """
    for path in paths:
        with ExitStack() as stack:
            try:
                stack.enter_context(claimed(path))
            except TargetInUse:
                continue
            # under the claim: whoever had it before may have written the file
            if path.exists() and not replaces:
                continue
            yield path
            return
    raise HeadForcingError("all names for the file are taken: choose another")


@contextmanager
def _held(target: Path, lock_file: Path, patience: float = 0.0) -> Iterator[None]:
    held = lock(lock_file, patience)
    if held is None:
        raise TargetInUse(
            f"another process is writing {target}: wait for it, or choose another name"
        )
    try:
        yield
    finally:
        unlock(held, remove=True)


def lock(path: Path, patience: float = 0.0) -> FileLock | None:
    """Hold a lock file until `unlock`, or until the process ends; None if somebody else holds it
    for `patience` s.
    """
    # a render may be ended by another thread than began it
    held = FileLock(path, thread_local=False)
    try:
        held.acquire(timeout=patience, poll_interval=_ASK_AGAIN_SECONDS)
    except Timeout:
        return None
    except (OSError, NotImplementedError) as error:
        raise HeadForcingError(f"the lock file {path} cannot be used: {reason(error)}") from error
    return held


def unlock(held: FileLock, remove: bool = False) -> None:
    """Release a lock; `remove` its file first, while no other process can hold it."""
    path = Path(held.lock_file)
    if remove:
        with suppress(OSError):  # Windows removes no file that is open
            path.unlink(missing_ok=True)
    try:
        held.release()
    except OSError:
        held.release(force=True)
    if remove and os.name == "nt":
        with suppress(OSError):  # refused while another process has it open
            path.unlink(missing_ok=True)


def remove_leftovers(path: Path, older_than: float = 0.0) -> None:
    """Remove temporary files of the target `path` that were last written to more than `older_than`
    seconds ago.
    """
    pattern = rf"\.{re.escape(_short(path.stem))}\.[0-9a-f]{{8}}{re.escape(path.suffix)}"
    # a growing video beside one that a player has open, see `VideoWriter`
    if path.name.endswith(".part.mp4"):
        pattern += rf"|{re.escape(path.stem)}-[0-9a-f]{{8}}\.mp4"
    remove_matching(path.parent, pattern, older_than)


def remove_matching(folder: Path, pattern: str, older_than: float) -> None:
    """Remove the files of a folder whose names match, last written to more than `older_than`
    seconds ago.
    """
    ours = re.compile(pattern)
    with suppress(OSError), os.scandir(folder) as entries:  # what stays takes room, nothing else
        for entry in [entry for entry in entries if ours.fullmatch(entry.name)]:
            with suppress(OSError):
                old = not older_than or entry.stat().st_mtime < time.time() - older_than
                if old and entry.is_file(follow_symlinks=False):
                    os.unlink(entry.path)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable, where the system can (Windows and some network drives
    cannot).
    """
    with suppress(OSError):
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def check_regular(path: str | Path) -> None:
    """Raise HeadForcingError unless `path` is a regular file: reading a pipe can wait forever, a
    device has no end.
    """
    if os.path.isdir(path):
        raise HeadForcingError(f"{path} is a folder: choose a file in it")
    if not os.path.isfile(path):  # also for names that the system does not allow
        try:
            os.stat(path)
            found = "is a pipe or a device, not a file"
        except PermissionError as error:
            raise not_allowed(path, error) from error
        except (OSError, ValueError):
            found = "was not found"
        raise HeadForcingError(f"{path} {found}: check the name and folder")


def not_allowed(path: str | Path, error: PermissionError) -> HeadForcingError:
    """The error for a file that the user may not read; a copy of it would not help."""
    return HeadForcingError(
        f"{path} cannot be read ({reason(error)}): it, or its folder, belongs to another user or "
        "is closed; give your user the right to read it"
    )


def cache_folder() -> Path | None:
    """The user's folder for what can be computed again; None where the system knows no home
    folder.
    """
    with suppress(RuntimeError, OSError):
        named = os.environ.get("XDG_CACHE_HOME", "")
        return (Path(named) if os.path.isabs(named) else Path.home() / ".cache") / "headforcing"
    return None


def temporary_path(path: Path) -> Path:
    """A new hidden name beside `path`, with the same suffix, that `remove_leftovers` recognises."""
    return path.with_name(f".{_short(path.stem)}.{uuid.uuid4().hex[:8]}{path.suffix}")


def _short(name: str) -> str:
    """A name cut to `_NAME_BYTES`, with a checksum so that long names with one beginning do not
    become the same.
    """
    data = os.fsencode(name)
    if len(data) <= _NAME_BYTES:
        return name
    return f"{data[: _NAME_BYTES - 9].decode(errors='ignore')}-{zlib.crc32(data):08x}"


def path_of(word: str) -> Path:
    """The path that a person wrote; `~` is their home, as in a shell."""
    return Path(os.path.expanduser(word))


def partial_path(path: Path) -> Path:
    """Path of a video that is still growing; it plays at any time."""
    name = path.stem if path.suffix == ".mp4" else path.name  # two targets never grow in one file
    return path.with_name(f"{name}.part.mp4")


def live_path(path: Path) -> Path:
    """Path of the file that shows a video without a fixed end while it is made."""
    return path.with_name(f"{path.stem}.live.mp4")
