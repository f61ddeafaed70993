"""An AUDIO_ENCODER of ComfyUI as the encoder of speech.

Its own output is not used: LiveTalk resamples the result of the convolutions to the rate of the
video before the layers read it, *Audio Encoder Encode* does so after them, or never.
"""

from __future__ import annotations

from typing import Any

import torch
from comfy import model_management
from torch import Tensor

from ....headforcing_core.errors import HeadForcingError
from ....headforcing_core.video.speech_features import (
    LAYERS,
    MAX_WHOLE_SECONDS,
    RATE,
    WIDTH,
    SpeechEncoder,
)
from ....headforcing_core.weights.identity import identity

_FIRST_STRIDE = 5  # of the first convolution, whose result is the largest


class HostEncoder(SpeechEncoder):
    """Modules of a wav2vec2 base encoder that ComfyUI loaded, in float32; refuses any other."""

    def __init__(self, encoder: Any):
        self._net = _checked(encoder)
        self._patcher = encoder.patcher
        self.key = identity(sorted(self._net.state_dict().items()))

    def load(self, seconds: float) -> None:
        """Bring the weights to their device, with room for so much sound at once."""
        channels = self._net.feature_projection.layer_norm.weight.shape[0]
        samples = min(seconds, MAX_WHOLE_SECONDS) * RATE
        one_result = samples / _FIRST_STRIDE * channels * torch.float32.itemsize
        model_management.load_models_gpu([self._patcher], memory_required=3 * one_result)

    def convolved(self, wave: Tensor) -> Tensor:
        placed = wave.to(self._patcher.load_device, torch.float32)
        return self._net.feature_extractor(placed[None])[0]

    def hidden_states(self, features: Tensor) -> Tensor:
        projected = self._net.feature_projection(features[None])
        _, states = self._net.encoder(projected)
        return torch.cat(states)


def _checked(encoder: Any) -> Any:
    """The network of an AUDIO_ENCODER, if it is a wav2vec2 base model."""
    net: Any = getattr(encoder, "model", None)
    parts = ("feature_extractor", "feature_projection", "encoder")
    if not all(hasattr(net, part) for part in parts):
        raise HeadForcingError(_refusal(type(net).__name__))
    width = net.feature_projection.projection.weight.shape[0]
    layers = len(net.encoder.layers)
    if (width, layers) != (WIDTH, LAYERS):
        raise HeadForcingError(_refusal(f"an encoder of width {width} and {layers} layers"))
    return net


def _refusal(found: str) -> str:
    return (
        f"audio_encoder: expected wav2vec2-base-960h (width {WIDTH}, {LAYERS} layers), whose "
        f"features the model reads, got {found}; load wav2vec2-base-960h with Load Audio Encoder"
    )
