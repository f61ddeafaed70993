"""Video frames as the inputs of image models, resized the way VBench does it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
Statistics = tuple[tuple[float, ...], tuple[float, ...]]


def resized(video_frames: Tensor, side: int, mode: str) -> Tensor:
    """Video frames `[n, H, W, 3]` uint8 whose shorter side becomes `side`, `[n, 3, h, w]` in 0..1; no antialiasing."""
    pixels = video_frames.permute(0, 3, 1, 2).float()
    height, width = pixels.shape[-2:]
    short = min(height, width)
    size = (int(side * height / short), int(side * width / short))
    return functional.interpolate(pixels, size=size, mode=mode, align_corners=False) / 255


def centre(pixels: Tensor, side: int) -> Tensor:
    """The square of that side in the middle of `[n, 3, h, w]`."""
    top, left = (round((size - side) / 2) for size in pixels.shape[-2:])
    return pixels[..., top : top + side, left : left + side]


def standardised(pixels: Tensor, statistics: Statistics) -> Tensor:
    """Pixels `[n, 3, h, w]` less their mean, over their standard deviation, by channel."""
    mean, deviation = (torch.tensor(values, device=pixels.device)[:, None, None] for values in statistics)
    return (pixels - mean) / deviation


class ImageEncoder:
    """Unit vectors of video frames, `[n, d]` float32 on the CPU.

    The last batch is kept, so that two metrics with the same model run it once.

    Args:
        encode: pixels as the model wants them to features, `[n, d]`.
        prepare: video frames `[n, H, W, 3]` uint8 to such pixels.
    """

    def __init__(
        self, encode: Callable[[Tensor], Tensor], prepare: Callable[[Tensor], Tensor], device: torch.device | str
    ):
        self._encode, self._prepare, self.device = encode, prepare, torch.device(device)
        self._last: tuple[Tensor, Tensor] | None = None

    def __call__(self, video_frames: Tensor) -> Tensor:
        if self._last is None or self._last[0] is not video_frames:
            features = self._encode(self._prepare(video_frames.to(self.device)))
            self._last = video_frames, functional.normalize(features.float(), dim=-1).cpu()
        return self._last[1]
