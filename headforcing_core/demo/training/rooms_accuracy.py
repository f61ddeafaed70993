"""How often the detector of the world of rooms is right on rendered clips, as a table; with an autoencoder also after it.

python -m headforcing.headforcing_core.demo.training.rooms_accuracy --clips 64 [--autoencoder FILE] [--out FILE.json]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...files import replacing
from ..rooms import Clip, looks_of_frames
from ..rooms_detector import camera_words, motion_word, right_in_clip, sightings
from .rooms_data import training_clip
from .rooms_stages import load_rooms_autoencoder

STRIDE = 4
LEAST_PLACES = 18  # of one motion, so many latent frames, before its word is judged
FIRST_CLIP = 90_000  # training uses other clips

Numbers = dict[str, list[float]]


def clip_accuracy(clip: Clip, video_frames: Tensor) -> Numbers:
    """What was detected rightly in the video frames of a clip, one value per chance to be right."""
    seen = sightings(video_frames[::STRIDE])
    numbers = right_in_clip(clip, seen, STRIDE)
    looks = looks_of_frames(clip.looks)
    start = 0
    for motion, group in groupby(looks[::STRIDE], key=lambda look: look.motion):
        places = [sighting.place for sighting in seen[start : (start := start + len(list(group)))]]
        if len(places) >= LEAST_PLACES:
            numbers.setdefault("word of the motion", []).append(float(motion_word(places, STRIDE) == motion))
    words = camera_words(video_frames)
    for frame in range(0, len(words), STRIDE):
        now, later = looks[frame], looks[frame + 2]
        if now == later:
            numbers.setdefault("word of the camera", []).append(float(words[frame] == now.camera))
    if clip.pictures.any() and len(seen) > 1:
        numbers.setdefault("marking, of a clip", []).append(float(marking_of(seen) == (clip.marking)))
    return numbers


def marking_of(seen: list) -> object:
    """The marking that most video frames show; None if none does."""
    shown = [sighting.marking for sighting in seen if sighting.marking is not None]
    return max(set(shown), key=shown.count) if shown else None


def accuracy(clips: int, through: Callable[[Tensor], Tensor] = lambda video_frames: video_frames) -> dict[str, float]:
    """Means over so many clips, after `through` has had their video frames."""
    every: Numbers = {}
    for seed in range(FIRST_CLIP, FIRST_CLIP + clips):
        clip = training_clip(seed)
        for name, values in clip_accuracy(clip, through(clip.video_frames)).items():
            every.setdefault(name, []).extend(values)
    return {name: float(np.mean(values)) for name, values in every.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=64)
    parser.add_argument("--autoencoder", type=Path)
    parser.add_argument("--out", type=Path, help="JSON to write")
    args = parser.parse_args()
    torch.set_num_threads(1)
    columns = {"rendered": accuracy(args.clips)}
    if args.autoencoder:
        autoencoder = load_rooms_autoencoder(args.autoencoder)
        columns["through the autoencoder"] = accuracy(args.clips, lambda v: autoencoder.decode(autoencoder.encode(v)))
    lines = [f"| | {' | '.join(columns)} |", f"| --- |{' --- |' * len(columns)}"]
    lines += [f"| {row} | {' | '.join(f'{c[row]:.4f}' for c in columns.values())} |" for row in columns["rendered"]]
    sys.stdout.write("\n".join(lines) + "\n")
    if args.out:
        with replacing(args.out) as partial:
            partial.write_text(json.dumps({"clips": args.clips, **columns}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
