"""Decoding and encoding in threads: the same file, errors raised where the video is wanted, no
thread left behind.
"""

import gc
import sys
import threading
import time
import weakref
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from flat_colour import FlatColourDecoder, decoded, latents
from headforcing.cli.cli import _parser, main
from headforcing.cli.source import Source
from headforcing.headforcing_core.demo.picture_decoder import PictureStreamingDecoder
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.plan.plan import RenderPlan
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from headforcing.headforcing_core.video.stream import WAITING_BLOCKS, WAITING_CHUNKS, VideoStream
from headforcing.headforcing_core.video.writer import VideoSettings, VideoWriter
from own_process import run


class SlowDecoder(FlatColourDecoder):
    """Takes so many seconds a chunk, and is broken from one on."""

    def __init__(self, seconds=0.02, broken_at=sys.maxsize):
        super().__init__()
        self.seconds = seconds
        self.broken_at = broken_at

    def decode(self, latents):
        if len(self.chunks) == self.broken_at:
            raise RuntimeError("broken")
        time.sleep(self.seconds)
        return super().decode(latents)


def threads() -> list[str]:
    return [
        thread.name for thread in threading.enumerate() if thread.name.startswith("head forcing")
    ]


def stream(path, decoder, device="cpu", partial=None, **options):
    settings = VideoSettings(path, crf=4, partial=partial)
    return VideoStream(settings, decoder, background=torch.device(device), **options)


def add_all(video) -> None:
    for block in latents(60).split(3):
        video.add(block)


def test_whoever_is_faster_waits_and_can_be_cancelled_meanwhile(tmp_path):
    def cancel():
        raise KeyboardInterrupt

    assert WAITING_BLOCKS < 20
    with pytest.raises(KeyboardInterrupt):
        with stream(tmp_path / "v.mp4", SlowDecoder(0.2), while_waiting=cancel) as video:
            add_all(video)
    assert threads() == [] and list(tmp_path.iterdir()) == []


class SlowWriter(VideoWriter):
    """Takes 10 ms a chunk, and fails at chunk number `fails_at`."""

    seconds = 0.01
    fails_at = sys.maxsize

    def write(self, video_frames):
        self.chunks = getattr(self, "chunks", 0) + 1
        time.sleep(self.seconds)
        if self.chunks >= self.fails_at:
            raise HeadForcingError("the disk is full")
        super().write(video_frames)


def test_encoding_runs_beside_decoding_with_few_chunks_between(tmp_path, monkeypatch):
    monkeypatch.setattr(SlowWriter, "seconds", 0.1)
    monkeypatch.setattr("headforcing.headforcing_core.video.stream.VideoWriter", SlowWriter)
    with VideoStream(
        VideoSettings(tmp_path / "v.mp4", crf=4), decoder := FlatColourDecoder()
    ) as video:
        video.add(latents(3))  # two chunks, which take the writer 0.2 s
        assert video.video_frames == 0
        monkeypatch.setattr(SlowWriter, "seconds", 0.01)
        for block in latents(60).split(3):
            video.add(block)
            assert decoder.decoded_frames <= 3 * (WAITING_CHUNKS + 2) + video.video_frames / 4
        assert video.finish().video_frames == 249 == video.video_frames
    assert threads() == []


@pytest.mark.parametrize("fails_at", ["decoder", 3, 21])
def test_an_error_of_a_thread_is_raised_where_the_video_is_wanted_and_blocks_nobody(
    fails_at, tmp_path, monkeypatch
):
    """Encoding fails at a chunk that others wait behind, and at the last, of which `finish`
    tells.
    """
    monkeypatch.setattr("headforcing.headforcing_core.video.stream.VideoWriter", SlowWriter)
    partial = tmp_path / "v.part.mp4"
    if fails_at == "decoder":
        background = torch.device("cpu")
        decoder = SlowDecoder(0, broken_at=2)
        partial = None
    else:
        monkeypatch.setattr(SlowWriter, "fails_at", fails_at)
        background = None
        decoder = SlowDecoder(0)
    with pytest.raises((HeadForcingError, RuntimeError)):
        settings = VideoSettings(tmp_path / "v.mp4", crf=4, partial=partial)
        with VideoStream(settings, decoder, background=background) as video:
            add_all(video)
            video.finish()
    assert threads() == [] and list(tmp_path.iterdir()) == (
        [partial] if fails_at in (3, 21) else []
    )


