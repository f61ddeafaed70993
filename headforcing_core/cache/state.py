"""Save and restore the exact state of a `HeadCache` between two blocks. Groups are numbered shortest context first."""

from __future__ import annotations

from torch import Tensor

from ..errors import HeadForcingError
from .head_cache import HeadCache
from .memory import MemoryEntry
from .method import State


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
    return tensors, {"block": cache.block, "groups": groups, "memory": memory, **reach}


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
    except (KeyError, ValueError, RuntimeError, TypeError) as error:
        raise HeadForcingError(f"the saved state does not fit this render: {error}") from error
