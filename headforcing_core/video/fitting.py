"""Fitting of images and video frames to the size of a render."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def fit(video_frames: Tensor, width: int, height: int, pixel_aspect: float = 1.0) -> Tensor:
    """Crop `[n, h, w, 3]` around the middle to the proportions `width:height` and scale it, `[n, height, width, 3]`.

    The rule of ComfyUI's node ARVideoI2V, bit for bit: nothing is stretched or padded, scaling is bilinear.
    `pixel_aspect` is the width of a pixel divided by its height.
    """
    rows, columns = video_frames.shape[1:3]
    old, new = columns / rows * pixel_aspect, width / height
    x = round((columns - columns * (new / old)) / 2) if old > new else 0
    y = round((rows - rows * (old / new)) / 2) if old < new else 0
    x, y = min(x, (columns - 1) // 2), min(y, (rows - 1) // 2)  # a line of pixels stays a line
    cropped = video_frames.movedim(-1, 1)[..., y : rows - y, x : columns - x]
    return F.interpolate(cropped, size=(height, width), mode="bilinear").movedim(1, -1)
