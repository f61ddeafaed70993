"""Video files whose streams, times, sizes and matrices are not those of a plain video."""

import io
import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.report.drift import report_video
from headforcing.headforcing_core.video.reader import open_video, video_stream
from headforcing.headforcing_core.video.section import Footage, FrameTimes, read_section
from PIL import Image

UNIT = 90_000  # of times, a second
MATRICES = {
    "as stored": (1, 0, 0, 1),
    "mirrored": (-1, 0, 0, 1),
    "upside down": (1, 0, 0, -1),
    "turned by 90": (0, 1, -1, 0),
    "turned by 180": (-1, 0, 0, -1),
    "turned by 270": (0, -1, 1, 0),
    "transposed": (0, 1, 1, 0),
    "transposed the other way": (0, -1, -1, 0),
}


def pictures(count: int, width: int = 64, height: int = 48) -> list[np.ndarray]:
    """Grey pictures that differ, brighter at the top and left."""
    slope = np.arange(height)[:, None] + np.arange(width) / 2
    slopes = np.repeat(slope[..., None], 3, axis=2)
    return [
        (255 - slopes - 130 * number / count).clip(0, 255).astype(np.uint8)
        for number in range(count)
    ]


def write(path: Path, times: Sequence[float], size: tuple[int, int] = (64, 48)) -> Path:
    """A video with a picture at each of these seconds."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"crf": "10"})
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = Fraction(1, UNIT)
        for time, picture in zip(times, pictures(len(times), *size), strict=True):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = round(time * UNIT)
            frame.time_base = Fraction(1, UNIT)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", len(content) + 8, kind) + content


def with_cover(path: Path) -> Path:
    """The MP4 with a cover that stands before its tracks, as taggers write it."""
    jpeg = io.BytesIO()
    Image.new("RGB", (32, 32), "red").save(jpeg, "JPEG")
    cover = box(b"covr", box(b"data", struct.pack(">II", 13, 0) + jpeg.getvalue()))
    handler = box(b"hdlr", struct.pack(">II4s4sIIB", 0, 0, b"mdir", b"appl", 0, 0, 0))
    meta = box(b"meta", struct.pack(">I", 0) + handler + box(b"ilst", cover))
    data = path.read_bytes()
    place = data.index(b"moov") - 4
    (length,) = struct.unpack(">I", data[place : place + 4])
    assert place + length == len(data), "the index is the last box"
    path.write_bytes(data[:place] + box(b"moov", box(b"udta", meta) + data[place + 8 :]))
    return path


def with_matrix(path: Path, matrix: tuple[int, int, int, int]) -> Path:
    a, b, c, d = np.multiply(matrix, 65_536)
    data = bytearray(path.read_bytes())
    place = data.index(b"tkhd") + 44
    data[place : place + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    return path


def different(footage: Footage) -> int:
    """How many frames of a video are not the same as the one before."""
    frames = [frame.float() for frame in footage.read(0)]
    changed = [(one - two).abs().mean() > 0.3 for one, two in zip(frames, frames[1:], strict=False)]
    return 1 + sum(map(bool, changed))


def test_a_cover_before_the_tracks_is_never_the_video(tmp_path):
    path = with_cover(write(tmp_path / "v.mp4", [number / 30 for number in range(30)]))
    with av.open(str(path)) as container:
        assert len(container.streams.video) == 2 and container.streams.video[0].width == 32
    footage = Footage.of_file(path)
    assert (footage.video_frames, footage.fps, footage.width) == (30, 30, 64)
    frames, _ = read_section(path, (64, 48), 1.0)
    assert len(frames) == 9
    assert report_video(path).fps == 30


def test_a_file_of_nothing_but_a_cover_is_no_video(tmp_path):
    path = tmp_path / "song.mp4"
    with av.open(str(path), "w") as container:
        sound = container.add_stream("aac", rate=48_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.sample_rate = 48_000
        container.mux(sound.encode(frame))
        container.mux(sound.encode())
    with pytest.raises(HeadForcingError, match="holds no video that can be decoded"):
        Footage.of_file(with_cover(path))


@pytest.mark.parametrize("larger", [0, 1])
def test_of_two_videos_the_one_marked_as_default_is_shown(tmp_path, larger):
    path = tmp_path / "two.mkv"
    with av.open(str(path), "w") as container:
        streams = []
        for number in range(2):
            stream = container.add_stream("libx264", rate=30)
            stream.width = stream.height = 64 if number == larger else 32
            stream.pix_fmt = "yuv420p"
            stream.disposition = av.stream.Disposition(0)
            streams.append(stream)
        streams[1].disposition = av.stream.Disposition.default
        for stream in streams:
            for picture in pictures(4, stream.width, stream.height):
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
    with open_video(path) as container:
        assert video_stream(container).index == 1


BURSTS = {
    "a pause": [*(n / 30 for n in range(30)), *(20 + n / 30 for n in range(30))],
    "slow, then fast": [*(n / 10 for n in range(15)), *(1.5 + n / 60 for n in range(90))],
    "a short burst": [*(n / 10 for n in range(30)), *(3 + n / 60 for n in range(12))],
    "in milliseconds": [round(n / 30, 3) for n in range(60)],
    "uneven": [n / 30 + (0.006 if n % 3 else 0) for n in range(60)],
    "two rates": [*(n / 24 for n in range(24)), *(1 + n / 30 for n in range(30))],
    "film in 60 a second": [n // 2 * 5 / 60 + n % 2 * 3 / 60 for n in range(48)],
    "every three seconds": [3 * n for n in range(10)],
    "two frames": [0, 5],
    "one frame": [0],
}


@pytest.mark.parametrize("times", BURSTS.values(), ids=BURSTS)
@pytest.mark.parametrize("kind", ["mp4", "mkv"])
def test_every_frame_of_a_file_with_a_variable_rate_is_kept(tmp_path, times, kind):
    footage = Footage.of_file(write(tmp_path / f"v.{kind}", times))
    assert different(footage) == len(times)
    assert footage.video_frames == len(list(footage.read(0)))


@pytest.mark.parametrize(
    ("times", "rate"),
    list(zip(BURSTS.values(), (30, 60, 60, 30), strict=False)),
    ids=list(BURSTS)[:4],
)
def test_its_rate_is_the_usual_one_and_not_the_mean(tmp_path, times, rate):
    path = write(tmp_path / "v.mp4", times)
    assert FrameTimes.of(path).fps == pytest.approx(rate, rel=1e-3)
    assert report_video(path).fps == pytest.approx(rate, rel=1e-3)


def test_a_video_whose_times_say_years_is_refused(tmp_path):
    path = write(tmp_path / "years.mkv", [0, 1 / 30, 2 / 30, 10**8])
    with pytest.raises(HeadForcingError, match=r"^years.mkv lasts more than 36000 s"):
        Footage.of_file(path)


def test_a_size_that_changes_on_the_way_is_fitted(tmp_path):
    path = tmp_path / "v.ts"
    times = [number / 30 for number in range(15)]
    parts = [write(tmp_path / "a.ts", times), write(tmp_path / "b.ts", times, (48, 64))]
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    footage = Footage.of_file(path)
    for first in (0, footage.video_frames - 3):
        chunks = list(footage.chunks(first, 4))
        assert {chunk.shape[1:] for chunk in chunks} == {torch.Size([48, 64, 3])}
    assert report_video(path).video_frames == 30


NO_TURNS = {  # matrices that neither turn nor mirror, as numbers of 16.16 and 2.30 bits
    "zero": [0] * 9,
    "enlarged": [1 << 17, 0, 0, 0, 1 << 17, 0, 0, 0, 1 << 30],
    "without its last number": [1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 0],
    "sheared": [1 << 16, 30_000, 0, 0, 1 << 16, 0, 0, 0, 1 << 30],
    "of one line": [1 << 16, 1 << 16, 0, 1 << 16, 1 << 16, 0, 0, 0, 1 << 30],
    "largest": [2**31 - 1] * 9,
    "smallest": [-(2**31)] * 9,
}


@pytest.mark.parametrize("numbers", NO_TURNS.values(), ids=NO_TURNS)
def test_a_matrix_of_any_numbers_is_harmless(tmp_path, numbers):
    path = write(tmp_path / "v.mp4", [number / 30 for number in range(12)])
    data = bytearray(path.read_bytes())
    place = data.index(b"tkhd") + 44
    data[place : place + 36] = struct.pack(">9i", *numbers)
    path.write_bytes(data)
    footage = Footage.of_file(path)
    assert sorted((footage.width, footage.height)) == [48, 64]
    assert len(list(footage.read(0))) == footage.video_frames == 12


def test_a_file_that_is_cut_off_keeps_its_rate(tmp_path):
    """The frames that are lost leave gaps, which do not make the others last longer."""
    path = write(tmp_path / "v.mkv", [number / 30 for number in range(90)])
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 6 // 10])
    footage = Footage.of_file(path)
    assert footage.fps == 30 and 30 < footage.video_frames < 90
    assert report_video(path).fps == 30


@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_a_larger_attached_picture_is_never_the_video(tmp_path, first):
    path = tmp_path / "v.mp4"
    with av.open(str(path), "w") as container:

        def add(codec: str, side: int, pixels: str, disposition: Any) -> Any:
            stream = container.add_stream(codec, rate=30)
            stream.width = stream.height = side
            stream.pix_fmt = pixels
            stream.disposition = disposition
            return stream

        kinds = [("mjpeg", 320, "yuvj420p", av.stream.Disposition.attached_pic)]
        kinds.insert(first, ("libx264", 64, "yuv420p", av.stream.Disposition(0)))
        streams = [add(*kind) for kind in kinds]
        for stream in streams:
            count = 1 if stream.width == 320 else 30
            for picture in pictures(count, stream.width, stream.height):
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
    footage = Footage.of_file(path)
    assert (footage.video_frames, footage.width) == (30, 64)


@pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES)
def test_a_frame_is_turned_and_mirrored_as_its_matrix_says(tmp_path, matrix):
    path = write(tmp_path / "v.mp4", [number / 30 for number in range(3)])
    stored = next(iter(Footage.of_file(path).read(0))).numpy()
    a, b, c, d = matrix
    rows, columns = stored.shape[:2]
    wide, high = (columns, rows) if a else (rows, columns)
    wanted = np.zeros((high, wide, 3), np.uint8)
    for y in range(rows):
        for x in range(columns):
            across = a * x + c * y
            down = b * x + d * y
            wanted[down % high, across % wide] = stored[y, x]
    if -1 in (a, c):  # a mirrored line of n ends at -0, the first one
        wanted = np.roll(wanted, -1, axis=1)
    if -1 in (b, d):
        wanted = np.roll(wanted, -1, axis=0)
    shown = next(iter(Footage.of_file(with_matrix(path, matrix)).read(0))).numpy()
    assert shown.shape == wanted.shape
    assert np.abs(shown.astype(int) - wanted).max() == 0
