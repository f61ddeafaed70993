"""Features of speech for a video that speech drives: sound, through a wav2vec2 encoder, to numbers
for each video frame.

As LiveTalk's inference code does it (`scripts/inference_example.py`), with two differences: sound
that is shorter than the video goes on with silence instead of being stretched over it, and a long
sound can be encoded in stretches.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import HeadForcingError, import_optional, one_line
from ..files import Fields, reason
from ..hashing import digest, file_hash
from ..timeline.clock import VIDEO_FPS
from ..weights.containers import read_tensors
from .sound import mono
from .soundtrack import Soundtrack

RATE = 16_000  # samples a second that the encoder reads
WIDTH = 768  # of wav2vec2-base-960h, whose features the published model reads
LAYERS = 12
# At once: the first convolution gives 2 GB in float32 for it, and three such are held.
MAX_WHOLE_SECONDS = 300.0
MAX_SECONDS = 3600.0
MIN_STRETCH_SECONDS = 1.0
_SAMPLES = RATE // VIDEO_FPS  # in the time of a video frame
_MAX_CONFIG_BYTES = 1_000_000
_MAX_LAYERS = 100
_EPSILON = 1e-7  # of the variance, as the encoder's own feature extractor has it


class SpeechEncoder(Protocol):
    """A wav2vec2 encoder, in the two steps between which features are resampled.

    Attributes:
        key: hash of its weights.
    """

    key: str

    def convolved(self, wave: Tensor) -> Tensor:
        """`[samples]` -> the result of the convolutions, `[n, channels]`, about 50 a second."""

    def hidden_states(self, features: Tensor) -> Tensor:
        """`[n, channels]` -> the state before each layer and after the last,
        `[layers + 1, n, width]`.
        """


@dataclass(frozen=True)
class _Stretch:
    """Sound that is encoded by itself, and how many features it gives, of which `used` count."""

    wave: Tensor
    features: int
    used: int


def speech_wave(sound: Soundtrack, pad_seconds: float = 0.0) -> Tensor:
    """All of a sound as the encoder reads it: `[samples]`, 16000 a second, the mean of its
    channels, with so much silence at the end.

    Raises HeadForcingError for sound that is too long, or holds NaN or infinity.
    """
    seconds = sound.seconds + pad_seconds
    if seconds > MAX_SECONDS:
        raise HeadForcingError(
            f"the speech lasts {seconds:.0f} s with its silence, expected at most {MAX_SECONDS:.0f}"
        )
    parts = [torch.from_numpy(part) for part in mono(sound.sound.pieces(), sound.sound.rate, RATE)]
    wave = torch.cat([torch.zeros(0), *parts])
    if not torch.isfinite(wave).all():
        raise HeadForcingError("the speech holds NaN or infinity; give another sound")
    return F.pad(wave, (0, round(pad_seconds * RATE)))


def encode_speech(
    wave: Tensor, video_frames: int, encoder: SpeechEncoder, stretch_seconds: float = 0.0
) -> Tensor:
    """Features for each video frame, `[video_frames, (layers + 2) * width]`, float32 on the CPU: of
    the encoder's last state, then of its first to its last.

    Each feature depends on all of the sound that is encoded with it. With `stretch_seconds` a
    stretch of that length is encoded by itself, and sound that changes later leaves it as it is;
    0 encodes the whole sound at once, as the authors do.
    """
    parts = []
    for stretch in _stretches(wave, video_frames, stretch_seconds):
        mean = stretch.wave.mean()
        variance = stretch.wave.var(unbiased=False)
        convolved = encoder.convolved((stretch.wave - mean) / torch.sqrt(variance + _EPSILON))
        # The encoder sees one feature for each video frame, not 50 a second.
        features = F.interpolate(
            convolved.T[None], size=stretch.features, mode="linear", align_corners=True
        )
        states = encoder.hidden_states(features[0].T)
        joined = torch.cat([states[-1:], states]).transpose(0, 1).flatten(1)
        parts.append(joined[: stretch.used].float().cpu())
    return torch.cat(parts)


def speech_keys(
    wave: Tensor, video_frames: int, encoder: SpeechEncoder, stretch_seconds: float = 0.0
) -> tuple[str, ...]:
    """A hash for each video frame of what its features depend on, for keys of stored blocks:
    another device rounds the features themselves otherwise.
    """
    keys = []
    for stretch in _stretches(wave, video_frames, stretch_seconds):
        name = digest(stretch.wave, encoder.key)
        keys += [digest(name, stretch.features, place) for place in range(stretch.used)]
    return tuple(keys)


def _stretches(wave: Tensor, video_frames: int, seconds: float) -> list[_Stretch]:
    """The whole sound, cut to the video or with silence up to its end, or stretches of it, all of
    them of the same length.
    """
    length = seconds or video_frames / VIDEO_FPS
    if length > MAX_WHOLE_SECONDS:
        raise HeadForcingError(
            f"the encoder would read {length:.0f} s of speech at once, expected at most "
            f"{MAX_WHOLE_SECONDS:.0f}; encode stretches of it (segment_seconds, --speech-segment), "
            "such as 60"
        )
    if seconds and not seconds >= MIN_STRETCH_SECONDS:
        raise HeadForcingError(
            "segment_seconds (--speech-segment) must be 0, for the whole speech at once, or at "
            f"least {MIN_STRETCH_SECONDS:g}, got {seconds:g}"
        )
    if not seconds:
        samples = (video_frames - 1) * _SAMPLES
        return [_Stretch(_fitted(wave, samples), video_frames, video_frames)]
    frames = round(seconds * VIDEO_FPS)
    stretches = []
    for first in range(0, video_frames, frames):
        sound = _fitted(wave[first * _SAMPLES :], frames * _SAMPLES)
        # Its last feature stands at the first video frame of the next stretch.
        stretches.append(_Stretch(sound, frames + 1, min(frames, video_frames - first)))
    return stretches


def _fitted(wave: Tensor, samples: int) -> Tensor:
    """The first samples, with silence where there are fewer."""
    return F.pad(wave[:samples], (0, max(0, samples - len(wave))))


class TransformersEncoder:
    """A `Wav2Vec2Model` of transformers."""

    def __init__(self, model: Any, key: str):
        self.model = model.eval()
        self.key = key

    @torch.no_grad()
    def convolved(self, wave: Tensor) -> Tensor:
        return self.model.feature_extractor(wave.to(self.model.device)[None])[0].T

    @torch.no_grad()
    def hidden_states(self, features: Tensor) -> Tensor:
        encoder = self.model.encoder
        state, _ = self.model.feature_projection(features[None])
        state = encoder.layer_norm(state + encoder.pos_conv_embed(state))
        states = [state]
        for layer in encoder.layers:
            result = layer(state)
            # older versions give a tuple
            state = result[0] if isinstance(result, tuple) else result
            states.append(state)
        return torch.cat(states)


def load_encoder(folder: Path, device: str | torch.device = "cpu") -> TransformersEncoder:
    """The encoder in a folder as it is published, with `config.json` and `model.safetensors`.

    Raises HeadForcingError for a missing package or file, or another kind of model.
    """
    transformers = import_optional("transformers")
    weights = folder / "model.safetensors"
    if not weights.is_file() or not (folder / "config.json").is_file():
        raise HeadForcingError(
            f"{folder} is no folder of an audio encoder: expected config.json and "
            "model.safetensors of wav2vec2-base-960h"
        )
    try:
        fields = _fields(folder / "config.json")
        kind = fields.get("model_type")
        if kind != "wav2vec2" or fields.get("do_stable_layer_norm"):
            raise HeadForcingError(
                f"{folder} holds {kind!r:.40}, expected wav2vec2-base-960h; large encoders and "
                "other kinds do not fit the model"
            )
        config = transformers.Wav2Vec2Config.from_dict(fields)
        _check_size(transformers.Wav2Vec2Model, config, weights)
        model, found = transformers.Wav2Vec2Model.from_pretrained(
            folder, local_files_only=True, dtype=torch.float32, output_loading_info=True
        )
    except HeadForcingError:
        raise
    except Exception as error:  # damaged files can fail in any way
        why = one_line(reason(error), 200)
        raise HeadForcingError(
            f"{folder} cannot be read as an audio encoder ({why}): download it again"
        ) from error
    # the published file has no `masked_spec_embed`, which is for training
    missing = sorted(set(found["missing_keys"]) - {"masked_spec_embed"})
    if missing:
        raise HeadForcingError(f"{weights} has no {missing[0]:.80}: download it again")
    return TransformersEncoder(model.to(device), file_hash(weights))


def _fields(path: Path) -> Fields:
    """The JSON object in a small file."""
    if path.stat().st_size > _MAX_CONFIG_BYTES:
        raise ValueError(f"{path.name} is too large")
    fields = json.loads(path.read_text("utf-8"))
    if not isinstance(fields, dict):
        raise ValueError(f"{path.name} holds no JSON object")
    return fields


def _check_size(model: Any, config: Any, weights: Path) -> None:
    """Refuse a configuration of a model that is larger than its weights, before memory is taken."""
    if max(config.num_hidden_layers, len(config.conv_dim)) > _MAX_LAYERS:
        raise ValueError("config.json states too many layers")
    with torch.device("meta"):
        stated = sum(tensor.numel() for tensor in model(config).state_dict().values())
    stored = sum(tensor.numel() for tensor in read_tensors(weights).values())
    if stated > 2 * stored:
        raise ValueError(f"config.json states {stated:,} numbers, the weights have {stored:,}")
