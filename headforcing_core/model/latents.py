"""The latents of the two model families: those of the Wan 2.1 VAE and those of the Wan 2.2 VAE of
TI2V-5B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LatentFormat:
    """Video frames and pixels that a latent frame stands for."""

    channels: int
    name: str  # ComfyUI's
    stride: int  # side in pixels of what one latent pixel stands for
    fps: int  # video frames per second that the models were trained at
    size: tuple[int, int]  # width and height in pixels that they were trained at
    vae: str
    vae_file: str  # the published name, as it begins

    @property
    def side_multiple(self) -> int:
        """Width and height of a video are multiples of this many pixels: the stride times the patch
        of 2.
        """
        return 2 * self.stride

    def pixels(self, shape: Sequence[int]) -> tuple[int, int]:
        """Width and height in pixels of latents of the shape `[..., h, w]`."""
        *_, rows, columns = shape
        return columns * self.stride, rows * self.stride


WAN21 = LatentFormat(
    16, "Wan21", stride=8, fps=16, size=(832, 480), vae="Wan 2.1 VAE", vae_file="wan_2.1_vae"
)
WAN22 = LatentFormat(
    48, "Wan22", stride=16, fps=24, size=(1280, 704), vae="Wan 2.2 VAE", vae_file="wan2.2_vae"
)


def latent_format(channels: int) -> LatentFormat:
    """The format of latents with so many channels; that of Wan 2.1 for any number but 48."""
    return WAN22 if channels == WAN22.channels else WAN21
