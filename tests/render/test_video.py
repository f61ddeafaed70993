"""Streaming decode and encode: exact chunks, whole files or none; sheets and grids of videos."""

from __future__ import annotations

import io
import itertools
import signal
import time
import tracemalloc
from pathlib import Path
from unittest.mock import Mock

import av
import numpy as np
import pytest
import torch
from flat_colour import FlatColourDecoder, decoded, latents
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.video import sheets
from headforcing.headforcing_core.video import writer as video_writer
from headforcing.headforcing_core.video.grid import (
    MAX_HEIGHT,
    MAX_WIDTH,
    STRIP,
    grid_layout,
    write_grid,
)
from headforcing.headforcing_core.video.reader import open_video
from headforcing.headforcing_core.video.section import Footage
from headforcing.headforcing_core.video.sheets import contact_sheet
from headforcing.headforcing_core.video.sound import sound_of_file, sound_of_samples
from headforcing.headforcing_core.video.stream import Chunks, VideoStream, write_video
from headforcing.headforcing_core.video.writer import VideoSettings, VideoWriter
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image


@given(st.lists(st.integers(0, 7), max_size=12))
def test_chunks_hold_every_frame_once_and_keep_the_rule(sizes):
    frames = torch.arange(sum(sizes))
    cut = Chunks()
    chunks: list[torch.Tensor] = []
    for block in frames.split(sizes):
        chunks += cut.add(block)
    chunks += cut.rest()
    assert torch.equal(torch.cat([*chunks, frames[:0]]), frames)
    assert all(len(chunk) > 0 for chunk in chunks)
    assert [len(chunk) for chunk in chunks[:1]] in ([], [1])
    assert all(len(chunk) >= 2 for chunk in chunks[1:-1])
    assert max(map(len, chunks), default=0) <= max(sizes, default=0) + 1


@pytest.mark.parametrize("block", [3, 1])
def test_a_video_plays_while_it_grows_and_becomes_a_plain_mp4_with_every_picture_in_order(
    tmp_path, block
):
    tags = {"prompt": '{"1": {"class_type": "é"}}', "workflow": "w" * 100_000, "head_forcing": "{}"}
    progress = []
    decoder = FlatColourDecoder()
    path = tmp_path / "v.mp4"
    partial = tmp_path / "v.part.mp4"

    def watch(video_frames):
        progress.append(video_frames)
        if 100 < video_frames < 237:
            # x264 holds back no more
            assert video_frames - 70 <= len(decoded(partial)) and not path.exists()

    settings = VideoSettings(path, tags=tags, crf=4, partial=partial)
    info = write_video(settings, latents(60).split(block), decoder, on_progress=watch)
    assert (info.video_frames, info.width, info.height, info.seconds) == (237, 48, 32, 237 / 16)
    assert (
        progress[-1] == 237 and progress == sorted(progress) and list(tmp_path.iterdir()) == [path]
    )
    wanted = latents(60)[:, 0, 0, 0].repeat_interleave(torch.tensor([1] + [4] * 59)).numpy() * 255
    np.testing.assert_allclose(decoded(info.path).mean((1, 2, 3)), wanted, atol=2)
    with av.open(str(info.path)) as container:
        stream = container.streams.video[0]
        assert {key: container.metadata[key] for key in tags} == tags
        assert (stream.frames, stream.average_rate, stream.codec_context.name) == (237, 16, "h264")
        assert (stream.start_time, stream.codec_context.pix_fmt) == (0, "yuv420p")
        assert [frame.pts * frame.time_base * 16 for frame in container.decode(video=0)] == list(
            range(237)
        )
    data = info.path.read_bytes()
    assert b"moof" not in data and data.index(b"moov") < data.index(b"mdat")
    assert decoder.chunks == [], "the decoder is free again"


