"""Contact sheets, a whole video on one picture; grids, videos beside one another in one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from flat_colour import FlatColourDecoder, decoded, latents
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.video import sheets
from headforcing.headforcing_core.video.grid import MAX_HEIGHT, MAX_WIDTH, STRIP, grid_layout, write_grid
from headforcing.headforcing_core.video.sheets import contact_sheet
from headforcing.headforcing_core.video.stream import write_video
from headforcing.headforcing_core.video.writer import VideoWriter
from PIL import Image


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(sheets, "COLUMNS", 4)
    monkeypatch.setattr(sheets, "ROWS", 2)


def sheet_of(tmp_path, frames=61, **options):
    info = write_video(tmp_path / "v.mp4", latents(frames).split(3), FlatColourDecoder(), crf=4)
    contact_sheet(info.path, tmp_path / "s.png", **options)
    return np.asarray(Image.open(tmp_path / "s.png"), dtype=int)


def test_a_contact_sheet_tiles_the_video_to_its_last_picture_and_marks_prompts_where_they_begin(tmp_path):
    sheet = sheet_of(tmp_path)
    assert sheet_of(tmp_path, frames=1).shape[1] == 2 * 16 + 128, "of a short video each picture once"
    tile_height = round(128 * 32 / 48)
    assert sheet.shape == (2 * 16 + 34 + 2 * (tile_height + 4) - 4, 2 * 16 + 4 * 132 - 4, 3)
    places = itertools.product(range(2), range(4))
    middles = [sheet[50 + row * (tile_height + 4) + 60, 16 + column * 132 + 64, 0] for row, column in places]
    np.testing.assert_allclose(middles, np.linspace(0.1, 0.9, 8) * 255, atol=6)
    blue, orange = (86, 156, 255), (255, 159, 64)
    sheet = sheet_of(tmp_path, labels=[(9.0, "second " * 100), (0.0, "first")])
    rows = [50 + 28 - 6, 50 + 28 + 85 + 4 + 28 - 6]
    bars = [tuple(sheet[y, 16 + column * 132 + 64]) for y in rows for column in range(4)]
    assert bars == [blue] * 5 + [orange] * 3
    (tmp_path / "text.mp4").write_text("no video")
    for name in ("text.mp4", "missing.mp4"):
        with pytest.raises(HeadForcingError, match="cannot be read as a video"):
            contact_sheet(tmp_path / name, tmp_path / "no.png")
    assert not (tmp_path / "no.png").exists()


def test_a_grid_of_any_number_stays_within_what_players_take():
    for size in ((64, 64), (832, 480), (480, 832), (1280, 720), (16, 4096)):
        for count in (1, 2, 4, 5, 13):
            columns, rows, width, height = grid_layout(count, *size)
            assert columns <= 4 and columns * rows >= count > columns * (rows - 1)
            assert columns * width <= MAX_WIDTH and rows * (height + STRIP) <= MAX_HEIGHT
            assert width % 2 == height % 2 == 0


def test_a_grid_holds_a_picture_of_each_video_at_a_time(tmp_path):
    """However long the videos are; the shortest decides where it ends."""
    for name, length in (("a", 40), ("b", 33)):
        with VideoWriter(tmp_path / f"{name}.mp4", 32, 32) as writer:
            for value in range(length):
                writer.write(torch.full((1, 32, 32, 3), value * 5, dtype=torch.uint8))
    seen = []
    tiles = [("a", tmp_path / "a.mp4"), ("b", tmp_path / "b.mp4")]
    made = write_grid(tmp_path / "grid.mp4", tiles, on_progress=seen.append)
    assert seen == list(range(1, 34)) and made.video_frames == 33 and (made.width, made.height) == (512, 256 + STRIP)
    grid = decoded(made.path)
    assert np.abs(grid[20, STRIP:].astype(int) - 100).max() < 12
