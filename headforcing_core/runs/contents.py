"""Required contents of each kind of file in a run folder: the hash in a name does not say that they are usable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

Fits = Callable[[Any], bool]
_MOST = 2**64  # of whole numbers, because of seeds; far larger ones cannot be converted to floats
_LAST_TIME = 32_000_000_000  # seconds since 1970: Windows tells no dates after the year 3000


def _text(value: Any) -> bool:
    """Lone surrogates, which JSON can hold, cannot be printed."""
    return isinstance(value, str) and value.encode("utf-8", "ignore").decode() == value


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _positive(value: Any) -> bool:
    return _whole(value) and value > 0


def _number(value: Any) -> bool:
    """Not NaN or infinity, which Python's JSON can hold, and not so large that arithmetic overflows."""
    return type(value) in (int, float) and abs(value) < 1e12


def _fps(value: Any) -> bool:
    return _number(value) and 0.1 <= value <= 1000  # as in `timeline.clock.BlockClock`


def _time(value: Any) -> bool:
    return _number(value) and 0 <= value <= _LAST_TIME


def _block_frames(value: Any) -> bool:
    return _positive(value) and value <= 1000  # as in `timeline.clock.BlockClock`


def _none_or(fits: Fits) -> Fits:
    return lambda value: value is None or fits(value)


def _list_of(fits: Fits) -> Fits:
    return lambda value: isinstance(value, list) and all(map(fits, value))


_EVENT: dict[str, Fits] = {
    "after_block": _whole,  # as `rollout.events.MemoryEvent`
    "frame": _whole,
    "delta": _number,
    "admitted": lambda value: isinstance(value, bool),
    "merged": _none_or(_list_of(_list_of(_whole))),
    "dropped": _none_or(_list_of(_whole)),
}
_ABOUT: dict[str, Fits] = {"prompts": _list_of(_text), "video_frames": _positive}
# `render.provenance` notes these, too; who reads them does without
_MORE_ABOUT: dict[str, Fits] = {
    "size": _text,
    "fps": _fps,
    "starts_seconds": _list_of(_number),
    "seeds": _list_of(_none_or(_whole)),
    "frames_per_block": _block_frames,
    "start_frames": _whole,
    "held_frames": _whole,
    "restart_frames": _list_of(_whole),
    "novelty_threshold": _none_or(_number),
    "latent_format": _none_or(_text),
}


def _event(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() <= _EVENT.keys()
        and {"after_block", "frame", "delta", "admitted"} <= value.keys()
        and all(_EVENT[name](field) for name, field in value.items())
    )


def _recall(value: Any) -> bool:
    """Check a `cache.scenes.Recall`."""
    return (
        isinstance(value, dict)
        and value.keys() == {"block", "scene", "frames"}
        and _whole(value["block"])
        and _whole(value["scene"])
        and _list_of(_whole)(value["frames"])
    )


def _about(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and all(fits(value.get(name)) for name, fits in _ABOUT.items())
        and all(fits(value[name]) for name, fits in _MORE_ABOUT.items() if name in value)
    )


_FIELDS: dict[str, dict[str, Fits]] = {
    "run": {"setup": _text, "about": lambda value: isinstance(value, dict)},
    "video": {
        "setup": _text,
        "keys": lambda value: bool(value) and _list_of(_text)(value),
        "about": _about,
        "take": _none_or(_positive),  # versions before did not count
        "begun": _none_or(_time),
    },
    "found": {"profile": _text, "events": _list_of(_event)},
    "opening": {"events": _list_of(_event)},
    "seconds": {
        "seconds": _none_or(_number),
        "events": _none_or(_whole),  # earlier versions did not note this and what follows
        "guards": _none_or(_list_of(_text)),
        "recalls": _none_or(_list_of(_recall)),
        "occupied": _none_or(_list_of(_none_or(_whole))),
    },
    "block": {"key": _text, "after": _text, "event": _none_or(_event)},
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