def test_the_decoding_stream_waits_for_the_one_that_loads_the_weights(tmp_path, monkeypatch):
    made = []
    threads_of = []

    class FakeStream:
        """Notes who it waits for."""

        def __init__(self, device=None):
            self.waits_for = []
            self.wait_stream = self.waits_for.append
            made.append(self)

    loading = FakeStream()

    def current(device):
        threads_of.append(threading.current_thread())
        return loading

    monkeypatch.setattr(torch.cuda, "current_stream", current)
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    with stream(tmp_path / "v.mp4", FlatColourDecoder(), device="cuda") as video:
        video.add(latents(3))
        video.finish()
    assert [other.waits_for for other in made] == [[], [loading]] and threads_of == [
        threading.main_thread()
    ]


def test_on_a_vae_device_a_block_is_decoded_while_the_next_is_sampled(
    tmp_path, monkeypatch, capsys
):
    """Two devices of the CPU: decoding waits here until sampling has gone on, which it never would
    in turn.
    """
    command = ["demo", "--seconds", "2", "--scale", "1", "--device", "cpu", "--json"]
    assert main([*command, "--out", str(tmp_path), "--vae-device", "meta"]) == 2  # holds no numbers
    assert "--vae-device 'meta' cannot be used here" in capsys.readouterr().err
    assert main([*command, "--out", str(tmp_path / "turn")]) == 0
    denoise = WanVideoModel.denoise
    decode = PictureStreamingDecoder.decode
    steps = []
    went_on = []
    names = set()
    second_block = threading.Event()

    def counted(*arguments):
        steps.append(1)
        if len(steps) > 4:
            second_block.set()
        return denoise(*arguments)

    def waiting(decoder, latents):
        went_on.append(second_block.wait(60))
        names.add(threading.current_thread().name)
        return decode(decoder, latents)

    monkeypatch.setattr(WanVideoModel, "denoise", counted)
    monkeypatch.setattr(PictureStreamingDecoder, "decode", waiting)
    assert main([*command, "--out", str(tmp_path / "beside"), "--vae-device", "cpu:0"]) == 0
    assert all(went_on) and names == {"head forcing video"} and threads() == []
    assert (
        decoded(tmp_path / "beside" / "demo.mp4") == decoded(tmp_path / "turn" / "demo.mp4")
    ).all()


def test_without_a_gpu_stream_none_is_entered(tmp_path, monkeypatch):
    """PyTorch looks for the current device of a Mac's GPU, which has no such function."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with stream(tmp_path / "v.mp4", FlatColourDecoder()) as video:
        video.add(latents(3))
        assert video.finish().video_frames == 9


ENDS = """
import _thread, signal, sys, threading, time
from pathlib import Path
from headforcing.headforcing_core.queue_thread import QueueThread

thread = QueueThread("test", 8)
thread.put(lambda: time.sleep(5))
thread.put(Path(sys.argv[1]).touch)
if sys.argv[2] == "Ctrl+C":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # some shells have it ignored
    threading.Timer(0.5, _thread.interrupt_main).start()
    try:
        with thread:
            pass
    except KeyboardInterrupt:
        print("cancelled")
"""


@pytest.mark.parametrize(("how", "told"), [("end", ""), ("Ctrl+C", "cancelled\n")])
def test_a_program_that_ends_waits_for_no_task(how, told, tmp_path):
    assert run("-c", ENDS, tmp_path / "done", how) == told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [(), ("--vae-device", "cpu:0", "--runs", "runs")])
def test_model_cache_and_decoder_leave_memory_with_the_render(options, tmp_path, monkeypatch):
    """At once, not when Python looks for circles of objects: on a GPU the next render needs the
    room.
    """
    monkeypatch.chdir(tmp_path)
    kept = []
    make = RenderPlan.make_cache

    def noted(*given, **named):
        cache = make(*given, **named)
        kept.append(weakref.ref(cache))
        return cache

    def render() -> None:
        args = [
            "demo",
            "--device",
            "cpu",
            "--seconds",
            "1",
            "--scale",
            "1",
            "--out",
            ".",
            "--json",
            *options,
        ]
        source = Source.of(_parser().parse_args(args))
        job = source.job(source.request.plan(), source.encode())
        loaded = source.load()
        kept.extend([weakref.ref(loaded.backbone), weakref.ref(loaded.codec.network)])
        loaded.render(job, Path("video.mp4"), Path("latents.safetensors"))

    monkeypatch.setattr(RenderPlan, "make_cache", noted)
    gc.collect()
    gc.disable()
    try:
        render()
        assert [reference() for reference in kept] == [None] * 3
    finally:
        gc.enable()
