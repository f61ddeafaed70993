"""The form of a stored cache: nested values as tensors by name and plain JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

Saved = dict[str, Any]  # a part of a stored cache: values for `pack`, by name


@dataclass
class KeptFrame:
    """A latent frame of a scene, in main memory: per layer `k, v [heads, s, head_dim]`, keys
    rotated to `index`.

    They never change, so a run folder stores each once, in a file of its own.
    """

    frame: int
    index: int
    k: list[Tensor]
    v: list[Tensor]
    file: str = ""  # its name, empty before it is stored; set by the run folder


@dataclass
class MemoryEntry:
    """An entry of episodic memory, a frame or the summary of several: the frames it was made of,
    and its pooled key.
    """

    sources: list[int]
    pooled: Tensor


@dataclass
class State:
    """A cache between two blocks: tensors by name, plain JSON, and the frames of scenes that the
    JSON numbers.
    """

    tensors: dict[str, Tensor]
    plain: dict[str, Any]
    frames: list[KeptFrame] = field(default_factory=list)


# a stored state of another version lacks names or has others, has values of other types, or tensors
# of other sizes
MISFIT = (LookupError, ValueError, TypeError, AttributeError, RuntimeError)


def pack(value: Any) -> State:
    """Nested lists, dictionaries and dataclasses of tensors, numbers, texts and None as a `State`.

    Keys are texts or numbers.
    """
    tensors: dict[str, Tensor] = {}
    frames: list[KeptFrame] = []

    def plain(value: Any, name: str) -> Any:
        if isinstance(value, KeptFrame):
            frames.append(value)
            return {"frame": len(frames) - 1}
        if isinstance(value, Tensor):
            tensors[name] = value
            return {"tensor": name}
        if isinstance(value, dict):
            return {"items": [[key, plain(part, f"{name}.{key}")] for key, part in value.items()]}
        if is_dataclass(value):
            items = {field.name: getattr(value, field.name) for field in fields(value)}
            return {"class": type(value).__name__, **plain(items, name)}
        if isinstance(value, (list, tuple)):
            return [plain(part, f"{name}.{place}") for place, part in enumerate(value)]
        return value

    return State(tensors, {"value": plain(value, "state")}, frames)


def unpack(state: State, device: torch.device, *classes: type) -> Any:
    """The inverse of `pack`, with tensors on `device`, frames in main memory, and lists for tuples;
    KeyError or IndexError for a state of another form.

    Dataclasses that are not among `classes` become dictionaries. ValueError for one that has other
    fields now.
    """
    known = {cls.__name__: cls for cls in classes}

    def full(value: Any) -> Any:
        if isinstance(value, list):
            return [full(part) for part in value]
        if not isinstance(value, dict):
            return value
        if "tensor" in value:
            return state.tensors[value["tensor"]].to(device)
        if "frame" in value:
            return state.frames[value["frame"]]
        items = {key: full(part) for key, part in value["items"]}
        if value.get("class") not in known:
            return items
        cls = known[value["class"]]
        check_fields(items, [field.name for field in fields(cls)])
        return cls(**items)

    return full(state.plain["value"])


def check_fields(saved: Any, names: Iterable[str]) -> None:
    """Raise ValueError unless a stored object has exactly these fields."""
    if not isinstance(saved, dict) or saved.keys() != set(names):
        found = type(saved).__name__
        if isinstance(saved, dict):
            found = ", ".join(map(str, saved))
        raise ValueError(f"it has {found} instead of {', '.join(names)}")
