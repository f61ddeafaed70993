"""Plots as IMAGE."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ....headforcing_core.errors import HeadForcingError

log = logging.getLogger(__name__)


def no_picture() -> Tensor:
    """An empty IMAGE."""
    return torch.zeros(1, 64, 64, 3)


def picture_or_nothing(draw: Callable[[], Any]) -> Tensor:
    """The plot that `draw` returns as an IMAGE; an empty one and a line in the log if matplotlib is
    missing.
    """
    try:
        return to_image(draw())
    except HeadForcingError as error:
        log.warning("Head Forcing: no plot, %s", error)
        return no_picture()


def jpeg(picture: Image.Image) -> bytes:
    """A PIL image as JPEG."""
    data = io.BytesIO()
    picture.convert("RGB").save(data, "JPEG", quality=80)
    return data.getvalue()


def to_image(picture: Any) -> Tensor:
    """A PIL image as an IMAGE, `[1, height, width, 3]` in 0..1."""
    return torch.from_numpy(np.asarray(picture.convert("RGB"), dtype=np.float32) / 255)[None]
