"""The route that says what a sound file is like: waveform, onsets, tempo."""

from __future__ import annotations

import base64
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ....headforcing_core.files import Fields
from ....headforcing_core.video.onsets import Heard, listen
from .. import folders
from .pages import RefusedError, route

_KEPT = 8
# Reading takes as long as a sound is: it has threads of its own, so that other routes answer.
_threads = ThreadPoolExecutor(2, thread_name_prefix="headforcing-sound")
_known: dict[tuple[Path, int, int], Heard] = {}  # by path, size and time of the file


def _heard(path: Path, check_waited: Callable[[], None]) -> Heard:
    """The sound of a file, read again when the file has changed."""
    found = path.stat()
    key = (path, found.st_size, found.st_mtime_ns)
    heard = _known.get(key)
    if heard is None:
        heard = listen(path, check_waited)
        _known[key] = heard
        for oldest in list(_known)[:-_KEPT]:
            _known.pop(oldest, None)
    return heard


def _sound(query: Fields, check_waited: Callable[[], None]) -> Fields:
    """Waveform, onsets and tempo of the file `name`, as the widget of *Load Audio* names it.

    `peaks` are bytes in base64, see `Heard`; `tempo` and `first_beat` are null where there is none.
    """
    path = folders.uploaded_file(query.get("name", ""))
    if path is None:
        raise RefusedError("there is no such sound in ComfyUI's input folder", 404)
    check_waited()
    heard = _heard(path, check_waited)
    return {
        "seconds": heard.seconds,
        "peaks": base64.b64encode(heard.peaks.tobytes()).decode(),
        "peaks_a_second": heard.peaks_a_second,
        "onsets": heard.onsets,
        "tempo": heard.tempo,
        "first_beat": heard.first_beat,
    }


ROUTES = (route("GET", "/headforcing/sound", _sound, _threads),)
