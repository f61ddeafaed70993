"""The story of a stored video for other programs: subtitles, a table, and a timeline for editors of
videos.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable

from ..errors import HeadForcingError
from ..timeline.clock import format_time
from .editor_timelines import OF_SEVERAL_TRACKS, TIMELINES, written_timeline
from .exported_story import ExportedStory


def _clock(seconds: float, point: str) -> str:
    """`hh:mm:ss.mmm`."""
    minutes, _, rest = format_time(seconds).partition(":")
    return f"{int(minutes) // 60:02}:{int(minutes) % 60:02}:{rest}".replace(".", point)


def _subtitles(story: ExportedStory, point: str) -> list[str]:
    cues = []
    for number, scene in enumerate(story.scenes, 1):
        begin, end = story.seconds(scene)
        times = f"{_clock(begin, point)} --> {_clock(end, point)}"
        cues.append(f"{number}\n{times}\n{scene.text}\n")
    return cues


def _srt(story: ExportedStory) -> str:
    return "\n".join(_subtitles(story, ","))


def _vtt(story: ExportedStory) -> str:
    cues = "\n".join(_subtitles(story, "."))
    return "WEBVTT\n\n" + cues.replace("&", "&amp;").replace("<", "&lt;")


def _csv(story: ExportedStory) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["start", "end", "prompt"])
    for scene in story.scenes:
        begin, end = story.seconds(scene)
        rows.writerow([format_time(begin), format_time(end), scene.text])
    return text.getvalue()


# by the end of the file's name
TEXTS: dict[str, Callable[[ExportedStory], str]] = {".srt": _srt, ".vtt": _vtt, ".csv": _csv}
FORMATS = (*TEXTS, *TIMELINES)


def exported(story: ExportedStory, suffix: str) -> str:
    """The text of a file with this end of its name; raises HeadForcingError for another one, for
    takes in a file that holds one video, and without OpenTimelineIO for those that need it.
    """
    end = suffix.lower()
    if end not in FORMATS:
        raise HeadForcingError(
            f"a story is exported to a file that ends in {', '.join(FORMATS)}, got {suffix!r}"
        )
    if story.takes and end not in OF_SEVERAL_TRACKS:
        raise HeadForcingError(
            f"a file that ends in {suffix} holds one take; export several to one that ends in "
            f"{' or '.join(OF_SEVERAL_TRACKS)}"
        )
    return TEXTS[end](story) if end in TEXTS else written_timeline(story, end)
