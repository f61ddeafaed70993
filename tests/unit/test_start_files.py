"""What a video begins with, from files: a section of any video, and images, in the size of the
render.
"""

import os
import re
import struct
import zlib
from bisect import bisect_left
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from headforcing.cli.cli import main
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.plan.start import Start
from headforcing.headforcing_core.report import drift
from headforcing.headforcing_core.video import section as section_module
from headforcing.headforcing_core.video.reader import fit, open_video, read_image
from headforcing.headforcing_core.video.section import Footage, FrameTimes, read_section
from headforcing.headforcing_core.video.writer import VideoSettings, VideoWriter
from malformed import bounded, refusal
from PIL import Image

SIZE = (48, 32)


def grey(number: int) -> int:
    """The brightness of a video frame that was made with this number."""
    return 16 + 3 * number


def video(
    path: Path,
    times,
    width=48,
    height=32,
    unit=Fraction(1, 1000),
    audio=False,
    corner=False,
    **options,
) -> Path:
    """A video whose frame number i is shown at `times[i]` (in seconds) and is all of `grey(i)`."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"crf": "0", "bf": "2"})
        stream.width = width
        stream.height = height
        stream.pix_fmt = options.pop("pix_fmt", "yuv444p")
        stream.codec_context.time_base = unit
        for name, value in options.items():
            setattr(stream.codec_context, name, value)
        sound = container.add_stream("aac", rate=8000) if audio else None
        for number, time in enumerate(times):
            pixels = np.full((height, width, 3), grey(number), np.uint8)
            if corner:
                pixels[: height // 2, : width // 2] = 255  # at the top left
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(
                format=stream.pix_fmt
            )
            frame.pts = round(time / unit)
            frame.time_base = unit
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if sound is not None:
            silence = av.AudioFrame.from_ndarray(
                np.zeros((1, 8000), np.float32), format="fltp", layout="mono"
            )
            silence.sample_rate = 8000
            silence.pts = 0
            container.mux(sound.encode(silence))
            container.mux(sound.encode())
    return path


def numbers(video_frames: torch.Tensor) -> list[int]:
    """Which video frames of `video` these are."""
    return [round(float(frame.mean() * 255 - 16) / 3) for frame in video_frames]


def section(path: Path, seconds=4.0, part="last", frames_per_block=3, size=SIZE) -> torch.Tensor:
    return read_section(path, size, seconds, part, frames_per_block)[0]


def test_at_the_models_frame_rate_every_frame_is_taken_once(tmp_path):
    path = video(
        tmp_path / "a.mp4", [n / 16 for n in range(40)], pix_fmt="yuv420p", unit=Fraction(1, 16)
    )
    assert numbers(section(path, part="first")) == list(range(33))  # three blocks of 12, less 3
    assert numbers(section(path, part="last")) == list(range(7, 40))
    assert numbers(section(path, part="last", frames_per_block=1)) == list(range(3, 40))
    assert numbers(section(path, part="first", seconds=1.0)) == list(range(9))


def test_other_frame_rates_are_resampled_by_the_times_of_their_frames(tmp_path):
    for rate in (8, 24, 60):
        path = video(
            tmp_path / "a.mp4", [n / rate for n in range(rate * 5 // 4)], unit=Fraction(1, 15360)
        )
        assert numbers(section(path, part="first", frames_per_block=1)) == [
            k * rate // 16 for k in range(17)
        ]
        last = numbers(section(path, part="last", frames_per_block=1))
        assert len(last) == 17 and last[-1] == rate * 5 // 4 - 1
        assert {b - a for a, b in pairwise(last)} <= {rate // 16, -(-rate // 16)}
    # of a variable rate: a picture stays until the next one, however long; a burst of pictures is
    # thinned
    path = video(tmp_path / "a.mkv", [0.0, 0.5, 0.52, 0.54, 1.0])
    found = numbers(section(path, part="first", seconds=1.0, frames_per_block=1))
    # 13 video frames at 16 a second; the one at 0.52 falls between two
    assert found == [0] * 8 + [1] + [3] * 4


def test_sound_is_ignored_and_odd_sizes_and_pixels_that_are_not_square_are_fitted(
    tmp_path, monkeypatch
):
    path = video(tmp_path / "a.mkv", [n / 16 for n in range(9)], width=51, height=77, audio=True)
    found, about = read_section(path, SIZE, 4.0, "last", 3)
    assert found.shape == (9, 32, 48, 3) and numbers(found) == list(range(9))
    assert "last 0.56 of 0.5" in about and "fitted to 48x32" in about
    # a picture of 32x32 pixels twice as wide as high is one of 64x32: of it the middle three
    # quarters are kept
    path = video(tmp_path / "a.mkv", [n / 16 for n in range(9)], width=32, sample_aspect_ratio=2)
    seen = []
    monkeypatch.setattr(
        section_module, "fit", lambda frames, *to: seen.append(to) or fit(frames, *to)
    )
    assert section(path).shape == (9, 32, 48, 3) and set(seen) == {(48, 32, 2.0)}
    plain = fit(torch.arange(32.0).view(1, 1, 32, 1).repeat(1, 32, 1, 3), 48, 32, 2.0)[0, 0, :, 0]
    assert plain[0] > 3.5 and plain[-1] < 27.5


def test_a_part_of_a_file_is_taken_as_a_file(tmp_path):
    """As Video Slice cuts it: from a time on, and so long. Less than a block is refused."""
    path = video(tmp_path / "a.mp4", [n / 16 for n in range(40)], unit=Fraction(1, 16))
    assert numbers(read_section(path, SIZE, 4.0, "last", 1, (1.0, 0.5))[0]) == list(range(19, 24))
    assert numbers(read_section(path, SIZE, 4.0, "first", 1, (1.0, 0.0))[0]) == list(range(16, 37))
    for seconds, part in ((4.0, (1.0, 0.5)), (0.5, (0.0, 0.0))):
        with pytest.raises(
            HeadForcingError, match=r"at least one block of 9 video frames .*, got 8"
        ):
            read_section(path, SIZE, seconds, "last", 3, part)


def test_damaged_files_are_one_sentence(tmp_path):
    data = video(tmp_path / "a.mp4", [n / 16 for n in range(40)], unit=Fraction(1, 16)).read_bytes()
    start = data.index(b"mdat") + 4
    middle = start + len(data[start:]) // 2
    spoiled = data[:start] + b"\xff" * (middle - start) + data[middle:]
    for content, why in (
        (data[:middle], "cannot be read as a video"),
        (spoiled, "(is damaged|cannot|holds no)"),
    ):
        (tmp_path / "bad.mp4").write_bytes(content)
        with pytest.raises(HeadForcingError, match=f"bad.mp4 {why}"):
            section(tmp_path / "bad.mp4")


def saved(path: Path, image: Image.Image, **options) -> Path:
    image.save(path, **options)
    return path


def test_images_of_every_kind_are_read_as_rgb_and_upright(tmp_path):
    ramp = np.linspace(0, 255, 6 * 4).astype(np.uint8).reshape(4, 6)
    grey = Image.fromarray(ramp)
    expected = torch.from_numpy(ramp)[..., None].float().repeat(1, 1, 3) / 255
    cleared = Image.merge("RGBA", (grey, grey, grey, Image.new("L", grey.size, 0)))
    for image in (
        grey.convert("RGB"),
        grey,
        grey.convert("P"),
        cleared,
        Image.fromarray(ramp.astype(np.uint16) * 257),
    ):
        torch.testing.assert_close(read_image(saved(tmp_path / "a.png", image)), expected)
    several = saved(
        tmp_path / "several.gif", grey, save_all=True, append_images=[Image.new("L", grey.size)]
    )
    torch.testing.assert_close(read_image(several), expected)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright: to be turned a quarter clockwise
    image = Image.new("RGB", (40, 20))
    image.paste((255, 255, 255), (0, 0, 20, 10))
    found = read_image(saved(tmp_path / "a.jpg", image, exif=exif, quality=100))
    assert found.shape == (40, 20, 3) and found[:16, 12:].min() > 0.9 and found[:, :8].max() < 0.1


def test_files_that_are_no_images_are_one_sentence(tmp_path):
    whole = saved(tmp_path / "a.png", Image.effect_noise((64, 64), 50)).read_bytes()
    header = bytearray(saved(tmp_path / "a.png", Image.new("L", (1, 1))).read_bytes())
    header[16:24] = struct.pack(">II", 9000, 9000)
    header[29:33] = struct.pack(">I", zlib.crc32(header[12:29]))
    unreadable = r"cannot be read as an image \(.+\): give a PNG or JPEG"
    for content, why in (
        (whole[:99], unreadable),
        (b"text", unreadable),
        (header, "has 9000x9000 pixels: give"),
    ):
        (tmp_path / "bad.png").write_bytes(content)
        with pytest.raises(HeadForcingError, match=rf"bad\.png {why}"):
            read_image(tmp_path / "bad.png")


def test_the_middle_of_a_picture_of_any_size_is_kept():
    for width, height in ((1, 1), (3, 200), (200, 3), (47, 33)):
        found = fit(torch.rand(2, height, width, 3), 48, 32)
        assert found.shape == (2, 32, 48, 3) and found.isfinite().all()
    columns = torch.arange(80.0).view(1, 1, 80, 1).repeat(1, 20, 1, 3)
    torch.testing.assert_close(fit(columns, 20, 20), columns[:, :, 30:50])
    torch.testing.assert_close(
        fit(columns.transpose(1, 2), 20, 20), columns.transpose(1, 2)[:, 30:50]
    )


@pytest.mark.parametrize(("matrix", "bright"), [((0, 1, -1, 0), (0, 1)), ((-1, 0, 0, -1), (1, 1))])
def test_a_video_is_turned_upright(tmp_path, matrix, bright):
    """The display matrix of a phone's file: a quarter turn clockwise, and half a turn."""
    quarter = bright == (0, 1)
    path = video(
        tmp_path / "a.mp4", [n / 16 for n in range(9)], 32, 48 if quarter else 32, corner=True
    )
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 44
    for place, value in zip((0, 4, 12, 16), matrix, strict=True):
        data[at + place : at + place + 4] = (value << 16).to_bytes(4, "big", signed=True)
    path.write_bytes(data)
    with open_video(path) as container:  # that a report measures
        (measured, *_) = [pixels[0].mean(-1) for pixels in drift.read_frames(container, "a.mp4")]
    assert measured[(8, -8)[bright[0]], (8, -8)[bright[1]]] > 230
    frame = section(path, size=(48, 32) if quarter else (32, 32))[0].mean(-1)
    for row, half in enumerate(frame.chunk(2, dim=0)):
        for column, part in enumerate(half.chunk(2, dim=1)):
            inner = part[2:-2, 2:-2]
            assert inner.min() > 0.9 if (row, column) == bright else inner.max() < 0.2


