"""Streaming decode and encode: exact chunks, whole files or none, constant memory."""

from __future__ import annotations

import io
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from unittest.mock import Mock

import av
import numpy as np
import pytest
import torch
from flat_colour import FlatColourDecoder, decoded, latents
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.video import writer as video_writer
from headforcing.headforcing_core.video.section import Footage
from headforcing.headforcing_core.video.sound import sound_of_samples
from headforcing.headforcing_core.video.stream import Chunks, VideoStream, write_video
from headforcing.headforcing_core.video.writer import VideoWriter
from hypothesis import given
from hypothesis import strategies as st
from own_process import run


@given(st.lists(st.integers(0, 7), max_size=12))
def test_chunks_hold_every_frame_once_and_keep_the_rule(sizes):
    frames, cut = torch.arange(sum(sizes)), Chunks()
    chunks = [*(chunk for block in frames.split(sizes) for chunk in cut.add(block)), *cut.rest()]
    assert torch.equal(torch.cat([*chunks, frames[:0]]), frames)
    assert all(len(chunk) > 0 for chunk in chunks)
    assert [len(chunk) for chunk in chunks[:1]] in ([], [1])
    assert all(len(chunk) >= 2 for chunk in chunks[1:-1])
    assert max(map(len, chunks), default=0) <= max(sizes, default=0) + 1


@pytest.mark.parametrize("block", [3, 1, 5])
def test_a_video_plays_while_it_grows_and_becomes_a_plain_mp4_with_every_picture_in_order(tmp_path, block):
    tags = {"prompt": '{"1": {"class_type": "é"}}', "workflow": "w" * 100_000, "head_forcing": "{}"}
    progress, decoder, path, partial = [], FlatColourDecoder(), tmp_path / "v.mp4", tmp_path / "v.part.mp4"

    def watch(video_frames):
        progress.append(video_frames)
        if 100 < video_frames < 237:
            assert video_frames - 70 <= len(decoded(partial)) and not path.exists()  # x264 holds back no more

    options = {"on_progress": watch, "metadata": tags, "crf": 4, "partial": partial}
    info = write_video(path, latents(60).split(block), decoder, **options)
    assert (info.video_frames, info.width, info.height, info.seconds) == (237, 48, 32, 237 / 16)
    assert progress[-1] == 237 and progress == sorted(progress) and list(tmp_path.iterdir()) == [path]
    wanted = latents(60)[:, 0, 0, 0].repeat_interleave(torch.tensor([1] + [4] * 59)).numpy() * 255
    np.testing.assert_allclose(decoded(info.path).mean((1, 2, 3)), wanted, atol=2)
    with av.open(str(info.path)) as container:
        stream = container.streams.video[0]
        assert {key: container.metadata[key] for key in tags} == tags
        assert (stream.frames, stream.average_rate, stream.codec_context.name) == (237, 16, "h264")
        assert (stream.start_time, stream.codec_context.pix_fmt) == (0, "yuv420p")
        assert [frame.pts * frame.time_base * 16 for frame in container.decode(video=0)] == list(range(237))
    data = info.path.read_bytes()
    assert b"moof" not in data and data.index(b"moov") < data.index(b"mdat")
    assert decoder.chunks == [], "the decoder is free again"


def test_colours_survive_in_both_ways_comfyui_reads_them(tmp_path):
    colours = np.array([(235, 41, 36), (26, 87, 87), (163, 219, 214), (255, 140, 20)], np.uint8)
    video_frames = torch.from_numpy(colours)[:, None, None].expand(-1, 64, 64, -1)
    with VideoWriter(tmp_path / "v.mp4", 64, 64, crf=4) as writer:
        writer.write(video_frames)
    assert np.abs(decoded(tmp_path / "v.mp4")[:, 30, 30].astype(int) - colours).max() <= 4
    assert np.abs(decoded(tmp_path / "v.mp4", "gbrpf32le")[:, 30, 30] * 255 - colours).max() <= 4


@pytest.mark.slow
def test_the_same_pictures_are_the_same_file_whatever_the_pace(tmp_path):
    """At a width of twelve blocks of 16 pixels, where x264's macroblock trees would differ from run to run."""
    y, x = torch.meshgrid(torch.arange(192), torch.arange(192), indexing="ij")
    moving = [
        ((x + 3 * i) % 48 < 24).float() * 0.6 + ((y - 60 - i) ** 2 + (x - 2 * i) ** 2 < 400) * 0.4 for i in range(72)
    ]
    video_frames = torch.stack(moving)[..., None].expand(-1, -1, -1, 3)
    files = []
    for attempt in range(3):
        with VideoWriter(tmp_path / f"{attempt}.mp4", 192, 192) as writer:
            for chunk in video_frames.split(12):
                writer.write(chunk)
                time.sleep(0.02 * attempt)
        files.append((tmp_path / f"{attempt}.mp4").read_bytes())
    assert len(set(files)) == 1


