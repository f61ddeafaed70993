"""The route that says what a sound file is like: waveform, onsets, tempo."""

from __future__ import annotations

import base64
import threading
from functools import lru_cache
from pathlib import Path

from ....headforcing_core.files import Fields
from ....headforcing_core.video.onsets import Heard, listen
from ..graph import folders
from .pages import RefusedError, route

_lock = threading.Lock()  # one sound is read at a time


@lru_cache(8)
def _heard(path: Path, size: int, time: int) -> Heard:
    """The sound of a file of this size and time."""
    return listen(path)


def _sound(query: Fields) -> Fields:
    """Waveform, onsets and tempo of the file `name`, as the widget of *Load Audio* names it.

    `peaks` are bytes in base64, see `Heard`; `tempo` and `first_beat` are null where there is none.
    """
    path = folders.uploaded_file(query.get("name", ""))
    if path is None:
        raise RefusedError("there is no such sound in ComfyUI's input folder", 404)
    found = path.stat()
    with _lock:
        heard = _heard(path, found.st_size, found.st_mtime_ns)
    return {
        "seconds": heard.seconds,
        "peaks": base64.b64encode(heard.peaks.tobytes()).decode(),
        "peaks_a_second": heard.peaks_a_second,
        "onsets": heard.onsets,
        "tempo": heard.tempo,
        "first_beat": heard.first_beat,
    }


ROUTES = (route("GET", "/headforcing/sound", _sound),)
