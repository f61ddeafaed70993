"""Speech and a portrait, which drive a video: the conditions of a request, their checks, and the
inputs that they give to each block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..devices import upload
from ..errors import HeadForcingError
from ..hashing import digest
from ..model.speech import VIDEO_FRAMES, speech_rows
from ..model.wan import BlockInputs
from ..timeline.clock import TEMPORAL_STRIDE, video_frames_of
from .plan import RenderPlan


@dataclass(frozen=True)
class Speech:
    """The features of a video's sound, as `conditions.Conditions`.

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

    def check(self, plan: RenderPlan) -> None:
        """Refuse a model that takes no speech, and for one that takes it a plan without portrait,
        too little speech, and what such a model cannot do.
        """
        config = plan.config
        if not config.is_driven:
            raise HeadForcingError(
                "speech: this model is not driven by speech; remove the speech, or load LiveTalk"
            )
        if not plan.held_frames:
            raise HeadForcingError(
                "start image: this model makes a portrait speak and got none; give one picture to "
                "start with (generate and batch: --start-image)"
            )
        if plan.timeline.references:
            raise HeadForcingError(
                "references: a model that speech drives holds no pictures but its portrait; "
                "remove them"
            )
        if plan.heads.auto is not None:
            raise HeadForcingError(
                "head roles: they cannot be measured on a model that speech drives; choose the "
                "method livetalk, which is its authors' window, or give a head profile"
            )
        width = self.features.shape[-1]
        if width != config.audio_width:
            raise HeadForcingError(
                f"speech: the model reads {config.audio_width} features for each video frame, got "
                f"{width}; encode the sound with wav2vec2-base-960h"
            )
        if self.latent_frames < plan.frames:
            fps = plan.timeline.clock.fps
            needed = video_frames_of(plan.frames)
            raise HeadForcingError(
                f"speech: it lasts {len(self.features) / fps:.2f} s, the blocks of this video "
                f"{needed / fps:.2f} s ({needed} video frames); add silence at its end, or make "
                "the video shorter"
            )

    def check_finite(self) -> None:
        """Refuse features that hold NaN or infinity."""
        if not torch.isfinite(self.features).all():
            raise HeadForcingError(
                "the features of the speech: NaN or infinity; encode again, with the audio encoder "
                "in float32, or give another sound"
            )

    def of_video(self, start: Tensor) -> TalkingPortrait:
        """With the portrait that a video begins with."""
        return TalkingPortrait(start[0], self)

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

    def inputs(self, modules: Any) -> SpeechInputs:
        """The block inputs; `modules` has those of `model.speech.SpeechProjection`."""
        return SpeechInputs(self, modules)


class SpeechInputs:
    """The block inputs of a video, by the frames of a pass; those of the last frames are kept, as
    all passes of a block need the same.

    Args:
        projection: has the modules of `model.speech.SpeechProjection`.
    """

    def __init__(self, video: TalkingPortrait, projection: Any):
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
