"""Required contents of each kind of file in a run folder: the hash in a name does not say that they are usable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

Fits = Callable[[Any], bool]
_LAST_TIME = 32_000_000_000  # seconds since 1970: Windows tells no dates after the year 3000
_WIDGETS = (str, int, float, bool)


def _text(value: Any) -> bool:
    """Lone surrogates, which JSON can hold, cannot be printed."""
    return isinstance(value, str) and value.encode("utf-8", "ignore").decode() == value


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _whole(low: int = 0, high: int = 2**64) -> Fits:
    """Up to the largest seed: far larger numbers cannot be converted to floats."""
    return lambda value: type(value) is int and low <= value <= high


def _number(low: float = -1e12, high: float = 1e12) -> Fits:
    """Not NaN or infinity, which Python's JSON can hold, and not so large that arithmetic overflows."""
    return lambda value: type(value) in (int, float) and low <= value <= high


def _none_or(fits: Fits) -> Fits:
    return lambda value: value is None or fits(value)


def _list_of(fits: Fits) -> Fits:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _object(required: Mapping[str, Fits], optional: Mapping[str, Fits], others: bool = False) -> Fits:
    """An object with these fields, and `others` where that is allowed."""
    known = {**required, **optional}

    def fits(value: Any) -> bool:
        if not isinstance(value, dict) or not required.keys() <= value.keys():
            return False
        return all(known[name](field) if name in known else others for name, field in value.items())

    return fits


_EVENT = _object(  # as `rollout.loop.MemoryEvent`
    {"after_block": _whole(), "frame": _whole(), "delta": _number(), "admitted": _flag},
    {"merged": _none_or(_list_of(_list_of(_whole()))), "dropped": _none_or(_list_of(_whole()))},
)
_RECALL = _object({"block": _whole(), "scene": _whole(), "frames": _list_of(_whole())}, {})  # as `cache.scenes.Recall`
_ABOUT = _object(
    {"prompts": _list_of(_text), "video_frames": _whole(1)},
    {  # `render.job` notes these, too; who reads them does without
        "size": _text,
        "fps": _number(0.1, 1000),  # this and blocks as in `timeline.clock.BlockClock`
        "starts_seconds": _list_of(_number()),
        "seeds": _list_of(_none_or(_whole())),
        "frames_per_block": _whole(1, 1000),
        "start_frames": _whole(),
        "held_frames": _whole(),
        "restart_frames": _list_of(_whole()),
        "novelty_threshold": _none_or(_number()),
        "latent_format": _none_or(_text),
        "seed": _whole(),
        "workflow": _text,
        "written": lambda value: isinstance(value, dict) and all(type(each) in _WIDGETS for each in value.values()),
        "draft": _flag,
    },
    others=True,
)
_FIELDS: dict[str, dict[str, Fits]] = {
    "run": {"setup": _text, "about": lambda value: isinstance(value, dict)},
    "video": {
        "setup": _text,
        "keys": lambda value: bool(value) and _list_of(_text)(value),
        "about": _ABOUT,
        "take": _none_or(_whole(1)),  # format 2 counts no takes
        "begun": _none_or(_number(0, _LAST_TIME)),
    },
    "found": {"profile": _text, "events": _list_of(_EVENT)},
    "opening": {"events": _list_of(_EVENT)},
    "seconds": {
        "seconds": _none_or(_number()),
        "events": _none_or(_whole()),  # format 2 notes neither this nor what follows
        "guards": _none_or(_list_of(_text)),
        "recalls": _none_or(_list_of(_RECALL)),
        "occupied": _none_or(_list_of(_none_or(_whole()))),
    },
    "label": {"title": _text, "starred": _flag, "file": _text},
    "block": {"key": _text, "after": _text, "event": _none_or(_EVENT)},
    "state": {"key": _text, "after": _text, "plain": lambda value: value is not None},
    "start": {"key": _text},
}


def find_fault(kind: str, fields: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> str | None:
    """The first field or tensor of a file that is missing or of another type than was written; None for none.

    Args:
        kind: of the file, how its name begins.
    """
    for name, fits in _FIELDS[kind].items():
        if not fits(fields.get(name)):
            return name
    if kind in ("block", "start"):
        latents, unfinished = (tensors or {}).get("latents"), (tensors or {}).get("unfinished")
        if latents is None or latents.ndim != 4 or not latents.is_floating_point():
            return "latents"
        if unfinished is not None and (unfinished.ndim != 5 or not len(unfinished)):
            return "unfinished"
    return None
