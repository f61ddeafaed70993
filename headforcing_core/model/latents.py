"""The latents of the two model families: those of the Wan 2.1 VAE and those of the Wan 2.2 VAE of TI2V-5B."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LatentFormat:
    """Video frames and pixels that a latent frame stands for.

    Attributes:
        name: ComfyUI's name of the latent format.
        stride: side in pixels of what one latent pixel stands for.
        fps: video frames per second that the models were trained at.
        size: width and height in pixels that they were trained at.
    """

    channels: int
    name: str
    stride: int
    fps: int
    size: tuple[int, int]

    @property
    def side_multiple(self) -> int:
        """Width and height of a video are multiples of this many pixels: the stride times the patch of 2."""
        return 2 * self.stride


WAN21 = LatentFormat(16, "Wan21", 8, 16, (832, 480))
WAN22 = LatentFormat(48, "Wan22", 16, 24, (1280, 704))


def latent_format(channels: int) -> LatentFormat:
    """The format of latents with so many channels; that of Wan 2.1 for any number but 48."""
    return WAN22 if channels == WAN22.channels else WAN21
