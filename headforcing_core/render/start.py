"""Beginnings of a video: an image, or a section of another video."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import HeadForcingError
from ..hashing import digest
from ..rollout.schedule import SCHEDULES, Schedule
from ..timeline.clock import TEMPORAL_STRIDE
from ..video.fitting import fit
from ..video.reader import VideoSource, read_image
from ..video.restarts import FrameCodec
from ..video.section import read_section

MAX_START_SECONDS = 30.0  # of video frames in memory
DEFAULT_START_SECONDS = 4.0  # roles of heads can be found after this many


@dataclass(frozen=True)
class Start:
    """Video frames that a video begins with, in the size of the render.

    Attributes:
        video_frames: `[4(n-1)+1, height, width, 3]` in 0..1.
        about: what they are, for the report and the run folder.
    """

    video_frames: Tensor
    about: str

    @classmethod
    def image(cls, picture: Tensor, size: tuple[int, int], name: str) -> Start:
        """An image `[h, w, 3]` in 0..1, fitted to `size` (width, height)."""
        if not torch.isfinite(picture).all():
            raise HeadForcingError(f"{name} holds NaN or infinity; give another image")
        (height, width), (wide, high) = picture.shape[:2], size
        fitted = "" if (width, height) == size else f", {width}x{height} fitted to {wide}x{high}"
        return cls(fit(picture[None], wide, high), f"{name}{fitted}")

    @classmethod
    def image_file(cls, path: Path, size: tuple[int, int]) -> Start:
        """An image file, see `reader.read_image`."""
        return cls.image(read_image(path), size, f"the image {path.name}")

    @classmethod
    def video(cls, source: VideoSource, size: tuple[int, int], seconds: float, *section: Any) -> Start:
        """A section of a video, see `section.read_section`."""
        if not 0 < seconds <= MAX_START_SECONDS:
            raise HeadForcingError(f"start seconds must be above 0 and at most {MAX_START_SECONDS:g}, got {seconds:g}")
        return cls(*read_section(source, size, seconds, *section))

    @property
    def frames(self) -> int:
        """Number of latent frames."""
        return 1 + (len(self.video_frames) - 1) // TEMPORAL_STRIDE

    @cached_property
    def content(self) -> str:
        """The hash of the video frames."""
        return digest(self.video_frames)

    def encoded(self, codec: FrameCodec) -> Tensor:
        """The latents `[frames, 16, h, w]` by a VAE."""
        return codec.encode_video(self.video_frames)

    def key(self, codec: FrameCodec) -> str:
        """Key of the latents in the keys of blocks; another device would round the latents themselves otherwise."""
        return digest(self.content, codec.fingerprint())


def check_start_image(schedule: Schedule, family: str, instead: str) -> None:
    """Refuse a start image, which is one latent frame, where blocks are longer; `instead` is what to give."""
    if schedule.frames_per_block != 1:
        framewise = " or ".join(name for name, row in SCHEDULES.items() if row.frames_per_block == 1)
        raise HeadForcingError(
            f"a start image is one latent frame, and models of the family {family} make blocks of "
            f"{schedule.frames_per_block}: {instead}, or choose a framewise model and its family ({framewise})"
        )
