"""Videos beside one another in one: sizes that players take, a picture of each at a time, and memory."""

from pathlib import Path

import numpy as np
import own_process
import pytest
import torch
from flat_colour import decoded
from headforcing.headforcing_core.video.grid import MAX_HEIGHT, MAX_WIDTH, STRIP, grid_layout, write_grid
from headforcing.headforcing_core.video.writer import VideoWriter


def test_a_grid_of_any_number_stays_within_what_players_take():
    for size in ((64, 64), (832, 480), (480, 832), (1280, 720), (16, 4096)):
        for count in (1, 2, 4, 5, 13):
            columns, rows, width, height = grid_layout(count, *size)
            assert columns <= 4 and columns * rows >= count > columns * (rows - 1)
            assert columns * width <= MAX_WIDTH and rows * (height + STRIP) <= MAX_HEIGHT
            assert width % 2 == height % 2 == 0


def test_a_grid_holds_a_picture_of_each_video_at_a_time(tmp_path: Path):
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


@pytest.mark.slow
def test_the_memory_of_a_grid_does_not_grow_with_its_length(tmp_path: Path):
    program = "import sys; from pathlib import Path; from peak_memory import peak_bytes\n"
    program += "from headforcing.headforcing_core.video.grid import write_grid\n"
    program += "for video in map(Path, sys.argv[1:]):\n"
    program += (
        " print(write_grid(video.with_suffix('.grid.mp4'), [('a', video), ('b', video)]).video_frames, peak_bytes())\n"
    )
    videos = []
    for length in (50, 250):
        with VideoWriter(tmp_path / f"{length}.mp4", 256, 256) as writer:
            for value in range(length):
                writer.write(torch.full((1, 256, 256, 3), value % 200, dtype=torch.uint8))
        videos.append(tmp_path / f"{length}.mp4")
    short, long = (list(map(int, line.split())) for line in own_process.run("-c", program, *videos).splitlines())
    assert (short[0], long[0]) == (50, 250)
    assert long[1] - short[1] < 20e6  # all pictures of the longer one would be 79 MB more
