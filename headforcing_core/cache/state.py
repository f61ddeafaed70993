"""Save and restore the exact state of a cache between two blocks: `cache_state` that of a `HeadCache`."""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..devices import settle
from ..errors import HeadForcingError
from .base import State
from .memory import MemoryEntry
from .scenes import KeptFrame, KeptScene, Recall, Scenes


def pack(value: Any) -> State:
    """Nested lists, dictionaries and dataclasses of tensors, numbers, texts and None as a `State`.

    Keys are texts or numbers; a dataclass becomes a dictionary.
    """
    tensors: dict[str, Tensor] = {}

    def plain(value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            tensors[name] = value
            return {"tensor": name}
        if is_dataclass(value):
            value = vars(value)
        if isinstance(value, dict):
            return {"items": [[key, plain(part, f"{name}.{key}")] for key, part in value.items()]}
        if isinstance(value, (list, tuple)):
            return [plain(part, f"{name}.{place}") for place, part in enumerate(value)]
        return value

    return tensors, {"value": plain(value, "state")}


def unpack(state: State, device: torch.device) -> Any:
    """The inverse of `pack`, with tensors on `device` and lists for tuples; KeyError for a state of another form."""
    tensors, fields = state

    def full(value: Any) -> Any:
        if isinstance(value, dict) and "tensor" in value:
            return tensors[value["tensor"]].to(device)
        if isinstance(value, dict):
            return {key: full(part) for key, part in value["items"]}
        return [full(part) for part in value] if isinstance(value, list) else value

    return full(fields["value"])


def cache_state(cache: Any) -> State:
    """The state of a `HeadCache` after `commit`. The tensors are views of its buffers, used slots only."""
    groups = [
        {
            "sources": group.sources,
            "indices": group.indices,
            "entries": group.entries,
            "k": [k[:, : group.frames] for k in group.k],
            "v": [v[:, : group.frames] for v in group.v],
        }
        for group in cache.groups
    ]
    state = {
        "block": cache.block,
        "origin": cache.origin,
        "oldest": cache.oldest,
        "groups": groups,
        "entries": cache.memory.entries,
        "has_summary": cache.memory.has_summary,
        "scenes": None,
    }
    if (scenes := cache.scenes) is not None:
        settle(cache.device)
        state["scenes"] = {name: vars(scenes)[name] for name in ("starts", "numbers", "home", "kept", "recalls")}
    return pack(state)


def restore_cache(cache: Any, state: State) -> None:
    """Set a new `HeadCache` of the same shape to a saved state; raises HeadForcingError if the state does not fit."""
    try:
        saved = unpack(state, torch.device("cpu"))
        for group, held in zip(cache.groups, saved["groups"], strict=True):
            group.sources, group.indices, group.entries = held["sources"], held["indices"], held["entries"]
            for buffers, tensors in ((group.k, held["k"]), (group.v, held["v"])):
                for buffer, tensor in zip(buffers, tensors, strict=True):
                    buffer[:, : group.frames] = tensor.to(buffer)
        entries = [MemoryEntry(**entry) for entry in saved["entries"]]
        cache.memory.entries = [replace(entry, pooled=entry.pooled.to(cache.device)) for entry in entries]
        cache.memory.has_summary = saved["has_summary"]
        cache.block, cache.origin, cache.oldest = saved["block"], saved["origin"], saved["oldest"]
        if cache.scenes is not None:
            if saved["scenes"] is None:  # of a story without a recall
                raise ValueError("it has no frames of earlier scenes")
            _restore_scenes(cache.scenes, **saved["scenes"])
    except (KeyError, ValueError, RuntimeError, TypeError, IndexError) as error:
        raise HeadForcingError(f"the saved state does not fit this render: {error}") from error


def _restore_scenes(
    scenes: Scenes,
    starts: list[int],
    numbers: list[int],
    home: int,
    kept: dict[int, Any],
    recalls: list[dict[str, Any]],
) -> None:
    """Set the scenes of a new cache to those of a state; their frames stay in main memory."""

    def frames(saved: list[dict[str, Any]]) -> list[KeptFrame]:
        return [KeptFrame(**frame) for frame in saved]

    scenes.starts, scenes.numbers, scenes.home = starts, numbers, home
    scenes.kept = {
        number: KeptScene(scene["start"], [*map(frames, scene["first"])], frames(scene["spread"]), scene["step"])
        for number, scene in kept.items()
    }
    scenes.recalls = [Recall(**{**recall, "frames": tuple(recall["frames"])}) for recall in recalls]
