"""Finish Video: sound, going on after a stop, and what it refuses; probes_finish.py compares its
frames.
"""

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from comfy_browser import Browser
from comfy_graphs import Graph, changed, failed, node, queued, stopper, until_frames, video_frames
from comfy_harness import ComfyServer
from comfy_setup import FLOOR
from headforcing.headforcing_core.video.sound import sound_of_samples
from headforcing.headforcing_core.video.writer import VideoSettings, VideoWriter
from safetensors.torch import load_file, save_file
from tiny_checkpoints import interpolator, upscaler
from websockets.exceptions import ConnectionClosed

WIDTH = 80
HEIGHT = 48
FPS = 16
RATE = 44100


def video_file(path: Path, count: int) -> Path:
    """A bar that moves over a slope, with two channels of sound."""
    at = torch.arange(round(count / FPS * RATE)) / RATE
    tones = torch.stack([torch.sin(6.28 * 220 * at), torch.sin(6.28 * 330 * at)]) * 0.4
    slope = torch.linspace(40, 160, WIDTH).repeat(1, HEIGHT, 1)[..., None].repeat(1, 1, 1, 3)
    with VideoWriter(
        VideoSettings(path, fps=FPS), WIDTH, HEIGHT, sound=sound_of_samples(tones, RATE)
    ) as writer:
        for place in range(count):
            frame = slope.clone()
            frame[:, :, place % WIDTH : place % WIDTH + 6, place % 3] = 255
            writer.write(frame.byte())
    return path


def models(server: ComfyServer) -> None:
    upscaler(server.model_path("upscale_models", "tiny_x2.safetensors"))
    interpolator(server.model_path("frame_interpolation", "tiny_rife.safetensors"))


def finishing(file: str, prefix: str, interpolated: bool = True) -> Graph:
    """Load Video and the models into Finish Video."""
    given = {
        "video": ["load", 0],
        "upscale_model": ["upscaler", 0],
        "multiplier": 2,
        "filename_prefix": prefix,
    }
    graph = {
        "load": node("LoadVideo", file=file),
        "upscaler": node("UpscaleModelLoader", model_name="tiny_x2.safetensors"),
        "finish": node("HeadForcingFinishVideo", **given),
    }
    if interpolated:
        graph["rife"] = node("FrameInterpolationModelLoader", model_name="tiny_rife.safetensors")
        graph = changed(graph, "finish", interp_model=["rife", 0])
    return graph


def frames_of(path: Path) -> np.ndarray:
    return video_frames(path).astype(int)


def sound_samples(path: Path) -> np.ndarray:
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray()[0] for frame in container.decode(audio=0)]
    return np.concatenate(frames)


def about(path: Path) -> tuple[int, int, int, Fraction | None]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        return stream.width, stream.height, stream.frames, stream.average_rate


