"""The sound of a story in the file of its video: in step from the first second, while it grows and
when it is finished.
"""

import json
import shutil
import wave
from fractions import Fraction
from functools import cache
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from headforcing.cli.cli import main
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.video.sound import sound_of_samples
from headforcing.headforcing_core.video.soundtrack import Soundtrack
from headforcing.headforcing_core.video.writer import VideoSettings, VideoWriter

FPS = 16
RATE = 44_100
APART = 55  # frames between two flashes, 3.4375 s, which no packet of sound divides
MINUTES = 5
GRID = 1000  # points a second at which picture and sound are compared
SECONDS_APART = 0.02  # at most, of a click and its flash


def clicks(seconds: float, rate: int = RATE) -> np.ndarray:
    """Sound `[n]` with a click of 20 ms where a flash begins."""
    samples = np.zeros(round(seconds * rate), np.float32)
    at = np.arange(round(0.02 * rate)) / rate
    click = 0.8 * np.sin(2 * np.pi * 1500 * at) * np.exp(-150 * at)
    for number in range(int((seconds - 0.05) * FPS / APART) + 1):
        place = round(number * APART / FPS * rate)
        samples[place : place + len(click)] += click
    return samples


def flashes(first: int, count: int) -> torch.Tensor:
    """Video frames `[n, 32, 48, 3]`, white for two frames where a click is heard."""
    frames = torch.zeros(count, 32, 48, 3, dtype=torch.uint8)
    for place in range(count):
        if (first + place) % APART < 2:
            frames[place] = 255
    return frames


def sound_file(path: Path, seconds: float, rate: int = RATE) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((clicks(seconds, rate) * 32767).astype("<i2").tobytes())
    return path