def test_colours_survive_in_both_ways_comfyui_reads_them(tmp_path):
    colours = np.array([(235, 41, 36), (26, 87, 87), (163, 219, 214), (255, 140, 20)], np.uint8)
    video_frames = torch.from_numpy(colours)[:, None, None].expand(-1, 64, 64, -1)
    with VideoWriter(VideoSettings(tmp_path / "v.mp4", crf=4), 64, 64) as writer:
        writer.write(video_frames)
    assert np.abs(decoded(tmp_path / "v.mp4")[:, 30, 30].astype(int) - colours).max() <= 4
    assert np.abs(decoded(tmp_path / "v.mp4", "gbrpf32le")[:, 30, 30] * 255 - colours).max() <= 4


@pytest.mark.slow
def test_the_same_pictures_are_the_same_file_whatever_the_pace(tmp_path):
    """At a width of twelve blocks of 16 pixels, where x264's macroblock trees would differ from run
    to run.
    """
    i, y, x = torch.meshgrid(torch.arange(72), torch.arange(192), torch.arange(192), indexing="ij")
    moving = ((x + 3 * i) % 48 < 24) * 0.6 + ((y - 60 - i) ** 2 + (x - 2 * i) ** 2 < 400) * 0.4
    video_frames = moving[..., None].expand(-1, -1, -1, 3)
    files = []
    for attempt in range(3):
        with VideoWriter(VideoSettings(tmp_path / f"{attempt}.mp4"), 192, 192) as writer:
            for chunk in video_frames.split(12):
                writer.write(chunk)
                time.sleep(0.02 * attempt)
        files.append((tmp_path / f"{attempt}.mp4").read_bytes())
    assert len(set(files)) == 1


def test_scale_makes_every_pixel_a_crisp_square(tmp_path):
    pixels = (torch.rand(4, 6, generator=torch.Generator().manual_seed(0)) > 0.5).float()

    class OneFrame(FlatColourDecoder):
        def decode(self, latents):
            return pixels[None, ..., None].expand(-1, -1, -1, 3)

    info = write_video(VideoSettings(tmp_path / "v.mp4", scale=8, crf=1), [latents(1)], OneFrame())
    assert (info.width, info.height) == (48, 32)
    assert (
        np.abs(
            decoded(info.path)[0, :, :, 0] / 255 - np.kron(pixels.numpy(), np.ones((8, 8)))
        ).max()
        < 0.1
    )


def test_frames_that_are_no_numbers_are_no_black_video(tmp_path):
    class NoNumbers(FlatColourDecoder):
        def decode(self, latents):
            return torch.full((1, 32, 32, 3), float("nan"))

    with pytest.raises(HeadForcingError, match="NaN or infinity in the latents or by the VAE"):
        write_video(VideoSettings(tmp_path / "v.mp4"), [latents(1)], NoNumbers())
    assert not list(tmp_path.iterdir())


