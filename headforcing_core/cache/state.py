"""Save and restore the exact state of a cache between two blocks.

`cache_state` and `restore_cache` are those of a `HeadCache`, whose groups are numbered shortest context first; `pack`
and `unpack` serve every other cache.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import HeadForcingError
from .head_cache import HeadCache
from .memory import MemoryEntry
from .method import State
from .scenes import KeptFrame, Recall, Scenes


def pack(value: Any) -> State:
    """Nested lists and dictionaries of tensors, numbers, texts and None as a `State`; keys are texts or numbers."""
    tensors: dict[str, Tensor] = {}

    def plain(value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            tensors[name] = value
            return {"tensor": name}
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


def cache_state(cache: HeadCache) -> State:
    """Tensors and JSON data of a cache after `commit`. The tensors are views of its buffers, used slots only."""
    tensors: dict[str, Tensor] = {}
    groups = []
    for g, group in enumerate(reversed(cache.groups)):
        groups.append({"sources": group.sources, "indices": group.indices, "entries": group.entries})
        for layer, (k, v) in enumerate(zip(group.k, group.v, strict=True)):
            tensors[f"group{g}.layer{layer}.k"] = k[:, : group.frames]
            tensors[f"group{g}.layer{layer}.v"] = v[:, : group.frames]
    for i, entry in enumerate(cache.memory.entries):
        tensors[f"memory{i}.pooled"] = entry.pooled
    memory = {"sources": cache.memory.sources, "has_summary": cache.memory.has_summary}
    reach = {"origin": cache.origin, "oldest": cache.oldest}
    scenes = _scenes_state(cache.scenes, tensors) if cache.shape.policy.kept_scenes else None
    return tensors, {"block": cache.block, "groups": groups, "memory": memory, "scenes": scenes, **reach}


def _scenes_state(scenes: Scenes, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """JSON data of the kept scenes; their tensors are added to `tensors`."""
    for number, frames in scenes.kept.items():
        for place, kept in enumerate(frames):
            name = f"scene{number}.{place}"
            tensors[f"{name}.pooled"] = kept.pooled
            for layer, (k, v) in enumerate(zip(kept.k, kept.v, strict=True)):
                tensors[f"{name}.layer{layer}.k"], tensors[f"{name}.layer{layer}.v"] = k, v
    kept_frames = [[number, [[kept.frame, kept.index] for kept in frames]] for number, frames in scenes.kept.items()]
    recalls = [[recall.block, recall.scene, list(recall.frames)] for recall in scenes.recalls]
    return {"starts": scenes.starts, "kept": kept_frames, "recalls": recalls}


def _restored_scenes(saved: dict[str, Any] | None, tensors: dict[str, Tensor], layers: int) -> Scenes:
    if saved is None:  # of a story without a recall
        raise ValueError("it has no frames of earlier scenes")
    scenes = Scenes()
    scenes.starts = list(saved["starts"])
    for number, frames in saved["kept"]:
        scenes.kept[number] = []
        for place, (frame, index) in enumerate(frames):
            name = f"scene{number}.{place}"
            k, v = ([tensors[f"{name}.layer{layer}.{kind}"] for layer in range(layers)] for kind in "kv")
            scenes.kept[number].append(KeptFrame(frame, tensors[f"{name}.pooled"], index, k, v))
    scenes.recalls = [Recall(block, scene, tuple(frames)) for block, scene, frames in saved["recalls"]]
    return scenes


def restore_cache(cache: HeadCache, state: State) -> None:
    """Set a new cache of the same shape to a saved state; raises HeadForcingError if the state does not fit."""
    tensors, plain = state
    try:
        for g, (group, saved) in enumerate(zip(reversed(cache.groups), plain["groups"], strict=True)):
            group.sources, group.indices = [list(s) for s in saved["sources"]], list(saved["indices"])
            group.entries = saved["entries"]
            for layer, (k, v) in enumerate(zip(group.k, group.v, strict=True)):
                k[:, : group.frames] = tensors[f"group{g}.layer{layer}.k"].to(k)
                v[:, : group.frames] = tensors[f"group{g}.layer{layer}.v"].to(v)
        sources = plain["memory"]["sources"]
        device = cache.device
        cache.memory.entries = [
            MemoryEntry(list(source), tensors[f"memory{i}.pooled"].to(device)) for i, source in enumerate(sources)
        ]
        cache.memory.has_summary = plain["memory"]["has_summary"]
        cache.block = plain["block"]
        cache.origin, cache.oldest = plain["origin"], plain["oldest"]
        if cache.shape.policy.kept_scenes:
            cache.scenes = _restored_scenes(plain.get("scenes"), tensors, len(cache.shape.roles))
    except (KeyError, ValueError, RuntimeError, TypeError) as error:
        raise HeadForcingError(f"the saved state does not fit this render: {error}") from error