def test_trim_cuts_the_end_and_decodes_nothing_beyond_it_but_takes_all_blocks(tmp_path):
    decoder, taken = FlatColourDecoder(), []
    blocks = (taken.append(block) or block for block in latents(12).split(3))
    info = write_video(tmp_path / "v.mp4", blocks, decoder, video_frames=16)
    assert info.video_frames == 16 == len(decoded(info.path))
    assert (len(taken), decoder.decoded_frames) == (4, 6)


def test_scale_makes_every_pixel_a_crisp_square(tmp_path):
    pixels = (torch.rand(4, 6, generator=torch.Generator().manual_seed(0)) > 0.5).float()

    class OneFrame(FlatColourDecoder):
        def decode(self, latents):
            return pixels[None, ..., None].expand(-1, -1, -1, 3)

    info = write_video(tmp_path / "v.mp4", [latents(1)], OneFrame(), scale=8, crf=1)
    assert (info.width, info.height) == (48, 32)
    assert np.abs(decoded(info.path)[0, :, :, 0] / 255 - np.kron(pixels.numpy(), np.ones((8, 8)))).max() < 0.1


def test_a_failed_run_leaves_the_old_file_and_what_had_grown_which_plays_to_its_last_picture(tmp_path):
    path, partial, decoder = tmp_path / "v.mp4", tmp_path / "v.part.mp4", FlatColourDecoder()
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError):
        write_video(path, (latents(3 // n) for n in (1, 0)), decoder)
    assert list(tmp_path.iterdir()) == [path] and decoder.chunks == []
    partial.write_bytes(b"of an earlier attempt")
    options = {"crf": 4, "partial": partial, "metadata": {"workflow": "{}"}}
    with pytest.raises(KeyboardInterrupt), VideoStream(path, FlatColourDecoder(), **options) as stream:
        stream.add(latents(9))
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old" and set(tmp_path.iterdir()) == {path, partial} and len(decoded(partial)) == 33
    with av.open(str(partial)) as container:
        assert container.metadata["workflow"] == "{}"


def program(folder, text):
    """Run Python code there, with what makes videos imported."""
    head = f"""
        import os, resource, signal, sys, time, torch
        sys.path.append({str(Path(__file__).parents[1] / "helpers")!r})
        from flat_colour import FlatColourDecoder, latents
        from headforcing.headforcing_core.video.stream import VideoStream, write_video
        from pathlib import Path
    """
    code = textwrap.dedent(head) + textwrap.dedent(text)
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)


@pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of POSIX")
def test_a_video_that_is_killed_while_it_grows_plays_up_to_there(tmp_path):
    killed = """
        with VideoStream("v.mp4", FlatColourDecoder(), partial=Path("v.part.mp4")) as stream:
            stream.add(latents(60))
            while stream.video_frames < 237:  # encoding goes on in its own thread
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
    """
    assert program(tmp_path, killed).returncode == -9 and len(decoded(tmp_path / "v.part.mp4")) > 150


@pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of POSIX")
def test_a_full_disk_is_said_in_one_sentence_and_what_was_written_plays(tmp_path):
    full = """
        class Noise(FlatColourDecoder):
            def decode(self, latents):
                return torch.rand(super().decode(latents).shape)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        try:
            write_video("v.mp4", latents(120).split(3), Noise(), partial=Path("v.part.mp4"))
        except Exception as error:
            print(type(error).__name__, error)
    """
    done = program(tmp_path, full)
    assert done.stdout.startswith("HeadForcingError the video v.mp4 cannot be written: File too large"), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["v.part.mp4"]
    shown = 0
    with av.open(str(tmp_path / "v.part.mp4")) as container, pytest.raises(av.error.InvalidDataError):
        for _ in container.decode(video=0):  # the last picture is cut off
            shown += 1
    assert shown > 16


def test_a_video_in_memory_is_read_again_and_again_and_keeps_its_sound(tmp_path):
    tone = sound_of_samples(torch.linspace(0, 400, 48_000).sin()[None], 48_000)
    with VideoWriter(tmp_path / "v.mp4", 48, 32, sound=tone) as writer:
        writer.write(torch.rand(16, 32, 48, 3))
    footage = Footage.of_file(io.BytesIO((tmp_path / "v.mp4").read_bytes()))
    assert sum(map(len, footage.chunks(0, 5))) == 16 + 2  # a chunk begins with the last frame of the one before
    with VideoWriter(tmp_path / "w.mp4", 48, 32, sound=footage.sound) as writer:
        writer.write(torch.rand(16, 32, 48, 3))
    with av.open(str(tmp_path / "w.mp4")) as container:
        assert sum(frame.samples for frame in container.decode(audio=0)) >= 48_000


def test_a_locked_file_is_said_and_what_was_made_stays(tmp_path, monkeypatch):
    """As on Windows, where a file that a player has open cannot be replaced."""
    locked = PermissionError(13, "The process cannot access the file")
    monkeypatch.setattr("headforcing.headforcing_core.files.os.replace", Mock(side_effect=locked))
    partial = tmp_path / "v.part.mp4"
    with pytest.raises(HeadForcingError, match=r"v\.mp4 cannot be written: The process cannot access the file"):
        write_video(tmp_path / "v.mp4", latents(6).split(3), FlatColourDecoder(), partial=partial)
    assert list(tmp_path.iterdir()) == [partial] and len(decoded(partial)) == 21


def test_somebody_who_watches_the_growing_file_does_not_cost_the_video(tmp_path, monkeypatch):
    """As on Windows, where an open file can be neither removed nor written again."""
    watched = tmp_path / "v.part.mp4"
    unlink, opened = Path.unlink, av.open

    def refuse(self, missing_ok=False):
        if self == watched:
            raise PermissionError(13, "used by another process")
        unlink(self, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    for path in (tmp_path / "first.mp4", tmp_path / "second.mp4"):
        info = write_video(path, latents(6).split(3), FlatColourDecoder(), partial=watched)
        assert len(decoded(info.path)) == 21

        def locked(file, mode="r", **options):
            if file == str(watched) and mode == "w":
                raise PermissionError(13, "used by another process")
            return opened(file, mode, **options)

        monkeypatch.setattr(video_writer.av, "open", locked)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.mp4", "second.mp4", "v.part.mp4"]


def test_errors_name_what_is_wrong(tmp_path, monkeypatch):
    path = tmp_path / "v.mp4"
    for size, shape, told in (
        ((63, 32), (1, 32, 63, 3), "63x32.*62x32"), ((48, 32), (1, 32, 46, 3), r"\[n, 32, 48, 3\], got \[1, 32, 46, 3"),
        ((8, 8), (0, 8, 8, 3), "no frame was written"),
    ):  # fmt: skip
        with pytest.raises(HeadForcingError, match=told), VideoWriter(path, *size) as writer:
            writer.write(torch.zeros(shape))
    for blocks, options, told in (([latents(1)], {"video_frames": 0}, "1 frame, got 0"), ([], {}, "no latent frames")):
        with pytest.raises(HeadForcingError, match=told):
            write_video(path, blocks, FlatColourDecoder(), **options)
    monkeypatch.setattr(video_writer, "_ENCODERS", ("no_such_encoder", "h264"))
    assert VideoWriter(tmp_path / "v.mp4", 48, 32)  # with whatever encoder there is
    monkeypatch.setattr(video_writer, "_ENCODERS", ("no_such_encoder",))
    with pytest.raises(HeadForcingError, match="no H.264 encoder"):
        VideoWriter(tmp_path / "v.mp4", 48, 32)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_memory_does_not_grow_with_length():
    """405 against 45 pictures of 320x480: a writer that kept them would need 166 MB more (as floats, 660 MB)."""
    program = textwrap.dedent("""
        import tempfile, torch
        from pathlib import Path
        from peak_memory import peak_bytes
        from headforcing.headforcing_core.video.grid import write_grid
        from headforcing.headforcing_core.video.sheets import contact_sheet
        from headforcing.headforcing_core.video.stream import write_video
        class Noise:
            def reset(self): self.first = True
            def decode(self, latents):
                pictures = 4 * len(latents) - 3 * self.first
                self.first = False
                return torch.rand(pictures, 40, 60, 3)
        with tempfile.TemporaryDirectory() as folder:
            video = Path(folder, "v.mp4")
            for blocks in (4, 34):
                write_video(video, (torch.zeros(3, 16, 5, 8) for _ in range(blocks)), Noise(), scale=8)
                contact_sheet(video, folder + "/s.png")
                write_grid(Path(folder, "g.mp4"), [("a", video), ("b", video)])
                print(peak_bytes())
    """)
    short, long = (int(peak) / 2**20 for peak in run("-c", program).split())
    assert long - short < 60
