"""Speech that drives the picture, as in LiveTalk (arXiv 2512.23576): features of sound become a row
for each latent frame, which is added to all its tokens before some layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..devices import upload

VIDEO_FRAMES = 4  # whose features make the row of a latent frame
FIRST_LAYER = 2  # before which a row is added
PREFIXES = ("audio_proj.", "audio_cond_projs.")  # of the tensors that T2V models lack


def speech_layers(num_layers: int) -> range:
    """The layers before which a row is added: from the third to the middle of the model."""
    return range(FIRST_LAYER, max(FIRST_LAYER, num_layers // 2 + 1))


class SpeechProjection(nn.Module):
    """The audio tensors of a model, by the names of the published file: one projection of features,
    and one linear layer for each of `speech_layers`.

    Args:
        config: a `wan.WanConfig`.
    """

    def __init__(self, config: Any):
        super().__init__()
        # features of four video frames as a few numbers
        self.audio_proj = nn.ModuleDict(
            {
                "proj": nn.Linear(VIDEO_FRAMES * config.audio_width, config.audio_dim),
                "norm_out": nn.LayerNorm(config.audio_dim),
            }
        )
        self.audio_cond_projs = nn.ModuleList(
            nn.Linear(config.audio_dim, config.dim) for _ in speech_layers(config.num_layers)
        )

    @classmethod
    def of(cls, config: Any, tensors: Mapping[str, Tensor]) -> SpeechProjection:
        """The projection with the tensors of `audio_tensors`, without a copy."""
        with torch.device("meta"):
            projection = cls(config)
        projection.load_state_dict(dict(tensors), assign=True)
        return projection.requires_grad_(False).eval()


def audio_tensors(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a model, by Wan's names, that a `SpeechProjection` is made of; none of a model
    without speech.
    """
    return {name: tensor for name, tensor in state_dict.items() if name.startswith(PREFIXES)}


@torch.no_grad()
def speech_rows(projection: Any, features: Tensor, scale: float = 1.0) -> dict[int, Tensor]:
    """The rows `[frames, dim]` by the number of the layer before which they are added.

    Args:
        projection: has the modules of `SpeechProjection`.
        features: `[frames, 4 * width]`, those of a latent frame's four video frames in a row.
        scale: factor of the rows; 1 as the model was trained.
    """
    pack = projection.audio_proj
    weight = pack.proj.weight
    few = pack.norm_out(pack.proj(upload(features.to(weight.dtype), weight.device)))
    rows = {}
    for layer, project in enumerate(projection.audio_cond_projs, FIRST_LAYER):
        rows[layer] = scale * project(few)
    return rows
