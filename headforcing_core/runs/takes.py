"""Takes as a list shows them: date, length, progress, prompts, a person's words, small pictures; and their removal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import HeadForcingError
from ..files import lock, unlock
from ..hashing import SHORT
from ..timeline.clock import VIDEO_FPS, video_frames_of
from .files import LABEL, THUMBNAIL, files_of, own_files, read_bytes, read_note, read_tensors, write_bytes, write_note
from .folder import count_stored
from .stored import StoredVideo, file_stats, find_video, remove_files, remove_folder, survey, videos_of

MOST = 5  # pictures of one video
_writing = threading.Lock()  # a page and a render change different fields
_OF_VIDEOS = ("video", "seconds", LABEL)  # kinds of files whose key is that of a whole video


@dataclass(frozen=True)
class Label:
    """A person's words on a take.

    Attributes:
        title: its name, empty for none.
        starred: whether it has a star.
        file: name below the output folder of the last video file that was made of it; empty for none.
    """

    title: str = ""
    starred: bool = False
    file: str = ""


@dataclass(frozen=True)
class Entry:
    """A take in a list.

    Attributes:
        finished: number of its blocks that are stored.
        bytes, own_bytes: disk space of its files, and of those that no other take needs.
    """

    video: StoredVideo
    finished: int
    label: Label = Label()
    bytes: int = 0
    own_bytes: int = 0

    @property
    def done(self) -> bool:
        """Whether the whole video is stored."""
        return self.finished == len(self.video.keys)

    @property
    def seconds(self) -> float:
        """Length of the whole video."""
        return self.video.about["video_frames"] / self.video.about.get("fps", VIDEO_FPS)

    @property
    def finished_seconds(self) -> float:
        """Length of what is stored, start frames included."""
        about = self.video.about
        frames = about.get("start_frames", 0) + self.finished * about.get("frames_per_block", 3)
        return min(self.seconds, video_frames_of(frames) / about.get("fps", VIDEO_FPS))

    @property
    def date(self) -> str:
        """Date at which its first render was begun, in local time."""
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(self.video.take.begun))

    @property
    def length(self) -> str:
        """`m:ss`, of an unfinished one with how much of it there is."""
        whole = _minutes(self.seconds)
        return whole if self.done else f"{_minutes(self.finished_seconds)} of {whole}"

    @property
    def story(self) -> str:
        """The first prompt, and the last one that was re-rolled with its seed."""
        prompts, seeds = self.video.about["prompts"], self.video.about.get("seeds", [])
        texts = [text if seed is None else f"[seed {seed}] {text}" for text, seed in zip(prompts, seeds, strict=False)]
        rolled = [number for number, seed in enumerate(seeds[: len(prompts)]) if seed is not None and number]
        shown = [(texts or prompts or [""])[0], *(texts[number] for number in rolled[-1:])]
        return " / ".join(_cut(text, 64 // len(shown)) for text in shown)

    @property
    def size(self) -> str:
        return self.video.about.get("size", "")

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "name": self.video.name,
            "take": self.video.take.number,
            "date": self.date,
            "seconds": round(self.seconds, 3),
            "finished_seconds": round(self.finished_seconds, 3),
            "blocks": len(self.video.keys),
            "finished": self.finished,
            "size": self.size,
            "seeds": self.video.about.get("seeds", []),
            "prompts": self.video.about["prompts"],
        }


def list_takes(parent: Path) -> tuple[list[Entry], list[str]]:
    """All takes in a folder of runs, the last begun first, and the problems of unreadable ones as in `survey`."""
    videos, problems = survey(parent)
    folders: dict[Path, list[StoredVideo]] = {}
    for video in videos:
        folders.setdefault(video.folder, []).append(video)
    entries = [entry for folder, takes in folders.items() for entry in _entries(folder, takes)]
    return sorted(entries, key=lambda entry: entry.video.take[::-1], reverse=True), problems


def _entries(folder: Path, videos: list[StoredVideo]) -> Iterator[Entry]:
    sizes = {path: stat.st_size for path, stat in file_stats(folder).items()}
    stored = {path.stem.split("-")[-2] for path in sizes if path.name.startswith("block-")}
    for video in videos:
        others = [other for other in videos if other is not video]
        every, own = (sum(sizes[path] for path in take_files(video, sizes, these)) for these in ([], others))
        yield Entry(video, count_stored(stored, video.keys), read_label(folder, video.keys[-1]), every, own)


def find_take(parent: Path, name: str) -> Entry | None:
    """The take of that name, see `StoredVideo.name`; only its own run folder is read."""
    video = find_video(parent, name)
    return None if video is None else Entry(video, video.finished)


def _minutes(seconds: float) -> str:
    whole = int(seconds + 1e-6)
    return f"{whole // 60}:{whole % 60:02}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def read_label(folder: Path, key: str) -> Label:
    """The label of the video of a run folder whose last block has this key; an empty one where it has none."""
    with suppress(HeadForcingError, OSError, KeyError):  # damaged: as if it had none
        note = read_note(files_of(folder, LABEL)[key[:SHORT]])
        return Label(note["title"], note["starred"], note["file"])
    return Label()


def write_label(folder: Path, key: str, **changed: Any) -> None:
    """Change fields of a label; raises HeadForcingError where the folder cannot be written."""
    with _writing:
        before = files_of(folder, LABEL).get(key[:SHORT])
        label = replace(read_label(folder, key), **changed)
        stored = write_note(folder, f"{LABEL}-{key[:SHORT]}", asdict(label))
        if before not in (None, stored):
            before.unlink(missing_ok=True)


def take_files(video: StoredVideo, paths: Iterable[Path], others: Iterable[StoredVideo] = ()) -> list[Path]:
    """The files of a take among those of its run folder, without those that other videos in it need."""
    last, own = video.keys[-1][:SHORT], {key[:SHORT] for key in video.keys}
    own -= {key[:SHORT] for other in others for key in other.keys}

    def is_its(path: Path) -> bool:
        kind, *_, key, _ = path.stem.split("-") if path.stem.count("-") > 1 else ("", "", "")
        return key == last if kind in _OF_VIDEOS else key in own

    return [path for path in paths if is_its(path)]


def remove_take(video: StoredVideo) -> int:
    """Remove a take: the files that no other video needs, and with the last one the run folder. Returns bytes freed.

    Raises HeadForcingError, and removes nothing, while the folder is being rendered to, or where another video in it
    cannot be read: its blocks might be the same.
    """
    folder, problems = video.folder, list[str]()
    others = [other for other in videos_of(folder, problems) if other.name != video.name]
    if problems:
        raise HeadForcingError(f"{problems[0]}; until then no take of this run is deleted")
    if not others:
        freed, problem = remove_folder(folder)
        if problem:
            raise HeadForcingError(f"the take is not deleted: {problem}")
        return freed
    held = lock(folder / "lock")
    if held is None:
        raise HeadForcingError("the take is not deleted: it is being rendered")
    freed = 0
    try:
        files = take_files(video, own_files(folder), others)
        notes = [path for path in files if path.name.startswith("video-")]
        # the note on the video comes last: a take that was removed in part is still listed
        for part in ([path for path in files if path not in notes], notes):
            more, problem = remove_files(part)
            freed += more
            if problem:
                raise HeadForcingError(problem)
    finally:
        unlock(held)
    return freed


def pictured_blocks(entry: Entry) -> list[int]:
    """The finished blocks among those that are shown: the first one, and others at equal distances over the video."""
    last, most = len(entry.video.keys) - 1, min(MOST, len(entry.video.keys))
    places = [number * last // max(1, most - 1) for number in range(most)]
    return [place for place in places if place < entry.finished]


def thumbnail(entry: Entry, number: int, draw: Callable[[Tensor], bytes]) -> bytes | None:
    """The JPEG of a take's `number`-th pictured block; None where there is none or it cannot be read.

    It is read from the run folder, else made by `draw` from the block's first latent frame `[16, h, w]` and kept there:
    takes that share a block share its picture.
    """
    blocks, folder = pictured_blocks(entry), entry.video.folder
    if not 0 <= number < len(blocks):
        return None
    key = entry.video.keys[blocks[number]]
    with suppress(HeadForcingError, OSError):  # damaged, or gone with its folder: made again
        if kept := files_of(folder, THUMBNAIL).get(key[:SHORT]):
            return read_bytes(kept)
    try:
        tensors, fields = read_tensors(files_of(folder, "block")[key[:SHORT]])
    except (HeadForcingError, OSError, KeyError):
        return None
    if fields["key"] != key:
        return None
    picture = draw(tensors["latents"][0])
    with suppress(HeadForcingError):  # a folder that cannot be written: made again next time
        write_bytes(folder, f"{THUMBNAIL}-{key[:SHORT]}", ".jpg", picture)
    return picture