def test_the_end_of_a_long_file_is_decoded_from_a_key_frame_on(tmp_path, monkeypatch):
    path = video(tmp_path / "a.mp4", [n / 16 for n in range(70)], unit=Fraction(1, 16), gop_size=16)
    decoded = []

    def counted(times, time):
        decoded.append(time)
        return bisect_left(times, time)

    monkeypatch.setattr(section_module, "bisect_left", counted)
    assert numbers(section(path, seconds=1.0)) == list(range(61, 70)) and len(decoded) < 40


def test_a_file_without_timestamps_is_read_by_its_frame_rate(tmp_path):
    path = video(tmp_path / "a.h264", [n / 16 for n in range(40)], unit=Fraction(1, 16))
    clock = FrameTimes.of(path)
    assert not clock.timed and len(clock.times) == 40
    middle = round(clock.fps / 2), round(clock.fps * 1.5) - 1
    for window, (first, last) in (((0.0, 0.0), (0, 37)), ((0.5, 1.0), middle)):
        found = read_section(path, SIZE, 30.0, "first", 1, window, fps=clock.fps)[0]
        assert numbers(found)[0] == first and len(found) == 1 + (last - first) // 4 * 4


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(%s) (w) file dup (written) writestring closefile showpage\n"


@pytest.mark.parametrize("option", [None, "--start-image", "--reference"])
def test_a_picture_that_is_a_program_is_refused_and_not_run(tmp_path, option, capsys):
    """Pillow hands EPS to Ghostscript, whatever the file is called."""
    victim = tmp_path / "victim.txt"
    victim.write_text("kept")
    program = tmp_path / "hero.png"
    program.write_bytes(POSTSCRIPT.replace(b"%s", str(victim).encode()))
    refused = "hero.png cannot be read as an image.*give a PNG or JPEG"
    if option is None:
        with pytest.raises(HeadForcingError, match=refused):
            read_image(program)
    else:
        command = [
            "demo",
            "--out",
            str(tmp_path / "out"),
            "--prompts",
            "0:00 @hero a red ball in the teal plain room",
        ]
        command += [
            "--seconds",
            "1",
            option,
            f"hero={program}" if option == "--reference" else str(program),
        ]
        command += (
            ["--model-family", "causal_forcing_framewise_1_step"]
            if option == "--start-image"
            else []
        )
        assert main(command) == 2
        assert re.search(refused, capsys.readouterr().err)
    assert victim.read_text() == "kept"