@cache
def brightness(path: Path, seconds: float) -> np.ndarray:
    """How bright the picture is, `GRID` times a second, by the times of the file."""
    found = np.zeros(round(seconds * GRID) + GRID)
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            begin = round(frame.time * GRID)
            found[begin : begin + GRID // FPS + 1] = frame.to_ndarray(format="gray").mean()
    return found


@cache
def loudness(path: Path, seconds: float) -> np.ndarray:
    """How loud the sound is, `GRID` times a second, by the times of the file."""
    found = np.zeros(round(seconds * GRID) + GRID)
    with av.open(str(path)) as container:
        for frame in container.decode(audio=0):
            values = np.abs(frame.to_ndarray()).max(0)
            at = ((frame.time + np.arange(len(values)) / frame.sample_rate) * GRID).astype(int)
            begins = np.flatnonzero(np.diff(at, prepend=-1))  # of each point of the grid
            loudest = np.maximum.reduceat(values, begins)
            heard = (at[begins] >= 0) & (at[begins] < len(found))
            places = at[begins][heard]
            found[places] = np.maximum(found[places], loudest[heard])
    return found


def lag(path: Path, begin: float, end: float, whole: float = 60) -> float:
    """Seconds by which clicks come after their flashes in a part of a file of at most `whole`
    seconds, by cross-correlation.
    """
    part = slice(round(begin * GRID), round(end * GRID))
    picture = np.maximum(np.diff(brightness(path, whole)[part], prepend=0), 0)
    sound = np.maximum(np.diff(loudness(path, whole)[part], prepend=0), 0)
    assert picture.max() > 100 and sound.max() > 0.1, "there is a flash, and a click"
    both = np.correlate(sound, picture, "full")
    near = len(picture) - 1 + np.arange(-500, 501)
    return float(np.argmax(both[near]) - 500) / GRID


def length(path: Path) -> dict[str, float]:
    """Seconds of a file's picture and sound."""
    with av.open(str(path)) as container:
        return {
            stream.type: float(stream.duration * stream.time_base) for stream in container.streams
        }


def test_clicks_and_flashes_are_in_step_at_the_beginning_the_middle_and_the_end_of_five_minutes(
    tmp_path,
):
    seconds = MINUTES * 60
    settings = VideoSettings(tmp_path / "v.mp4", crf=20, partial=tmp_path / "v.part.mp4")
    sound = Soundtrack.of_file(sound_file(tmp_path / "clicks.wav", seconds)).from_second(0)
    sizes = []
    with VideoWriter(settings, 48, 32, sound=sound) as writer:
        for first in range(0, seconds * FPS, 12):
            writer.write(flashes(first, 12))
            sizes.append(settings.partial.stat().st_size)
            if first == 60 * FPS:
                shutil.copy(settings.partial, tmp_path / "minute.mp4")
    assert sizes[4] > 0 and len(set(sizes[8:])) > seconds * 0.9, "it grows by the second"
    for begin, end in ((0, 20), (140, 160), (280, 300)):
        assert abs(lag(settings.path, begin, end, seconds)) <= SECONDS_APART
    found = length(settings.path)
    assert found["video"] == seconds and found["audio"] == pytest.approx(seconds, abs=0.03)
    grown = tmp_path / "minute.mp4"
    for begin, end in ((0, 20), (35, 55)):
        assert abs(lag(grown, begin, end)) <= SECONDS_APART
    with av.open(str(grown)) as container:
        last = {"video": 0.0, "audio": 0.0}
        for packet in container.demux():
            if packet.size:
                last[packet.stream.type] = float(packet.pts * packet.time_base)
    assert last["video"] > 56 and abs(last["audio"] - last["video"]) < 1.5


def test_a_stopped_video_goes_on_with_its_sound_in_step(tmp_path):
    seconds = 40
    settings = VideoSettings(tmp_path / "v.mp4", crf=20, partial=tmp_path / "v.part.mp4")
    soundtrack = Soundtrack.of_samples(torch.from_numpy(clicks(seconds))[None], RATE)
    with (
        pytest.raises(KeyboardInterrupt),
        VideoWriter(settings, 48, 32, goes_on=True, sound=soundtrack.from_second(0)) as writer,
    ):
        writer.write(flashes(0, 25 * FPS))
        raise KeyboardInterrupt
    assert abs(lag(settings.partial, 0, 24)) <= SECONDS_APART
    sound = soundtrack.from_second(0)
    with VideoWriter(settings, 48, 32, goes_on=True, sound=sound) as writer:
        begun = writer.video_frames
        writer.write(flashes(begun, seconds * FPS - begun))
    assert begun > 20 * FPS
    for begin, end in ((0, 15), (15, 30), (25, 40)):
        assert abs(lag(settings.path, begin, end)) <= SECONDS_APART


@pytest.mark.parametrize("ending", ["wav", "mp3", "flac", "ogg", "m4a"])
def test_a_part_of_the_story_has_its_part_of_the_sound(tmp_path, ending):
    """A file that begins 110 frames into the story, of sound that begins 2 s before the story."""
    path = sound_file(tmp_path / "clicks.wav", 30)
    if ending != "wav":
        encoded = tmp_path / f"clicks.{ending}"
        with av.open(str(path)) as source, av.open(str(encoded), "w") as target:
            codec = {"mp3": "libmp3lame", "ogg": "libopus", "m4a": "aac"}.get(ending, ending)
            rate = 48_000 if ending == "ogg" else RATE
            stream = target.add_stream(codec, rate=rate, layout="mono")
            for frame in source.decode(audio=0):
                target.mux(stream.encode(frame))
            target.mux(stream.encode())
        path = encoded
    soundtrack = Soundtrack.of_file(path).placed(-2.0, 0.0)
    assert soundtrack.seconds == pytest.approx(30, abs=0.1)
    assert soundtrack.story_length() == pytest.approx(28, abs=0.1)
    begins_at = (2 * APART) / FPS - 2.0
    settings = VideoSettings(tmp_path / "v.mp4", crf=20)
    with VideoWriter(settings, 48, 32, sound=soundtrack.from_second(begins_at)) as writer:
        writer.write(flashes(0, 18 * FPS))
    assert abs(lag(settings.path, 0, 18)) <= SECONDS_APART


def test_sound_begins_later_is_louder_and_ends_in_silence_with_the_pictures(tmp_path):
    tone = 0.1 * torch.sin(torch.arange(2 * RATE) * 2 * np.pi * 440 / RATE)[None]
    soundtrack = Soundtrack.of_samples(tone.expand(2, -1), RATE).placed(1.0, 12.0)
    settings = VideoSettings(tmp_path / "v.mp4", crf=20)
    with VideoWriter(settings, 48, 32, sound=soundtrack.from_second(-0.5)) as writer:
        writer.write(flashes(0, 6 * FPS))
    heard = loudness(settings.path, 6)
    assert heard[: round(1.45 * GRID)].max() < 0.02, "silence before it"
    assert heard[2 * GRID : 3 * GRID].max() == pytest.approx(0.1 * 10 ** (12 / 20), rel=0.1)
    assert heard[round(3.6 * GRID) : 6 * GRID].max() < 0.02, "and after it"
    assert length(settings.path)["audio"] == pytest.approx(6, abs=0.03)
    with av.open(str(settings.path)) as container:
        assert container.streams.audio[0].layout.name == "stereo"


def plain_file(path: Path, frames: torch.Tensor) -> None:
    """The file of a video without sound, by a plain use of PyAV: encoded to fragments, then
    copied.
    """
    growing = {
        "movflags": "delay_moov+default_base_moof+use_metadata_tags",
        "frag_duration": "1000000",
        "flush_packets": "1",
    }
    part = path.with_suffix(".part.mp4")
    options = {"crf": "18", "preset": "veryfast", "x264-params": "mbtree=0"}
    with av.open(str(part), "w", format="mp4", options=growing) as container:
        stream = container.add_stream("libx264", rate=Fraction(FPS), options=options)
        stream.width = 48
        stream.height = 32
        stream.pix_fmt = "yuv420p"
        codec = stream.codec_context
        codec.colorspace = 6
        codec.color_primaries = 1
        codec.color_trc = 1
        codec.color_range = 1
        for number, pixels in enumerate(frames.numpy()):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(
                format="yuv420p", dst_colorspace="ITU601", dst_color_range="MPEG"
            )
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    finished = {"movflags": "use_metadata_tags+faststart"}
    with (
        av.open(str(part)) as source,
        av.open(str(path), "w", format="mp4", options=finished) as target,
    ):
        copied = target.add_stream_from_template(source.streams.video[0], opaque=True)
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = copied
                target.mux(packet)


def test_a_video_without_sound_is_byte_for_byte_what_plain_encoding_makes(tmp_path):
    if "libx264" not in av.codecs_available:
        pytest.skip("another encoder has other options")
    settings = VideoSettings(tmp_path / "v.mp4")
    with VideoWriter(settings, 48, 32) as writer:
        writer.write(flashes(0, 150))
    plain_file(tmp_path / "plain.mp4", flashes(0, 150))
    assert settings.path.read_bytes() == (tmp_path / "plain.mp4").read_bytes()


def test_sentences_say_what_is_wrong_with_a_sound(tmp_path):
    text = tmp_path / "text.wav"
    text.write_text("no sound")
    with pytest.raises(HeadForcingError, match=r"text\.wav cannot be read as sound"):
        Soundtrack.of_file(text)
    with pytest.raises(HeadForcingError, match=r"none\.wav was not found"):
        Soundtrack.of_file(tmp_path / "none.wav")
    with VideoWriter(VideoSettings(tmp_path / "mute.mp4"), 48, 32) as writer:
        writer.write(flashes(0, 16))
    with pytest.raises(HeadForcingError, match=r"mute\.mp4 has no sound"):
        Soundtrack.of_file(tmp_path / "mute.mp4")
    with pytest.raises(HeadForcingError, match="audio: the sound is empty"):
        Soundtrack.of_samples(torch.zeros(2, 0), RATE)
    soundtrack = Soundtrack.of_file(sound_file(tmp_path / "clicks.wav", 5))
    with pytest.raises(HeadForcingError, match="offset of the sound must be from -36000 to 36000"):
        soundtrack.placed(float("nan"), 0)
    with pytest.raises(HeadForcingError, match=r"gain of the sound must be .* got 41"):
        soundtrack.placed(0, 41)
    with pytest.raises(HeadForcingError, match="the story would end with the sound at 0 s"):
        soundtrack.placed(-6, 0).story_length()


def test_a_damaged_sound_is_heard_as_far_as_it_can_be_decoded(tmp_path):
    """Bytes in the middle are replaced; the rest of the video is there, and longer than the
    sound.
    """
    tone = torch.sin(torch.arange(6 * RATE) * 2 * np.pi * 440 / RATE)[None]
    with VideoWriter(
        VideoSettings(tmp_path / "s.mp4"), 48, 32, sound=sound_of_samples(tone, RATE)
    ) as writer:
        writer.write(flashes(0, 96))
    damaged = bytearray((tmp_path / "s.mp4").read_bytes())
    middle = len(damaged) // 2
    damaged[middle : middle + 4000] = bytes(4000)
    (tmp_path / "d.mp4").write_bytes(damaged)
    settings = VideoSettings(tmp_path / "v.mp4")
    sound = Soundtrack.of_file(tmp_path / "d.mp4").from_second(0)
    with VideoWriter(settings, 48, 32, sound=sound) as writer:
        writer.write(flashes(0, 128))
    assert loudness(settings.path, 8)[: 2 * GRID].max() > 0.5
    assert length(settings.path) == {"video": 8, "audio": pytest.approx(8, abs=0.03)}


def test_a_command_renders_a_story_as_long_as_its_sound_and_goes_on_with_it(tmp_path, capsys):
    sound = sound_file(tmp_path / "clicks.wav", 4)
    out = tmp_path / "out"
    command = [
        "demo", "--out", str(out), "--audio", str(sound), "--audio-offset", "0.5",
        "--runs", str(tmp_path / "runs"), "--scale", "1", "--json",
    ]  # fmt: skip
    assert main(command) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["sound"] == "clicks.wav" and told["reused_blocks"] == 0
    found = length(out / "demo.mp4")
    assert found["video"] == pytest.approx(4.5, abs=0.07)
    assert found["audio"] == pytest.approx(found["video"], abs=0.03)
    heard = loudness(out / "demo.mp4", 5)
    assert heard[:480].max() < 0.02 < heard[480:600].max(), "the first click is at 0.5 s"
    assert main([*command, "--seconds", "6"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["reused_blocks"] > 0
    assert length(out / "demo.mp4") == {"video": 6, "audio": pytest.approx(6, abs=0.03)}
    heard = loudness(out / "demo.mp4", 6)
    place = round((0.5 + APART / FPS) * GRID)
    assert heard[place - 20 : place + 30].max() > 0.1
    [run] = [path for path in (tmp_path / "runs").iterdir() if path.is_dir()]
    decoded = tmp_path / "again.mp4"
    words = ["decode", str(run), str(decoded), "--demo", "--audio", str(sound)]
    assert main([*words, "--audio-offset", "0.5", "--audio-gain", "-3"]) == 0
    capsys.readouterr()
    again = loudness(decoded, 6)
    assert again[:480].max() < 0.02 < again[480:600].max()
    assert main(["demo", "--out", str(out), "--audio-offset", "1"]) != 0
    assert "--audio-offset places the sound of --audio" in capsys.readouterr().err


def test_latents_that_a_command_stored_keep_where_the_story_begins_after_start_frames(
    tmp_path, capsys
):
    sound = sound_file(tmp_path / "clicks.wav", 4)
    story = ["--prompts", "0:00 a red ball in the teal plain room", "--seconds", "1.5"]
    assert main(["demo", *story, "--out", str(tmp_path / "first")]) == 0
    goes_on = ["--start-video", str(tmp_path / "first" / "demo.mp4"), "--audio", str(sound)]
    latents = tmp_path / "l.safetensors"
    out = tmp_path / "second"
    command = ["demo", *story, "--out", str(out), *goes_on, "--latents", str(latents)]
    assert main([*command, "--audio-offset", "0.25"]) == 0
    decoded = tmp_path / "again.mp4"
    words = ["decode", str(latents), str(decoded), "--demo", "--audio", str(sound)]
    assert main([*words, "--audio-offset", "0.25"]) == 0
    capsys.readouterr()
    begins = []
    for path in (out / "demo.mp4", decoded):
        begins.append(int(np.flatnonzero(loudness(path, 6) > 0.1)[0]) / GRID)
    assert begins[0] > 1 and begins[1] == pytest.approx(begins[0], abs=0.01)
