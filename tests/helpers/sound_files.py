"""Sounds for the tests in ComfyUI: clicks and kicks at known times."""

import io
import wave
from pathlib import Path
from typing import Any

import av
import numpy as np
from comfy_graphs import Graph, changed, node
from comfy_harness import ComfyServer

RATE = 44_100
CLICKS = (0.5, 2.0, 4.25)  # seconds of the sound


def write_wave(path: Path, samples: np.ndarray) -> None:
    """A mono file of samples `[n]` from -1 to 1."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((samples * 32767).astype("<i2").tobytes())


def sound_file(server: ComfyServer, name: str, seconds: float, clicks: Any = CLICKS) -> None:
    """Sound with clicks in the server's input folder."""
    samples = np.zeros(round(seconds * RATE), np.float32)
    click = 0.8 * np.sin(np.arange(RATE // 50) * 2 * np.pi * 1500 / RATE)
    for second in clicks:
        place = round(second * RATE)
        samples[place : place + len(click)] = click
    write_wave(server.input_dir / name, samples)


def beat_file(
    server: ComfyServer, name: str, seconds: float, bpm: float = 120, until: float | None = None
) -> None:
    """Kicks on every beat, a quarter of a second after the beginning; silence after `until`."""
    samples = np.zeros(round(seconds * RATE), np.float32)
    at = np.arange(RATE // 4) / RATE
    kick = 0.8 * np.sin(2 * np.pi * (60 * at + 4 * (1 - np.exp(-30 * at)))) * np.exp(-14 * at)
    for beat in np.arange(0.25, (until or seconds) - 0.3, 60 / bpm):
        place = round(beat * RATE)
        samples[place : place + len(kick)] += kick
    write_wave(server.input_dir / name, samples)


def with_sound(graph: Graph, name: str, **more: Any) -> Graph:
    """The graph with Load Audio at its timeline."""
    graph = graph | {"load": node("LoadAudio", audio=name)}
    return changed(graph, "timeline", audio=["load", 0], **more)


def heard(source: Path | io.BytesIO) -> list[float]:
    """The seconds at which clicks begin in a file, and the length of its sound."""
    times: list[float] = []
    with av.open(source if isinstance(source, io.BytesIO) else str(source)) as container:
        for frame in container.decode(audio=0):
            loud = np.flatnonzero(np.abs(frame.to_ndarray()).max(0) > 0.3)
            for place in loud:
                time = frame.time + place / frame.sample_rate
                if not times or time > times[-1] + 0.1:
                    times.append(time)
    return times


def near(found: list[float], wanted: list[float]) -> bool:
    return len(found) == len(wanted) and np.allclose(found, wanted, atol=0.02)
