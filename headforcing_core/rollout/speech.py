"""Speech and a portrait, which drive a video, and the inputs that they give to each block."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..devices import upload
from ..hashing import digest
from ..model.speech import VIDEO_FRAMES, SpeechProjection, speech_rows
from ..model.wan import BlockInputs
from ..timeline.clock import TEMPORAL_STRIDE


@dataclass(frozen=True)
class Speech:
    """The features of a video's sound.

    Attributes:
        features: `[video frames, width]`, float32 on the CPU: all layers' hidden states of the
            audio encoder, one row for each video frame.
        scale: factor of what is added to the model's tokens; 1 as it was trained.
        keys: hashes of what the features of each video frame depend on, for the keys of blocks;
            none: the features themselves, which another device would round otherwise.
    """

    features: Tensor
    scale: float = 1.0
    keys: tuple[str, ...] = ()

    def of_frames(self, first: int, frames: int) -> Tensor:
        """Features of latent frames from `first` on, `[frames, 4 * width]`: of each the four video
        frames that are decoded from it. The first latent frame is one video frame, taken four
        times.
        """
        return self.features[_video_frames(first, frames)].reshape(frames, -1)

    def block_key(self, first: int, frames: int) -> str:
        """The hash of what latent frames depend on, for the keys of stored blocks."""
        heard: object = self.of_frames(first, frames)
        if self.keys:
            heard = [self.keys[place] for place in _video_frames(first, frames)]
        return digest("speech", heard, self.scale)

    @cached_property
    def latent_frames(self) -> int:
        """Number of latent frames that the features are enough for."""
        return (len(self.features) + VIDEO_FRAMES - 1) // TEMPORAL_STRIDE


def _video_frames(first: int, frames: int) -> list[int]:
    """The four video frames of each latent frame."""
    places = range(first * VIDEO_FRAMES, (first + frames) * VIDEO_FRAMES)
    return [max(0, place - VIDEO_FRAMES + 1) for place in places]


@dataclass(frozen=True)
class TalkingPortrait:
    """The inputs of a video besides noise and prompts: the latents `[channels, h, w]` of a
    portrait, which is the first latent frame, and speech.
    """

    portrait: Tensor
    speech: Speech

    def channels(self, first: int, frames: int) -> Tensor:
        """Channels beside those of the noisy latents, `[frames, channels + 1, h, w]`: the portrait,
        and a mask that is 0 in the first frame of the video, which is given, and 1 in all others.
        """
        shown = self.portrait.expand(frames, -1, -1, -1)
        mask = torch.ones_like(shown[:, :1])
        if first == 0:
            mask[0] = 0
        return torch.cat((shown, mask), dim=1)


class SpeechInputs:
    """The block inputs of a video, by the frames of a pass; those of the last frames are kept, as
    all passes of a block need the same.

    Args:
        projection: has the modules of `model.speech.SpeechProjection`.
    """

    def __init__(self, video: TalkingPortrait, projection: SpeechProjection):
        self._video = video
        self._projection = projection
        self._frames = range(0)
        self._inputs: BlockInputs | None = None

    def of(self, first: int, latents: Tensor) -> BlockInputs:
        """The inputs for a pass over `latents [frames, channels, h, w]` that begin with latent
        frame `first`, on their device and in their dtype.
        """
        frames = range(first, first + len(latents))
        if self._inputs is None or frames != self._frames:
            speech = self._video.speech
            features = speech.of_frames(first, len(latents))
            rows = speech_rows(self._projection, features, speech.scale)
            channels = self._video.channels(first, len(latents)).to(latents.dtype)
            self._inputs = BlockInputs(
                upload(channels, latents.device),
                {layer: row.to(latents) for layer, row in rows.items()},
            )
            self._frames = frames
        return self._inputs