@pytest.mark.parametrize("values", [(0.0, 0.25, 1.0, 1.5), (float("nan"), 0.0, 0.0, 0.0)])
def test_a_picture_of_floats_keeps_its_values_or_is_refused(tmp_path, values):
    path = tmp_path / "floats.tiff"
    Image.fromarray(np.asarray(values, np.float32).reshape(2, 2), mode="F").save(path)
    if np.isfinite(values).all():
        assert read_image(path)[..., 0].flatten().tolist() == [0.0, 0.25, 1.0, 1.0]
        return
    with pytest.raises(HeadForcingError, match="NaN or infinity"):
        read_image(path)


ADDRESSES = (
    "file:{path}",
    "concat:{path}|{path}",
    "http://127.0.0.1:9/x.mp4",
    "subfile,,start,0,end,0,,:{path}",
    "pipe:0",
)


@pytest.mark.parametrize("words", ADDRESSES)
def test_a_video_is_a_file_on_this_disk_and_no_address(tmp_path, words):
    path = video(tmp_path / "v.mp4", [0, 0.04, 0.08])
    with pytest.raises(HeadForcingError, match="was not found"):
        open_video(words.format(path=path))


@pytest.mark.parametrize(
    ("name", "text"),
    {
        "list.ffconcat": "ffconcat version 1.0\nfile {path}\n",
        "list.m3u8": "#EXTM3U\n#EXTINF:1,\n{path}\n#EXT-X-ENDLIST\n",
        "list.sdp": (
            "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nm=video 9 RTP/AVP 96\n"
        ),
    }.items(),
)
def test_a_list_of_other_files_or_addresses_is_no_video(tmp_path, name, text):
    path = video(tmp_path / "v.mp4", [0, 0.04, 0.08])
    (tmp_path / name).write_text(text.format(path=path))
    with pytest.raises(HeadForcingError, match="cannot be read as a video"):
        open_video(tmp_path / name)


