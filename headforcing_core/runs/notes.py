"""Checks of the JSON in the files of a run folder.

A run folder may come from anybody. Every value that lists, reports and renders compute with is
therefore checked when its file is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

Check = Callable[[Any], bool]

MOST_BYTES = 1 << 24  # of a note; five hours with a prompt every ten seconds take 1.1 MB
_MOST = 10**9  # frames, blocks, takes
_LATEST = 2.5e11  # seconds since 1970: the year 9892
_NOTHING: Mapping[str, Check] = MappingProxyType({})


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_key(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{16,64}", value) is not None


def _is_whole(value: Any) -> bool:
    return type(value) is int


def _is_count(value: Any) -> bool:
    return _is_whole(value) and 0 <= value <= _MOST


def _is_positive(value: Any) -> bool:
    return _is_count(value) and value > 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -1e300 < value < 1e300  # neither NaN nor infinity


def _is_time(value: Any) -> bool:
    return _is_number(value) and 0 <= value < _LATEST


def _is_rate(value: Any) -> bool:
    return _is_number(value) and 0.1 <= value <= 1000


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list_of(check: Check, least: int = 0) -> Check:
    return lambda value: isinstance(value, list) and len(value) >= least and all(map(check, value))


def _object(needed: Mapping[str, Check], others: Mapping[str, Check] = _NOTHING) -> Check:
    """An object with the needed fields; `others` may be missing, and further ones say anything."""
    checks = {**needed, **others}

    def check(value: Any) -> bool:
        if not isinstance(value, dict) or not needed.keys() <= value.keys():
            return False
        return all(checks[name](value[name]) for name in checks.keys() & value.keys())

    return check


def _class(needed: Mapping[str, Check], others: Mapping[str, Check] = _NOTHING) -> Check:
    """An object that becomes one of a class: it has no further fields."""
    check = _object(needed, others)
    return lambda value: check(value) and value.keys() <= {*needed, *others}


_NEEDED = {
    "prompts": _list_of(_is_text, least=1),
    "starts_seconds": _list_of(_is_time),
    "video_frames": _is_positive,
}
_STORY = {  # a value for each prompt
    "prompts": _NEEDED["prompts"],
    "starts_seconds": _NEEDED["starts_seconds"],
    "switches": _list_of(_is_text),
    "seeds": _list_of(_or_none(_is_whole)),
}
_ABOUT = {
    "seed": _or_none(_is_whole),
    "size": _is_text,
    "fps": _is_rate,
    "frames_per_block": _is_positive,
    "start_frames": _is_count,
    "novelty_threshold": _or_none(_is_number),
    "workflow": _is_text,
}
_is_object_about = _object(_NEEDED, _STORY | _ABOUT)


def _is_about(value: Any) -> bool:
    """The notes on a video, see `RenderJob.about`."""
    if not _is_object_about(value):
        return False
    lengths = {len(value[name]) for name in _STORY.keys() & value.keys()}
    return len(lengths) == 1


_EVENT = _class(  # `rollout.loop.MemoryEvent`
    {"after_block": _is_whole, "frame": _is_whole, "delta": _is_number, "admitted": _is_flag},
    {
        "merged": _or_none(_list_of(_list_of(_is_whole, least=1))),
        "dropped": _or_none(_list_of(_is_whole)),
    },
)
_RECALL = _class({"block": _is_whole, "scene": _is_whole, "frames": _list_of(_is_whole)})
_KINDS = {
    "run": _object({"setup": _is_key, "about": _is_about}),
    "video": _object(
        {
            "setup": _is_key,
            "keys": _list_of(_is_key, least=1),
            "about": _is_about,
            "take": _is_count,
            "begun": _is_time,
        }
    ),
    "seconds": _object(
        {
            "seconds": _or_none(_is_number),
            "events": _is_count,
            "recalls": _list_of(_RECALL),
            "occupied": _list_of(_or_none(_is_whole)),
        }
    ),
    "label": _object(
        {"title": _is_text, "starred": _is_flag, "file": _is_text}, {"made_by": _is_text}
    ),
    "block": _object({"key": _is_key, "after": _is_text, "event": _or_none(_EVENT)}),
    "state": _object(
        {"key": _is_key, "after": _is_text, "plain": lambda value: isinstance(value, dict)},
        {"frames": _list_of(_is_text)},
    ),
    "frame": _object({"frame": _is_whole, "index": _is_whole}),
    "start": _object({"key": _is_key}),
}


def fits(kind: str, fields: Any) -> bool:
    """Whether the fields of a file are those of its kind."""
    return kind in _KINDS and _KINDS[kind](fields)
