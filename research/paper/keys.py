"""Pooled keys beside latents: whether two frames that are alike in one are alike in the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ...headforcing_core import page
from ...headforcing_core.cache.head_cache import HeadCache
from .demo import FIRST, Demo
from .drawing import Points, points_panel
from .paper_tables import EVERY_FRAME

STORY = "twelve_blocks"
STORIES = 2
EVERY = 2  # latent frames; one in so many is compared
NEAR = (0.90, 1.0)  # cosines of latents around the paper's 0.95


@dataclass(frozen=True)
class Pair:
    """Two latent frames: the cosine of their latents, and of their pooled keys in each layer."""

    latents: float
    layers: tuple[float, ...]

    @property
    def keys(self) -> float:
        """Mean over the layers."""
        return sum(self.layers) / len(self.layers)

    @property
    def near(self) -> bool:
        """Whether the latents are about as alike as in the paper's figure."""
        return NEAR[0] <= self.latents <= NEAR[1]


def pairs_of(model: Demo) -> list[Pair]:
    """Pairs of frames of a few videos in which every head keeps all frames."""
    found = []
    for number in range(FIRST, FIRST + STORIES):
        held: list[HeadCache] = []
        made = model.make(EVERY_FRAME, STORY, number, held.append)
        latents = functional.normalize(made.latents.flatten(1), dim=1)
        cosines = latents @ latents.T
        keys = _keys(held[0], len(latents))
        for i in range(0, len(latents), EVERY):
            for j in range(i + EVERY, len(latents), EVERY):
                found.append(Pair(float(cosines[i, j]), tuple(keys[:, i, j].tolist())))
    return found


def _keys(cache: HeadCache, frames: int) -> Tensor:
    """Mean cosine over the heads of each layer of every two frames' keys `[layers, frames,
    frames]`.
    """
    (group,) = cache.groups
    pooled = torch.stack([group.pooled_key(frame) for frame in range(frames)])
    # the heads are in the order of their layers
    parts = functional.normalize(pooled, dim=-1).split(group.sizes, dim=1)
    cosines = [torch.einsum("fhd,ghd->fg", part, part) for part in parts]
    return torch.stack(cosines) / torch.tensor(group.sizes)[:, None, None]


def correlation(pairs: Sequence[Pair]) -> float:
    """Pearson's, of both cosines."""
    both = torch.tensor([[pair.latents for pair in pairs], [pair.keys for pair in pairs]])
    return float(torch.corrcoef(both)[0, 1])


def near_means(pairs: Sequence[Pair]) -> list[float]:
    """By layer the mean cosine of keys of the pairs that are near; empty without one."""
    near = [pair.layers for pair in pairs if pair.near]
    return [sum(values) / len(values) for values in zip(*near, strict=True)]


def panels(pairs: Sequence[Pair]) -> list[page.Panel]:
    """Keys against latents, and keys by layer where latents are near."""
    label = "pair of frames"
    everywhere = [(pair.latents, pair.keys) for pair in pairs]
    by_layer = list[tuple[float, float]]()
    for pair in pairs:
        for layer, cosine in enumerate(pair.layers if pair.near else ()):
            by_layer.append((float(layer), cosine))
    layers = len(pairs[0].layers)
    told = "Pairs of latent frames of two videos with rooms that come back; every head keeps all."
    whole = Points(
        "cosine of latents",
        "cosine of keys",
        {label: everywhere},
        limits=(0.0, 1.02, 0.0, 1.02),
        diagonal=True,
    )
    split = Points(
        "layer (0 comes first)",
        "cosine of keys",
        {label: by_layer},
        limits=(-0.5, layers - 0.5, 0.0, 1.02),
    )
    return [
        points_panel(
            "Keys and latents", f"{told} Keys: mean cosine of pooled keys over all heads.", whole
        ),
        points_panel(
            f"Keys by layer, where latents have {NEAR[0]:g} to {NEAR[1]:g}",
            "The paper takes pairs with about 0.95 and says that keys have about the same in all "
            "layers.",
            split,
        ),
    ]
