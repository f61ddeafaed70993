"""Small pictures of a video, one a second, while it is written."""

import numpy as np
import pytest
import torch
from flat_colour import FlatColourDecoder, latents
from headforcing.headforcing_core.video.pictures import (
    A_SHEET,
    COLUMNS,
    ROWS,
    PictureSheets,
    sheet_path,
)
from headforcing.headforcing_core.video.stream import VideoStream
from headforcing.headforcing_core.video.writer import VideoSettings
from PIL import Image

FPS = 16


def grey(first: int, count: int, height: int = 120) -> torch.Tensor:
    """Video frames whose grey says their second: 3 more each."""
    seconds = (first + torch.arange(count)) // FPS
    return (seconds * 3).to(torch.uint8)[:, None, None, None].expand(-1, height, 2 * height, 3)


def places(path) -> np.ndarray:
    """The mean grey of each place of a sheet."""
    with Image.open(path) as sheet:
        pixels = np.asarray(sheet.convert("L"), float)
    height = pixels.shape[0] // ROWS
    width = pixels.shape[1] // COLUMNS
    return pixels.reshape(ROWS, height, COLUMNS, width).mean((1, 3)).flatten()


@pytest.mark.parametrize("pieces", [1, 12, 13, 400])
def test_each_second_has_a_picture_of_its_middle_on_the_sheet_of_its_minute(tmp_path, pieces):
    sheets = PictureSheets(tmp_path, "v", FPS)
    counts = []
    for first in range(0, 75 * FPS, pieces):
        sheets.add(first, grey(first, min(pieces, 75 * FPS - first)))
        counts.append(sheets.count)
    assert sheets.count == 75 and counts == sorted(counts)
    found = np.concatenate([places(sheet_path(tmp_path, "v", sheet)) for sheet in (0, 1)])
    assert np.abs(found[:75] - 3 * np.arange(75)).max() < 2
    assert found[76:].max() < 2, "later places are black"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v-0.jpg", "v-1.jpg"]
    with Image.open(tmp_path / "v-0.jpg") as sheet:
        assert sheet.size == (COLUMNS * 192, ROWS * 96) and A_SHEET == COLUMNS * ROWS


def test_pictures_come_while_a_video_is_written_and_are_of_its_own_size_where_it_is_small(tmp_path):
    sheets = PictureSheets(tmp_path / "pictures", "v", FPS)
    settings = VideoSettings(tmp_path / "v.mp4", scale=4)
    with VideoStream(settings, FlatColourDecoder(), sinks=[sheets]) as stream:
        for block in latents(60).split(3):
            stream.add(block)
        info = stream.finish()
    assert sheets.count == int(info.seconds + 0.5)
    with Image.open(tmp_path / "pictures" / "v-0.jpg") as sheet:
        assert sheet.size == (COLUMNS * 48, ROWS * 32), "before the pixels become squares"


def test_a_disk_that_takes_no_pictures_does_not_cost_the_video(tmp_path):
    (tmp_path / "file").write_text("no folder")
    sheets = PictureSheets(tmp_path / "file" / "pictures", "v", FPS)
    with VideoStream(
        VideoSettings(tmp_path / "v.mp4"), FlatColourDecoder(), sinks=[sheets]
    ) as stream:
        for block in latents(30).split(3):
            stream.add(block)
        info = stream.finish()
    assert sheets.count == 0 and info.video_frames == 117 and info.path.is_file()
