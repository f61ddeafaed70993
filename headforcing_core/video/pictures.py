"""Small pictures of a video, one a second, on sheets that are written while it grows."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from ..errors import HeadForcingError
from ..files import replacing

COLUMNS = 10
ROWS = 6
A_SHEET = COLUMNS * ROWS  # pictures: a minute
HEIGHT = 96  # of a picture in pixels, less for smaller videos
MIDDLE = 0.5  # of its second, where a picture is taken
_QUALITY = 80

log = logging.getLogger(__name__)


@dataclass
class PictureSheets:
    """Writes the pictures of one video to JPEG files, `NAME-0.jpg` with those of the first minute,
    and so on.

    A sheet has `COLUMNS` x `ROWS` equal places; those that come later are black. An error of the
    disk ends the pictures, not the video.

    Attributes:
        count: number of pictures that can be read.
    """

    folder: Path
    name: str
    fps: float
    count: int = 0
    _sheet: Image.Image | None = None
    _failed: bool = False

    def add(self, first: int, video_frames: Tensor) -> None:
        """Take what is needed of the next video frames `[n, height, width, 3]`, uint8, of which the
        first has this number.
        """
        while not self._failed:
            place = round((self.count + MIDDLE) * self.fps) - first
            if place >= len(video_frames):
                return
            self._put(video_frames[max(0, place)].numpy())

    def _put(self, pixels: np.ndarray) -> None:
        number = self.count % A_SHEET
        picture = Image.fromarray(np.ascontiguousarray(pixels))
        if picture.height > HEIGHT:
            picture = picture.resize((round(picture.width * HEIGHT / picture.height), HEIGHT))
        width, height = picture.size
        if number == 0 or self._sheet is None:
            self._sheet = Image.new("RGB", (COLUMNS * width, ROWS * height))
        self._sheet.paste(picture, (number % COLUMNS * width, number // COLUMNS * height))
        try:
            with replacing(sheet_path(self.folder, self.name, self.count // A_SHEET)) as file:
                self._sheet.save(file, "JPEG", quality=_QUALITY)
        except HeadForcingError as error:
            self._failed = True
            log.warning("Head Forcing: there are no more small pictures of the video: %s", error)
            return
        self.count += 1


def sheet_path(folder: Path, name: str, sheet: int) -> Path:
    """The file of a sheet."""
    return folder / f"{name}-{sheet}.jpg"