def test_a_video_is_finished_with_its_sound_as_are_a_part_of_it_and_frames_with_another_sound(
    comfy: ComfyServer,
):
    """Video Slice leaves a part; CreateVideo holds frames; AUDIO replaces the sound."""
    models(comfy)
    source = video_file(comfy.input_dir / "clip.mp4", 40)
    graph = finishing("clip.mp4", "finish/clip")
    part = changed(
        finishing("clip.mp4", "finish/part", interpolated=False), "finish", video=["slice", 0]
    )["finish"]
    graph |= {
        "slice": node(
            "Video Slice", video=["load", 0], start_time=0.5, duration=1.0, strict_duration=False
        ),
        "parts": node("GetVideoComponents", video=["load", 0]),
        "memory": node("CreateVideo", images=["parts", 0], fps=16.0),
        "part": part,
    }
    again = {"video": ["memory", 0], "audio": ["parts", 1], "filename_prefix": "finish/memory"}
    graph["again"] = changed(graph, "part", **again)["part"]
    (shown,) = queued(comfy, graph).outputs["finish"]["images"]
    assert shown["filename"] == "clip_00001_.mp4"
    folder = comfy.output_dir / "finish"
    whole = folder / "clip_00001_.mp4"
    part = folder / "part_00001_.mp4"
    memory = folder / "memory_00001_.mp4"
    assert about(whole) == (2 * WIDTH, 2 * HEIGHT, 79, Fraction(2 * FPS))
    assert about(part) == (2 * WIDTH, 2 * HEIGHT, 16, Fraction(FPS)) and about(memory)[2:] == (
        40,
        Fraction(FPS),
    )
    assert np.abs(frames_of(whole)[::2, ::2, ::2] - frames_of(source)).mean() < 12, (
        "they are every second frame"
    )
    assert np.abs(frames_of(part) - frames_of(memory)[8:24]).mean() < 2

    finished = sound_samples(whole)
    wanted = sound_samples(source)
    assert len(finished) == pytest.approx(len(wanted), abs=2 * 1024)
    both = min(len(finished), len(wanted))
    assert np.corrcoef(finished[:both], wanted[:both])[0, 1] > 0.9, "in step"
    with av.open(str(whole)) as container:
        assert json.loads(container.metadata["prompt"])["finish"]["inputs"]["multiplier"] == 2
    with av.open(str(part)) as container:
        sound = container.streams.audio[0]
        assert float(sound.duration * sound.time_base) == pytest.approx(1, abs=0.05)
    with av.open(str(memory)) as container:
        samples = np.concatenate([frame.to_ndarray() for frame in container.decode(audio=0)], 1)
    heard = np.abs(np.fft.rfft(samples[0, RATE // 2 : RATE // 2 + RATE]))
    assert heard.argmax() == pytest.approx(220, abs=3), "neither faster nor slower"


@pytest.mark.repeat("comfy_floor]")
def test_a_stopped_one_goes_on_where_it_was(both: ComfyServer):
    """Stop in the middle, and the last bytes of the file are lost, as in a crash. 0.3.75 has no
    interpolation.
    """
    old = both.install.version == FLOOR
    count, total = (200, 200) if old else (96, 191)
    models(both)
    video_file(both.input_dir / "long.mp4", count)
    graph = finishing("long.mp4", "finish/v", interpolated=not old)
    assert both.queue(graph, on_event=stopper(both, "finish", 100)).outcome == "interrupted"
    (growing,) = (both.output_dir / "finish").glob("v_*.mp4")
    assert growing.name.endswith(".part.mp4")
    growing.write_bytes(growing.read_bytes()[:-100])
    assert len(frames_of(growing)) > 70, "what was written until then plays"
    done = queued(both, graph)
    values = [value for value, _ in done.progress["finish"]]
    assert values[0] > 48 and values == sorted(values) and values[-1] == total, (
        "not from the beginning"
    )
    queued(both, changed(graph, "finish", filename_prefix="finish/straight"))
    ours = frames_of(both.output_dir / "finish" / "v_00001_.mp4")
    whole = frames_of(both.output_dir / "finish" / "straight_00001_.mp4")
    moves = np.abs(whole[1:] - whole[:-1]).mean()
    assert len(whole) == total and ours.shape == whole.shape
    assert np.abs(ours - whole).mean((1, 2, 3)).max() < 0.5 * moves, "but for what encoding loses"
    assert not list((both.output_dir / "finish").glob("*.part.mp4"))


@pytest.mark.thorough
def test_a_killed_server_goes_on_where_it_was(comfy: ComfyServer):
    """SIGKILL in the middle: the next server copies what is there and makes the rest."""
    models(comfy)
    video_file(comfy.input_dir / "killed.mp4", 128)
    graph = finishing("killed.mp4", "killed_finish/v")

    folder = comfy.output_dir / "killed_finish"
    comfy.hold(180, "finish")

    def kill(kind: str, data: dict[str, Any]) -> None:
        if kind == "test.waits":
            until_frames(folder, 70)
            comfy.stop()

    with pytest.raises(ConnectionClosed):
        comfy.queue(graph, on_event=kill)
    (growing,) = folder.glob("*.mp4")
    assert growing.name.endswith(".part.mp4") and len(frames_of(growing)) > 70, (
        "what was written until then plays"
    )
    comfy.start()
    values = [value for value, _ in queued(comfy, graph).progress["finish"]]
    assert values[0] > 48 and values == sorted(values) and values[-1] == 255, (
        "not from the beginning"
    )
    queued(comfy, changed(graph, "finish", filename_prefix="killed_finish/straight"))
    ours = frames_of(comfy.output_dir / "killed_finish" / "v_00001_.mp4")
    whole = frames_of(comfy.output_dir / "killed_finish" / "straight_00001_.mp4")
    moves = np.abs(whole[1:] - whole[:-1]).mean()
    assert ours.shape == whole.shape and np.abs(ours - whole).mean((1, 2, 3)).max() < 0.5 * moves
    left = {path.name for path in (comfy.output_dir / "killed_finish").iterdir()}
    assert left == {"straight_00001_.mp4", "v_00001_.mp4"}


def test_a_model_that_gives_nan_is_an_error_and_another_model_begins_anew(comfy: ComfyServer):
    """A video would show NaN as black. The two models differ in one weight."""
    models(comfy)
    video_file(comfy.input_dir / "nan.mp4", 20)
    place = comfy.model_path("upscale_models", "tiny_nan.safetensors")
    upscaler(place)
    weights = load_file(place)
    name = next(name for name in weights if name.endswith("bias"))
    weights[name][-1] = torch.nan
    save_file(weights, place)
    graph = finishing("nan.mp4", "nan/v", interpolated=False)
    bad = changed(graph, "upscaler", model_name=place.name)
    failed(
        comfy,
        bad,
        "upscale_model gives NaN or infinity for these frames: use another model, or float32",
    )
    assert not list((comfy.output_dir / "nan").glob("v_0*"))
    queued(comfy, graph)
    assert frames_of(comfy.output_dir / "nan" / "v_00001_.mp4").mean() > 40


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("browser", ["comfy_latest, Nodes 2.0"], indirect=True)
@pytest.mark.same_page
def test_it_plays_in_the_node_while_it_grows(browser: Browser):
    models(browser.server)
    video_file(browser.server.input_dir / "watch.mp4", 120)
    browser.load_api(finishing("watch.mp4", "finish/watched"))
    browser.fit_view()
    browser.watch("FinishVideo")
    browser.server.hold(96)
    browser.queue()
    for shown, at in ((0, 192), (3, None)):  # the encoder looks 1.3 s ahead
        browser.page.wait_for_function(f"window.__seen.some(([, length]) => length > {shown})")
        browser.server.hold(at)
    assert browser.wait_done() == "success"
    grew, finished = browser.watched()
    lengths = [length for length, _, _ in grew]
    texts = [text for *_, text in grew + finished]
    assert lengths == sorted(lengths) and 0 < lengths[0] < lengths[-1] <= 7.5, "longer and longer"
    assert finished[-1][0] == pytest.approx(7.47, abs=0.05)
    assert any(re.match(r"frame \d+ of 239 - [\d.]+ fps, \d+:\d\d left$", text) for text in texts)
    assert texts[-1] == "wrote output/finish/watched_00001_.mp4 - 239 frames, 160x96 at 32 fps"


def test_what_cannot_be_finished_is_said_in_one_sentence(comfy: ComfyServer):
    models(comfy)
    (comfy.input_dir / "broken.mp4").write_bytes(b"no video")
    graph = finishing("broken.mp4", "refused/v", interpolated=False)
    failed(
        comfy,
        changed(graph, "finish", upscale_model=None),
        "upscale_model, interp_model: none is connected",
    )
    failed(comfy, graph, "broken.mp4 cannot be read as a video")
    outside = comfy.queue(changed(graph, "finish", filename_prefix="../x"))
    assert outside.status == 400 and "must stay inside ComfyUI's output folder" in str(
        outside.error
    )
    assert not list((comfy.output_dir / "refused").glob("*"))
