"""Decoding in a thread of its own: the same file, errors raised where the video is wanted, no thread left behind."""

import threading
import time

import pytest
import torch
from flat_colour import FlatColourDecoder, decoded, latents
from headforcing.headforcing_core.video.background import WAITING_BLOCKS, BackgroundStream
from headforcing.headforcing_core.video.stream import VideoStream


class SlowDecoder(FlatColourDecoder):
    def decode(self, latents):
        time.sleep(0.02)
        return super().decode(latents)


class BrokenDecoder(FlatColourDecoder):
    def decode(self, latents):
        if len(self.chunks) == 2:
            raise RuntimeError("broken")
        return super().decode(latents)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "head forcing video"]


def stream(path, decoder, **options):
    return BackgroundStream(VideoStream(path, decoder, crf=4), **options)


def test_the_video_is_the_one_written_in_the_foreground(tmp_path):
    with stream(tmp_path / "b.mp4", SlowDecoder()) as video:
        for block in latents(60).split(3):
            video.add(block)
        info = video.finish()
    with VideoStream(tmp_path / "f.mp4", FlatColourDecoder(), crf=4) as video:
        for block in latents(60).split(3):
            video.add(block)
        video.finish()
    assert info.video_frames == 237 and threads() == []
    assert (decoded(tmp_path / "b.mp4") == decoded(tmp_path / "f.mp4")).all()


def test_whoever_is_faster_waits_and_can_be_cancelled_meanwhile(tmp_path):
    waited = []

    def cancel():
        waited.append(1)
        raise KeyboardInterrupt

    class Stuck(FlatColourDecoder):
        def decode(self, latents):
            time.sleep(0.5)
            return super().decode(latents)

    with pytest.raises(KeyboardInterrupt), stream(tmp_path / "v.mp4", Stuck(), while_waiting=cancel) as video:
        for block in latents(60).split(3):
            video.add(block)
    assert waited and threads() == [] and WAITING_BLOCKS < 20
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_thread_is_raised_where_the_video_is_wanted(tmp_path):
    with pytest.raises(RuntimeError, match="broken"), stream(tmp_path / "v.mp4", BrokenDecoder()) as video:
        for block in latents(60).split(3):
            video.add(block)
        video.finish()
    assert threads() == [] and list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so its stream can be made")
def test_a_stream_that_cannot_be_made_is_an_error_and_no_endless_wait(tmp_path):
    with (
        pytest.raises((RuntimeError, AssertionError)),
        stream(tmp_path / "v.mp4", FlatColourDecoder(), device="cuda") as v,
    ):
        for block in latents(60).split(3):
            v.add(block)
        v.finish()
    assert threads() == []
