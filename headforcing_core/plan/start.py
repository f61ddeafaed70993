"""Video frames that are given: the beginning of a video, an image or a section of another one, and
pictures.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import HeadForcingError
from ..hashing import digest
from ..rollout.rows import Picture
from ..rollout.schedule import SCHEDULES
from ..timeline.clock import TEMPORAL_STRIDE, video_frames_of
from ..video.reader import fit, read_image
from ..video.restarts import FrameCodec
from .options import RenderOptions
from .settings import Size


@dataclass(frozen=True)
class Start:
    """Video frames that a video begins with, as of `section.read_section`, or a picture that it
    holds, in its size.
    """

    video_frames: Tensor  # `[4(n-1)+1, height, width, 3]` in 0..1; `about` says what they are
    about: str

    @classmethod
    def image(
        cls,
        picture: Tensor,
        size: Size,
        name: str,
        frames: int = 1,
        *,
        portrait: bool = False,
    ) -> Start:
        """An image `[h, w, 3]` in 0..1, fitted to `size` (width, height), shown for so many latent
        frames. A portrait is scaled with antialiasing, as LiveTalk's authors do.
        """
        # NaN where there is one; `isfinite` of all takes as much memory again
        darkest, brightest = picture.aminmax()
        if not torch.isfinite(torch.stack((darkest, brightest))).all():
            raise HeadForcingError(f"{name} holds NaN or infinity; give another image")
        height, width = picture.shape[:2]
        wide, high = size
        fitted = "" if (width, height) == size else f", {width}x{height} fitted to {wide}x{high}"
        fitted_picture = fit(picture[None], wide, high, antialias=portrait)
        shown = fitted_picture.expand(video_frames_of(frames), -1, -1, -1)
        return cls(shown, f"{name}{fitted}")

    @classmethod
    def image_file(
        cls, path: Path, size: Size, frames: int = 1, *, portrait: bool = False
    ) -> Start:
        """An image file, see `reader.read_image`."""
        picture = read_image(path)
        return cls.image(picture, size, f"the image {path.name}", frames, portrait=portrait)

    @property
    def frames(self) -> int:
        """Number of latent frames."""
        return 1 + (len(self.video_frames) - 1) // TEMPORAL_STRIDE

    def encoded(self, codec: FrameCodec) -> Tensor:
        """The latents `[frames, channels, h, w]` by a VAE, in main memory."""
        return codec.encode_video(self.video_frames).float().cpu()

    def picture(self, codec: FrameCodec) -> Picture:
        """The same as a picture that prompts can hold."""
        return Picture(self.encoded(codec), self.key(codec))

    def key(self, codec: FrameCodec) -> str:
        """Key of the latents in the keys of blocks; another device would round the latents
        themselves otherwise.
        """
        return digest(digest(self.video_frames), codec.fingerprint())


def image_frames(options: RenderOptions, instead: str) -> int:
    """Number of latent frames that a start image is shown for; refuses it where neither method nor
    model takes one, and says what to give `instead`."""
    schedule = options.schedule
    if options.method.repeats_image and not schedule.is_driven:
        return schedule.frames_per_block
    if schedule.frames_per_block != 1 and not schedule.holds_image:
        framewise = " or ".join(
            name for name, row in SCHEDULES.items() if row.frames_per_block == 1
        )
        raise HeadForcingError(
            "a start image is one latent frame, and models of the family "
            f"{options.model_family} make blocks of {schedule.frames_per_block}: {instead}, or "
            f"choose a framewise model and its family ({framewise})"
        )
    return 1
