"""Looking after stored videos: a person's words on them, small pictures, disk space and removal."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import HeadForcingError
from ..files import lock, reason, unlock
from ..hashing import SHORT
from .files import (
    FINISHED,
    LABEL,
    THUMBNAIL,
    files_of,
    key_of,
    kind_of,
    own_files,
    read_bytes,
    read_note,
    read_stored_latents,
    write_bytes,
    write_note,
)
from .stored import StoredVideo, run_folders, videos_of, why

MOST = 5  # pictures of one video
# why a folder stays that is not to be removed
IN_USE = "it is being rendered"
OTHERS_LEFT = "what was ours in it is removed, other files are left"
_writing = threading.Lock()  # a page and a render change different fields


@dataclass(frozen=True)
class Label:
    """A person's words on a take."""

    title: str = ""  # its name, empty for none
    starred: bool = False  # whether it has a star
    # name below the output folder of the last video file that was made of it; empty for none
    file: str = ""
    made_by: str = ""  # what made the file, by which it is known again


def read_label(folder: Path, key: str) -> Label:
    """The label of the video of a run folder whose last block has this key; an empty one where it
    has none.
    """
    with suppress(HeadForcingError, OSError, KeyError):  # damaged: as if it had none
        note = read_note(files_of(folder, LABEL)[key[:SHORT]])
        return Label(note["title"], note["starred"], note["file"], note.get("made_by", ""))
    return Label()


def write_label(folder: Path, key: str, **changed: Any) -> None:
    """Change fields of a label; raises HeadForcingError where the folder cannot be written."""
    with _writing:
        before = files_of(folder, LABEL).get(key[:SHORT])
        label = replace(read_label(folder, key), **changed)
        stored = write_note(folder, f"{LABEL}-{key[:SHORT]}", asdict(label))
        if before not in (None, stored):
            before.unlink(missing_ok=True)


# ----------------------------------------------------------------------------------------- pictures