def test_pictures_and_videos_are_opened_in_one_place_each(repo_root):
    """Elsewhere videos are only written."""
    places = []
    for folder in ("headforcing_core", "nodes", "kernels"):
        for file in (repo_root / folder).rglob("*.py"):
            for line in file.read_text("utf-8").splitlines():
                if re.search(
                    r"Image\.open\(|\bav\.open\((?!.*\"w\")|VideoCapture|imread|ffmpeg -i", line
                ):
                    places.append(f"{file.name}: {line.strip()}")
    assert sorted(place.partition(":")[0] for place in places) == ["reader.py", "reader.py"], places


def test_a_file_may_be_called_like_an_address(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = video(tmp_path / "v.mp4", [0, 0.04, 0.08])
    path.rename(tmp_path / "concat:v.mp4")
    with open_video("concat:v.mp4") as container:
        assert container.streams.video[0].width == 48


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("read", [read_image, open_video])
def test_a_pipe_is_refused_at_once(tmp_path, read):
    os.mkfifo(pipe := tmp_path / "pipe.png")
    with pytest.raises(HeadForcingError, match="is a pipe or a device"):
        read(pipe)


@pytest.mark.parametrize("fps", [30, 240, 1000])
def test_a_video_of_a_high_rate_has_as_many_frames_as_its_file(tmp_path, fps):
    with VideoWriter(VideoSettings(tmp_path / "v.mp4", fps=fps, crf=1), 48, 32) as writer:
        for number in range(40):
            writer.write(torch.full((1, 32, 48, 3), grey(number) / 255))
    footage = Footage.of_file(tmp_path / "v.mp4")
    assert footage.video_frames == 40 and round(footage.fps) == fps
    frames = torch.stack([frame.float() / 255 for frame in footage.read(0)])
    assert numbers(frames) == list(range(40))


def test_a_portrait_is_scaled_without_aliasing_and_another_start_image_as_comfyui_does():
    lines = torch.zeros(512, 512, 3)
    lines[::8] = 1.0  # thinner than the pixels of the small picture
    size = (64, 64)
    plain = Start.image(lines, size, "lines").video_frames
    portrait = Start.image(lines, size, "lines", portrait=True).video_frames
    assert torch.equal(plain[0], fit(lines[None], *size)[0])
    middle = portrait[0, 4:-4]
    torch.testing.assert_close(middle, torch.full_like(middle, 1 / 8), atol=0.01, rtol=0)
    assert not plain.any()


def ivf(path: Path, numbers: list[int]) -> Path:
    """An IVF file of 64x64, VP8, with these times of frames in eighths of a second."""
    whole = path.with_name("whole.ivf")
    with av.open(str(whole), "w") as container:
        stream = container.add_stream("libvpx", rate=8)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for number in range(len(numbers)):
            pixels = np.full((64, 64, 3), 20 * number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    data = bytearray(whole.read_bytes())
    data[16:24] = struct.pack("<II", 8, 1)
    place = 32
    for number in numbers:
        (size,) = struct.unpack_from("<I", data, place)
        struct.pack_into("<Q", data, place + 4, number)
        place += 12 + size
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "numbers", [[2**62 + number for number in range(8)], [*range(7), 10**12]], ids=["late", "gap"]
)
def test_times_that_no_video_has_are_refused(tmp_path, numbers):
    """As numbers of double precision they would be one frame, or one for thousands of years."""
    path = ivf(tmp_path / "x.ivf", numbers)
    for read in (lambda: Footage.of_file(path), lambda: read_section(path, SIZE, 4.0)):
        with pytest.raises(HeadForcingError, match=r"^x.ivf says that it has a frame at"):
            read()


def test_a_recording_that_counts_from_1970_has_all_its_frames(tmp_path):
    path = ivf(tmp_path / "x.ivf", [8 * 1_790_000_000 + number for number in range(8)])
    footage = Footage.of_file(path)
    assert (footage.video_frames, footage.fps) == (8, 8)
    assert [round(frame[0, 0, 0].item() / 20) for frame in footage.read(0)] == list(range(8))


def png(path: Path, width: int, height: int, chunk: bytes = b"", data: bytes = b"") -> Path:
    def part(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    header = part(b"IHDR", struct.pack(">II", width, height) + b"\x08\x02\0\0\0")
    extra = part(chunk[:4], chunk[4:]) if chunk else b""
    body = part(b"IDAT", zlib.compress(data)) + part(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + extra + body)
    return path


ROWS = (b"\0" + b"\x40" * 24) * 8  # of a picture of 8x8
CLAIMS = {  # size, a chunk, the data, and whether it is read
    "3.6 billion pixels": (60_000, 60_000, b"", b"", False),
    "more than there are numbers for": (2**31 - 1, 2**31 - 1, b"", b"", False),
    "no pixels": (0, 8, b"", ROWS, False),
    "no data": (500, 500, b"", b"", False),
    "much more data": (8, 8, b"", bytes(300_000_000), True),
    "a text of 200 MB": (8, 8, b"zTXta\0\0" + zlib.compress(bytes(200_000_000)), ROWS, False),
    "a profile of 200 MB": (8, 8, b"iCCPa\0\0" + zlib.compress(bytes(200_000_000)), ROWS, False),
    "two billion frames": (8, 8, b"acTL" + struct.pack(">II", 2**31 - 1, 0), ROWS, True),
    "damaged tags": (8, 8, b"eXIfMM\0*\0\0\0\x08\0\1\1\x12\0\3\x80\0\0\0\xff", ROWS, True),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_a_picture_states_takes_no_memory(tmp_path, claim, recwarn):
    *given, is_read = CLAIMS[claim]
    path = png(tmp_path / "x.png", *given)
    if is_read:
        with bounded():
            assert read_image(path).shape == (8, 8, 3)
    else:
        assert "x.png" in refusal(lambda: read_image(path))
    assert not recwarn.list


@pytest.mark.parametrize("size", [(1, 100_000), (100_000, 1)])
def test_a_line_of_pixels_is_a_picture(tmp_path, size):
    path = saved(tmp_path / "line.png", Image.new("RGB", size, (90, 90, 90)))
    with bounded():
        fitted = fit(read_image(path)[None], *SIZE)
    assert fitted.shape == (1, SIZE[1], SIZE[0], 3)
    assert torch.allclose(fitted, torch.tensor(90 / 255))


def test_a_frame_of_another_size_on_the_way_is_stretched_to_that_of_the_first(tmp_path):
    """As FFmpeg does it; a crop would lose the white stripe at the top."""
    path = tmp_path / "x.ts"
    for size in ((64, 32), (32, 64)):
        part = tmp_path / "part.ts"
        with av.open(str(part), "w") as container:
            stream = container.add_stream("libx264", rate=8, options={"crf": "0"})
            stream.width, stream.height = size
            pixels = np.zeros((size[1], size[0], 3), np.uint8)
            pixels[: size[1] // 4] = 255
            for _ in range(8):
                frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        with open(path, "ab") as whole:
            whole.write(part.read_bytes())
    frames = list(Footage.of_file(path).read(0))
    assert {tuple(frame.shape) for frame in frames} == {(32, 64, 3)}
    for frame in (frames[0], frames[-1]):
        assert frame[:6].min() > 200 and frame[10:].max() < 60
