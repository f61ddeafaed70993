"""The attention of single heads of the embedded model, in the setup in which roles are measured: a
first frame and a window, 21 latent frames together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...headforcing_core.cache.head_cache import HeadCache
from ...headforcing_core.cache.head_group import HeadGroup
from ...headforcing_core.head_profiles.profile import HeadProfile
from ..rows import MethodRow
from .ablations import with_first_frame
from .demo import FIRST, Demo, Made
from .drawing import Map

STEP = 2  # the third denoising step, from 0
BLOCK = 20  # the measured block, from 0; the window is full
SINK = 0
CURRENT = 2
Seen = Callable[[int, HeadGroup, Tensor], None]
"""Gets a layer, its group of heads, and their attention `[heads, queries, keys]`."""


class StepMeter:
    """Shows the attention of all heads in one denoising step of chosen blocks."""

    active = True

    def __init__(self, cache: HeadCache, blocks: Sequence[int], step: int, seen: Seen):
        self._cache = cache
        self._blocks = set(blocks)
        self._step = step
        self._seen = seen
        self._passes = (-1, -1)  # block, number of the pass in it
        self._layer = 0

    def attend(self, layer: int, group: HeadGroup, q: Tensor) -> Tensor:
        """Plain attention, whose map is shown to `seen` in the chosen pass."""
        k, v = group.context(layer)
        block, number = self._passes
        if block != self._cache.block:
            self._passes = (self._cache.block, 0)
        elif layer < self._layer:
            self._passes = (block, number + 1)
        self._layer = layer
        if self._passes[0] in self._blocks and self._passes[1] == self._step:
            scores = q @ k.mT / q.shape[-1] ** 0.5
            self._seen(layer, group, scores.softmax(dim=-1))
        return self._cache.attention(q, k, v)


@dataclass(frozen=True)
class Head:
    """A head by its layer and its number in it."""

    layer: int
    head: int

    @property
    def label(self) -> str:
        return f"layer {self.layer} head {self.head}"


def typical_heads(profile: HeadProfile, count: int) -> dict[str, list[Head]]:
    """Of each role the heads that have most of what it is named by: attention to the first frame,
    to the current block, or to the frames between them; of different layers where there are so
    many.
    """
    assert profile.shares is not None
    named_by = {"local": CURRENT, "anchor": SINK, "memory": 1}
    found = {}
    for role, part in named_by.items():
        mine = []
        for layer, roles in enumerate(profile.roles):
            for head, own in enumerate(roles):
                if own == role:
                    mine.append((profile.shares[layer][head][part], layer, head))
        mine.sort(reverse=True)
        layers: set[int] = set()
        first = list[Head]()
        rest = list[Head]()
        for _, layer, head in mine:
            (rest if layer in layers else first).append(Head(layer, head))
            layers.add(layer)
        found[role] = [*first, *rest][:count]
    return found


def attention_maps(model: Demo, count: int, story: str = "one_prompt") -> dict[str, list[Map]]:
    """The maps of typical heads of each role in one step of block `BLOCK` of a video."""
    chosen = typical_heads(model.judge.profile, count)
    wanted = set[Head]()
    wanted.update(*chosen.values())
    found: dict[Head, Tensor] = {}
    frames = []

    def seen(layer: int, group: HeadGroup, weights: Tensor) -> None:
        frames.append(group.frames)
        for place, head in enumerate(group.heads[layer].tolist()):
            if Head(layer, head) in wanted:
                found[Head(layer, head)] = weights[place].clone()

    def watch(cache: HeadCache) -> None:
        cache.meter = StepMeter(cache, [BLOCK], STEP, seen)

    entry = MethodRow("as measured", "first_frame", given=with_first_frame(rope="absolute"))
    made = model.make(entry, story, FIRST, watch)
    size = made.plan.schedule.frames_per_block
    maps: dict[str, list[Map]] = {}
    for role, heads in chosen.items():
        drawn = []
        for head in heads:
            weights = found[head].double().numpy()
            drawn.append(Map(role, head.label, weights, query_frames=size, key_frames=frames[0]))
        maps[role] = drawn
    return maps


def first_place_shares(
    model: Demo, entry: MethodRow, story: str, number: int, blocks: Sequence[int]
) -> tuple[dict[str, float], Made]:
    """Mean attention to the first place of the context by role, over these blocks, and the video
    that was made meanwhile.
    """
    roles = model.judge.profile.roles
    sums: dict[str, list[float]] = {}

    def seen(layer: int, group: HeadGroup, weights: Tensor) -> None:
        tokens = weights.shape[2] // group.frames
        shares = weights[..., :tokens].sum(dim=-1).mean(dim=1)
        for head, share in zip(group.heads[layer].tolist(), shares.tolist(), strict=True):
            sums.setdefault(str(roles[layer][head]), []).append(share)

    def watch(cache: HeadCache) -> None:
        cache.meter = StepMeter(cache, blocks, STEP, seen)

    made = model.make(entry, story, number, watch)
    means = {role: float(torch.tensor(shares).mean()) for role, shares in sums.items()}
    return means, made