def test_a_failed_run_leaves_the_old_file_and_what_had_grown_which_plays_to_its_last_picture(
    tmp_path,
):
    path = tmp_path / "v.mp4"
    partial = tmp_path / "v.part.mp4"
    decoder = FlatColourDecoder()
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError):
        write_video(VideoSettings(path), (latents(3 // n) for n in (1, 0)), decoder)
    assert list(tmp_path.iterdir()) == [path] and decoder.chunks == []
    partial.write_bytes(b"of an earlier attempt")
    settings = VideoSettings(path, tags={"workflow": "{}"}, crf=4, partial=partial)
    with pytest.raises(KeyboardInterrupt), VideoStream(settings, FlatColourDecoder()) as stream:
        stream.add(latents(9))
        raise KeyboardInterrupt
    assert (
        path.read_bytes() == b"old"
        and set(tmp_path.iterdir()) == {path, partial}
        and len(decoded(partial)) == 33
    )
    with av.open(str(partial)) as container:
        assert container.metadata["workflow"] == "{}"


def test_a_full_disk_is_said_in_one_sentence_and_what_was_written_plays(tmp_path, monkeypatch):
    resource = pytest.importorskip("resource", reason="limits of POSIX")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    monkeypatch.setattr(
        FlatColourDecoder, "decode", lambda decoder, given: torch.rand(4 * len(given), 32, 48, 3)
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    try:
        with pytest.raises(
            HeadForcingError, match=r"the video .+v.mp4 cannot be written: File too large"
        ):
            settings = VideoSettings(tmp_path / "v.mp4", partial=tmp_path / "v.part.mp4")
            write_video(settings, latents(120).split(3), FlatColourDecoder())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert [path.name for path in tmp_path.iterdir()] == ["v.part.mp4"]
    shown = 0
    with (
        av.open(str(tmp_path / "v.part.mp4")) as container,
        pytest.raises(av.error.InvalidDataError),
    ):
        for _ in container.decode(video=0):  # the last picture is cut off
            shown += 1
    assert shown > 16


def moving(count: int) -> torch.Tensor:
    """Video frames `[n, 32, 48, 3]`, each of which has a grey of its own in one half."""
    frames = torch.zeros(count, 32, 48, 3)
    frames[:, :, 24:] = (torch.arange(count) * 7 % 101 / 100)[:, None, None, None]
    return frames


@pytest.mark.parametrize("lost", [0, 1, 100])
def test_a_stopped_video_goes_on_before_its_last_key_frame_and_has_every_frame_once(tmp_path, lost):
    """The last group of frames may be cut off: it is written again. The groups before it are
    copied.
    """
    path = tmp_path / "v.mp4"
    partial = tmp_path / "v.part.mp4"
    frames = moving(120)
    settings = VideoSettings(path, crf=1, partial=partial)
    with pytest.raises(KeyboardInterrupt), VideoWriter(settings, 48, 32, goes_on=True) as writer:
        writer.write(frames[:100])
        raise KeyboardInterrupt
    if lost:
        partial.write_bytes(partial.read_bytes()[:-lost])
    with VideoWriter(settings, 48, 32, goes_on=True) as writer:
        begun = writer.video_frames
        writer.write(frames[begun:])
    assert 32 <= begun <= 96, "neither anew, nor behind frames that may be cut off"
    found = decoded(path).astype(float)[:, 16, 36].mean(-1)
    assert np.abs(found - frames[:, 16, 36].mean(-1).numpy() * 255).max() < 3
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("ending", [".mp4", ".mkv"])
def test_the_sound_of_a_section_begins_with_the_section(tmp_path, ending):
    """A tone begins at 1 s; in a section from 0.6 s on it is heard at 0.4 s. MP4 is copied, MKV
    holds PCM.
    """
    rate = 48_000
    at = torch.arange(2 * rate) / rate
    samples = ((at >= 1) * (at * 2764).sin() * 0.8)[None]
    source = tmp_path / f"source{ending}"
    with VideoWriter(
        VideoSettings(tmp_path / "source.mp4"), 48, 32, sound=sound_of_samples(samples, rate)
    ) as writer:
        writer.write(moving(32))
    if ending == ".mkv":
        with av.open(str(source), "w") as target:
            stream = target.add_stream("pcm_s16le", rate=rate, layout="mono")
            picture = target.add_stream("mpeg4", rate=16)
            picture.width = 48
            picture.height = 32
            picture.pix_fmt = "yuv420p"
            target.mux(picture.encode(av.VideoFrame(48, 32, "yuv420p")))
            target.mux(picture.encode())
            for place in range(0, 2 * rate, 960):
                values = (samples[:, place : place + 960].numpy() * 32767).astype(np.int16)
                frame = av.AudioFrame.from_ndarray(values, format="s16", layout="mono")
                frame.sample_rate = rate
                frame.pts = place
                target.mux(stream.encode(frame))
    with VideoWriter(
        VideoSettings(tmp_path / "part.mp4"), 48, 32, sound=sound_of_file(source, 0.6, 1.8)
    ) as writer:
        writer.write(moving(19))
    with av.open(str(tmp_path / "part.mp4")) as container:
        loud = [
            frame.time + int(np.abs(frame.to_ndarray()[0]).argmax()) / rate
            for frame in container.decode(audio=0)
            if np.abs(frame.to_ndarray()).max() > 0.3
        ]
    assert loud[0] == pytest.approx(0.4, abs=0.03)
    assert 1.1 < loud[-1] < 1.25


def test_a_video_in_memory_is_read_again_and_again_and_keeps_its_sound(tmp_path):
    tone = sound_of_samples(torch.linspace(0, 400, 48_000).sin()[None], 48_000)
    with VideoWriter(VideoSettings(tmp_path / "v.mp4"), 48, 32, sound=tone) as writer:
        writer.write(torch.rand(16, 32, 48, 3))
    footage = Footage.of_file(io.BytesIO((tmp_path / "v.mp4").read_bytes()))
    # a chunk begins with the last frame of the one before
    assert sum(map(len, footage.chunks(0, 5))) == 16 + 2
    with VideoWriter(VideoSettings(tmp_path / "w.mp4"), 48, 32, sound=footage.sound) as writer:
        writer.write(torch.rand(16, 32, 48, 3))
    with av.open(str(tmp_path / "w.mp4")) as container:
        assert sum(frame.samples for frame in container.decode(audio=0)) >= 48_000


def test_pictures_and_sound_of_a_video_in_memory_are_read_in_turn(tmp_path):
    """Of more frames than a reader takes at once; the bytes are in memory once."""
    noise = torch.randn(2, 3 * 48_000, generator=torch.Generator().manual_seed(0)) * 0.2
    pictures = torch.randint(0, 255, (48, 128, 128, 3), dtype=torch.uint8)
    sound = sound_of_samples(noise, 48_000)
    with VideoWriter(VideoSettings(tmp_path / "v.mp4", crf=1), 128, 128, sound=sound) as writer:
        writer.write(pictures)
    content = (tmp_path / "v.mp4").read_bytes()
    source = io.BytesIO(content)
    finished = []
    for opened in (tmp_path / "v.mp4", source):
        footage = Footage.of_file(opened)
        settings = VideoSettings(tmp_path / f"{len(finished)}.mp4", footage.fps)
        with VideoWriter(settings, 128, 128, sound=footage.sound) as writer:
            for frame in footage.read(0):
                writer.write(frame[None])
        finished.append(settings.path.read_bytes())
    assert finished[0] == finished[1]
    assert len(content) > 1_000_000
    tracemalloc.start()
    with open_video(source):
        used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert used < len(content) / 4


def test_a_locked_file_is_said_and_what_was_made_stays(tmp_path, monkeypatch):
    """As on Windows, where a file that a player has open cannot be replaced."""
    locked = PermissionError(13, "The process cannot access the file")
    monkeypatch.setattr("headforcing.headforcing_core.files.os.replace", Mock(side_effect=locked))
    partial = tmp_path / "v.part.mp4"
    with pytest.raises(
        HeadForcingError, match=r"v\.mp4 cannot be written: The process cannot access the file"
    ):
        write_video(
            VideoSettings(tmp_path / "v.mp4", partial=partial),
            latents(6).split(3),
            FlatColourDecoder(),
        )
    assert list(tmp_path.iterdir()) == [partial] and len(decoded(partial)) == 21


def test_somebody_who_watches_the_growing_file_does_not_cost_the_video(tmp_path, monkeypatch):
    """As on Windows, where an open file can be neither removed nor written again."""
    watched = tmp_path / "v.part.mp4"
    opened = av.open
    unlink = Path.unlink

    def refuse(*given, **options):
        raise PermissionError(13, "used by another process")

    def open_still(file, mode="r", **options):
        return (refuse if (file, mode) == (str(watched), "w") else opened)(file, mode, **options)

    monkeypatch.setattr(
        Path,
        "unlink",
        lambda file, **options: (refuse if file == watched else unlink)(file, **options),
    )
    for name in ("first", "second"):
        settings = VideoSettings(tmp_path / f"{name}.mp4", partial=watched)
        info = write_video(settings, latents(6).split(3), FlatColourDecoder())
        assert len(decoded(info.path)) == 21
        monkeypatch.setattr(video_writer.av, "open", open_still)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "first.mp4",
        "second.mp4",
        "v.part.mp4",
    ]


def test_errors_name_what_is_wrong(tmp_path, monkeypatch):
    path = tmp_path / "v.mp4"
    with pytest.raises(HeadForcingError, match="no latent frames"):
        write_video(VideoSettings(path), [], FlatColourDecoder())
    monkeypatch.setattr(video_writer, "ENCODER", "no_such_encoder")
    with pytest.raises(HeadForcingError, match="no H.264 encoder"):
        VideoWriter(VideoSettings(tmp_path / "v.mp4"), 48, 32)
    assert list(tmp_path.iterdir()) == []


def sheet_of(tmp_path, frames=61, **options):
    info = write_video(
        VideoSettings(tmp_path / "v.mp4", crf=4), latents(frames).split(3), FlatColourDecoder()
    )
    contact_sheet(info.path, tmp_path / "s.png", **options)
    return np.asarray(Image.open(tmp_path / "s.png"), dtype=int)


def test_a_contact_sheet_tiles_the_video_to_its_last_picture_and_marks_prompts_where_they_begin(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(sheets, "COLUMNS", 4)
    monkeypatch.setattr(sheets, "ROWS", 2)
    sheet = sheet_of(tmp_path)
    short = sheet_of(tmp_path, frames=1)
    assert short.shape[1] == 2 * 16 + 640
    assert (short[-17:, 16 + 128 :] == sheets.BACKGROUND).all(), "each picture once"
    tile_height = round(128 * 32 / 48)
    row_height = 24 + tile_height + 4
    assert sheet.shape == (2 * 16 + 34 + 2 * row_height - 4, 2 * 16 + 640, 3)
    places = itertools.product(range(2), range(4))
    middles = [
        sheet[50 + row * row_height + 24 + 60, 16 + column * 132 + 64, 0] for row, column in places
    ]
    np.testing.assert_allclose(middles, np.linspace(0.1, 0.9, 8) * 255, atol=6)
    blue = (86, 156, 255)
    orange = (255, 159, 64)
    sheet = sheet_of(tmp_path, labels=[(9.0, "second " * 100), (0.0, "first")])
    bars = []
    for row, column in itertools.product(range(2), range(4)):
        y = 50 + 2 * 20 + row * row_height + 22
        bars.append(tuple(sheet[y, 16 + column * 132 + 64]))
    assert bars == [blue] * 5 + [orange] * 3


def test_a_contact_sheet_names_twelve_prompts_and_says_that_there_are_more(tmp_path):
    heights = []
    for count in (12, 13, 300):
        labels = [(number / 100, f"prompt {number}") for number in range(count)]
        heights.append(len(sheet_of(tmp_path, frames=3, labels=labels)))
    assert heights[1] == heights[2] == heights[0] + 20


def test_a_grid_of_any_number_stays_within_what_players_take():
    for size, count in itertools.product(
        ((64, 64), (832, 480), (480, 832), (16, 4096)), (1, 2, 5, 13)
    ):
        columns, rows, width, height = grid_layout(count, *size)
        assert (
            columns <= 4
            and columns * rows >= count > columns * (rows - 1)
            and width % 2 == height % 2 == 0
        )
        assert columns * width <= MAX_WIDTH and rows * (height + STRIP) <= MAX_HEIGHT


def test_a_grid_holds_a_picture_of_each_video_at_a_time(tmp_path):
    """However long the videos are; the shortest decides where it ends."""
    for name, length in (("a", 40), ("b", 33)):
        with VideoWriter(VideoSettings(tmp_path / f"{name}.mp4"), 32, 32) as writer:
            for value in range(length):
                writer.write(torch.full((1, 32, 32, 3), value * 5, dtype=torch.uint8))
    seen = []
    tiles = [("a", tmp_path / "a.mp4"), ("b", tmp_path / "b.mp4")]
    made = write_grid(tmp_path / "grid.mp4", tiles, on_progress=seen.append)
    assert (
        seen == list(range(1, 34))
        and made.video_frames == 33
        and (made.width, made.height) == (512, 256 + STRIP)
    )
    grid = decoded(made.path)
    assert np.abs(grid[20, STRIP:].astype(int) - 100).max() < 12
