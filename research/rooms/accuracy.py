"""The command `accuracy`: how often the detector is right on clips of the world of rooms."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from ...cli.arguments import Result
from ...cli.parser import WRITTEN, count
from ...headforcing_core.demo.assets import load_autoencoder
from ...headforcing_core.demo.words import Look
from ...headforcing_core.files import replacing
from ...headforcing_core.plan.describe import markdown_table
from .detector import (
    Sighting,
    camera_words,
    layout_overlap,
    mark_of,
    motion_word,
    sightings,
)
from .drawing import FRAME_SIZE
from .scenes import Clip, looks_of_frames, render
from .stories import random_story

STRIDE = 4
LEAST_PLACES = 18  # of one motion, so many latent frames, before its word is judged
FIRST_CLIP = 90_000  # training uses other clips

Accuracy = dict[str, list[float | None]]
"""By what is detected, a value for each clip; None where there was nothing to detect."""


def clip_accuracy(clip: Clip, video_frames: Tensor) -> dict[str, list[float]]:
    """Detections that are right in the video frames of a clip, one value per chance to be right."""
    seen = sightings(video_frames[::STRIDE])
    looks = looks_of_frames(clip.looks)
    numbers: dict[str, list[float]] = {}
    for index, sighting in enumerate(seen):
        for name, value in _frame_accuracy(
            clip, index * STRIDE, looks[index * STRIDE], sighting
        ).items():
            if value is not None:
                numbers.setdefault(name, []).append(float(value))
    numbers["colour of the marking, of the whole clip"] = [
        float(mark_of(seen) == clip.marking.colour)
    ]
    for motion, group in groupby(
        zip(looks[::STRIDE], seen, strict=True), key=lambda pair: pair[0].motion
    ):
        places = [sighting.place for _, sighting in group]
        if len(places) >= LEAST_PLACES:
            numbers.setdefault("word of the motion", []).append(
                float(motion_word(places, STRIDE) == motion)
            )
    words = camera_words(video_frames)
    still = [frame for frame in range(0, len(words), STRIDE) if looks[frame] == looks[frame + 2]]
    numbers["word of the camera"] = [float(words[frame] == looks[frame].camera) for frame in still]
    return numbers


def _frame_accuracy(clip: Clip, frame: int, look: Look, seen: Sighting) -> dict[str, float | None]:
    """Whether each thing in a video frame was detected rightly; None where there was nothing to
    detect.
    """
    layout = next(layout for layout in clip.layouts if layout.room == look.room)
    camera = int(clip.camera[frame])
    facing = clip.facing[frame]
    hung = [
        replace(item, x=item.x - camera) for item in layout.between(camera, camera + FRAME_SIZE)
    ]
    return {
        "one actor": seen.count == 1,
        "colour": seen.colour == look.colour,
        "shape": seen.shape == look.shape,
        "overlap with the named outline": seen.overlaps.get(look.shape, 0.0),
        "colour of the wall": seen.background == look.background,
        "pattern of the wall": seen.pattern == look.pattern,
        "tint, largest error of a channel": float(np.abs(np.array(seen.tint) - layout.tint).max()),
        "layout": layout_overlap(seen, hung),
        "colour of the marking, facing the camera": seen.mark == clip.marking.colour
        if facing == 1
        else None,
        "no marking, turned away": seen.mark is None if facing == 0 else None,
    }


def accuracy(
    clips: int,
    through: Callable[[Tensor], Tensor] = lambda video_frames: video_frames,
) -> Accuracy:
    """The part of each clip that was detected rightly, after `through` has had its video frames."""
    every: Accuracy = {}
    for index in range(clips):
        number = FIRST_CLIP + index
        clip = render(random_story(np.random.default_rng(number)), number)
        for name, values in clip_accuracy(clip, through(clip.video_frames)).items():
            every.setdefault(name, [None] * clips)[index] = round(float(np.mean(values)), 5)
    return every


def table(columns: Mapping[str, Accuracy]) -> str:
    """A Markdown table of the means over the clips in which there was something to detect."""
    lines = []
    for row in next(iter(columns.values())):
        line = [row]
        for column in columns.values():
            known = [value for value in column[row] if value is not None]
            line.append(f"{np.mean(known):.3f}")
        lines.append(line)
    return markdown_table(["", *columns], lines)


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    sub = command(
        "accuracy",
        show_accuracy,
        "Measure how often the detector is right on clips, rendered and encoded.",
    )
    sub.add_argument("--clips", type=count, default=64)
    sub.add_argument("--out", type=WRITTEN, help="JSON to write")


def measure(clips: int) -> dict[str, Accuracy]:
    """The accuracy on rendered clips, and on those that the autoencoder has encoded and decoded."""
    autoencoder = load_autoencoder()
    through = accuracy(
        clips,
        lambda video_frames: autoencoder.decode(autoencoder.encode(video_frames)),
    )
    return {"rendered": accuracy(clips), "through the autoencoder": through}


def show_accuracy(args: argparse.Namespace) -> Result:
    torch.set_num_threads(1)
    columns = measure(args.clips)
    if args.out:
        with replacing(args.out) as partial:
            partial.write_text(json.dumps(columns) + "\n", encoding="utf-8")
    return Result([table(columns)], columns)