def pictured_blocks(video: StoredVideo) -> list[int]:
    """The finished blocks among those that are shown: the first one, and others at equal distances
    over the video.
    """
    last = len(video.keys) - 1
    most = min(MOST, len(video.keys))
    finished = video.finished
    places = [number * last // max(1, most - 1) for number in range(most)]
    return [place for place in places if place < finished]


def block_of_scene(video: StoredVideo, scene: int) -> int | None:
    """The block in the middle of a scene, by its number from 1; None where the video has no such
    scene.
    """
    starts = [*video.about["starts_seconds"], video.seconds]
    if not 1 <= scene < len(starts):
        return None
    middle = (starts[scene - 1] + starts[scene]) / 2 - starts[0]  # after the start frames
    blocks = len(video.keys)
    return min(int(middle / (video.seconds - starts[0]) * blocks), blocks - 1)


def thumbnail(video: StoredVideo, block: int, draw: Callable[[Tensor], bytes]) -> bytes | None:
    """The JPEG of a take's block; None if it cannot be read.

    It is read from the run folder, else made by `draw` from the block's first latent frame `[16, h,
    w]` and kept there: takes that share a block share its picture.
    """
    folder = video.folder
    key = video.keys[block]
    # none yet, damaged, or gone with its folder: made again
    with suppress(HeadForcingError, OSError, KeyError):
        return read_bytes(files_of(folder, THUMBNAIL)[key[:SHORT]])
    try:
        tensors, fields = read_stored_latents(files_of(folder, "block")[key[:SHORT]])
    except (HeadForcingError, OSError, KeyError):
        return None
    if fields["key"] != key:
        return None
    picture = draw(tensors["latents"][0])
    with suppress(HeadForcingError):  # a folder that cannot be written: made again next time
        write_bytes(folder, f"{THUMBNAIL}-{key[:SHORT]}", ".jpg", picture)
    return picture


# --------------------------------------------------------------------------- disk space and removal


def _stats(folder: Path) -> dict[Path, os.stat_result]:
    """Sizes and times of this pack's files in a run folder."""
    stats = {}
    for path in own_files(folder):
        with suppress(OSError):  # a render has just replaced it
            stats[path] = path.stat()
    return stats


def disk_bytes(folder: Path) -> int:
    """Disk space in bytes of this pack's files in a run folder."""
    return sum(stat.st_size for stat in _stats(folder).values())


def take_bytes(video: StoredVideo, videos: Iterable[StoredVideo]) -> tuple[int, int]:
    """Disk space in bytes of a take's files, and of those among them that none of `videos`
    needs.
    """
    stats = _stats(video.folder)
    others = [
        other for other in videos if other.folder == video.folder and other.name != video.name
    ]
    every = sum(stats[path].st_size for path in _files_of_take(video, stats, []))
    own = sum(stats[path].st_size for path in _files_of_take(video, stats, others))
    return every, own


def _files_of_take(
    video: StoredVideo, paths: Iterable[Path], others: Iterable[StoredVideo]
) -> list[Path]:
    """The files of a take among those of its run folder, without those that other videos in it
    need.
    """
    last = video.keys[-1][:SHORT]
    own = {key[:SHORT] for key in video.keys}
    own -= {key[:SHORT] for other in others for key in other.keys}
    found = []
    for path in paths:
        keys = {last} if kind_of(path) in ("video", FINISHED, LABEL) else own
        if key_of(path) in keys:
            found.append(path)
    return found


def remove_take(video: StoredVideo) -> int:
    """Remove a take: the files that no other video needs, and with the last one the run folder.
    Returns bytes freed.

    Raises HeadForcingError, and removes nothing, while the folder is being rendered to, or where
    another video in it
    cannot be read: its blocks might be the same.
    """
    folder = video.folder
    problems = list[str]()
    others = [other for other in videos_of(folder, problems) if other.name != video.name]
    if problems:
        raise HeadForcingError(f"{problems[0]}; until then no take of this run is deleted")
    freed, problem = _remove(
        folder, lambda paths: _files_of_take(video, paths, others) if others else paths
    )
    if problem:
        raise HeadForcingError(f"the take is not deleted: {problem}")
    return freed


def _remove(folder: Path, choose: Callable[[list[Path]], list[Path]] = list) -> tuple[int, str]:
    """Remove the chosen ones of this pack's files, and with the last of them the folder, if it is
    empty then.

    Returns the bytes freed, and why something that was to be removed is still there, empty for
    nothing.
    """
    if (held := lock(folder / "lock")) is None:
        return 0, IN_USE
    freed = 0
    path = folder
    left = True
    try:
        # the note on the video comes last: a take that was removed in part is still listed
        for path in sorted(choose(own_files(folder)), key=lambda path: kind_of(path) == "video"):
            with suppress(FileNotFoundError):  # a page has just replaced it
                size = path.stat().st_size
                path.unlink()
                freed += size
        left = bool(own_files(folder))
    except OSError as error:
        return freed, f"{path.name} cannot be removed ({reason(error)})"
    finally:
        unlock(held, remove=not left)
    try:
        if not left:
            folder.rmdir()
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return freed, OTHERS_LEFT
        return freed, f"the folder cannot be removed ({reason(error)})"
    return freed, ""


@dataclass
class PruneResult:
    """Result of `prune`."""

    removed: list[Path] = field(default_factory=list)  # folders that are gone
    freed: int = 0  # bytes on the disk of all files that were removed
    # that should have gone, by name, and why they are there
    stayed: dict[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether a folder stayed that is neither in use nor holds files of others."""
        return any(why not in (IN_USE, OTHERS_LEFT) for why in self.stayed.values())


def prune(parent: Path, keep_bytes: int) -> PruneResult:
    """Remove runs, the oldest first, until the others take at most `keep_bytes`.

    Only folders with a readable `run-*.json` count as runs, only files of this pack are removed,
    and a folder only if it is empty then. Locked runs, which are being rendered, are kept. Raises
    HeadForcingError if `parent` cannot be read.
    """
    total = 0
    done = PruneResult()
    for folder in sorted(_runs(parent, done), key=_last_written, reverse=True):
        try:
            total += disk_bytes(folder)
            if total > keep_bytes:  # from here on all are older, and removed as well
                freed, problem = _remove(folder)
                done.freed += freed
                if problem:
                    done.stayed[folder.name] = problem
                else:
                    done.removed.append(folder)
        except HeadForcingError as error:
            done.stayed[folder.name] = str(error)
    return done


def _runs(parent: Path, done: PruneResult) -> Iterator[Path]:
    """The folders of runs; others that have files of a run are named in `done`."""
    for folder in run_folders(parent):
        try:
            own = [] if folder.is_symlink() else own_files(folder)
            # of any format
            if any(read_bytes(path) for path in own if kind_of(path) == "run"):
                yield folder
            elif own:
                done.stayed[folder.name] = "it has files of a run but no run-*.json"
        except (HeadForcingError, OSError) as error:
            done.stayed[folder.name] = why(folder, error)


def _last_written(folder: Path) -> float:
    """The time at which a render last wrote to a run folder; a look at it makes thumbnails."""
    return max(
        (s.st_mtime for path, s in _stats(folder).items() if kind_of(path) != THUMBNAIL),
        default=0.0,
    )
