"""Scenes that return: how alike a scene is to its first visit, against chance.

Of each visit the mean of DINO's features, unit vectors, of a few video frames is kept: the product
of two such means is the mean cosine similarity of all pairs of frames. Chance is the same with the
first visits of the row's other videos.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

from ...headforcing_core.commands.values import pick_device
from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.files import replacing
from ...headforcing_core.hashing import file_hash
from ...headforcing_core.report.drift import read_frames
from ...headforcing_core.video.reader import open_video
from ..metrics.models import ImageEncoder, Models
from ..statistics import Numbers
from ..videos import ScoredVideo, Scores
from .paper_numbers import COLUMNS, RETURN
from .stories import BETWEEN, FIRST_VISIT, SECOND_VISIT

FRAMES = 16  # video frames of each visit, spread evenly over it


def similarities(visits: Tensor) -> list[Numbers]:
    """Of each video of a row how alike the return is to its first visit, and to what shows no
    memory.

    That is by chance to the first visits of all other videos, and to the one visit in which another
    video shows the
    same prompt: the one between the visits of the video before it. `visits [videos, 3, d]` are mean
    features of the first visit, of what is shown next, and of the second visit.
    """
    first, between, again = visits.unbind(1)
    table = again @ first.T
    own = table.diagonal()
    prompt = (again * between.roll(1, 0)).sum(1)
    chance = (table.sum(1) - own) / (len(table) - 1)
    found = {
        "similarity": own,
        "chance": chance,
        "prompt": prompt,
        "above": own - chance,
        "above_prompt": own - prompt,
    }
    return [
        {f"return_{key}": float(values[i]) for key, values in found.items()}
        for i in range(len(table))
    ]


def add_returns(args: argparse.Namespace, scores: Scores) -> None:
    """Add the numbers of `similarities` to those of all stories that return, where DINO's files are
    there.
    """
    stamp = scores.metrics.get(COLUMNS["return"].needs)
    if stamp is None:
        return
    device = "cpu" if args.farm else args.metric_device
    models = Models(args.metric_models, pick_device(device, "--metric-device"))
    for videos in scores.by_entry(RETURN).values():
        measured = similarities(torch.stack([visits_of(each, models, stamp) for each in videos]))
        for each, numbers in zip(videos, measured, strict=True):
            scores.known[each.name] = scores.known[each.name] | numbers


def visits_of(each: ScoredVideo, models: Models, stamp: str) -> Tensor:
    """The features `[3, d]` of a finished video, as an earlier run stored them or measured now."""
    path = each.video.path.with_suffix(".visits.json")
    made_from = [file_hash(each.video.path), stamp]
    try:
        stored = json.loads(path.read_text("utf-8"))
        if stored["made_from"] == made_from:
            return torch.tensor(stored["features"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    visits = measured_visits(each, models.dino)
    with replacing(path) as temporary:
        temporary.write_text(
            json.dumps({"made_from": made_from, "features": visits.tolist()}), encoding="utf-8"
        )
    return visits


def measured_visits(each: ScoredVideo, encoder: ImageEncoder) -> Tensor:
    """The mean features `[3, d]` of `FRAMES` video frames of each visit. Raises HeadForcingError
    for a damaged file.
    """
    starts = [*each.video.plan.start_video_frames, each.video.plan.video_frames]
    parts = [
        spread(starts[visit], starts[visit + 1]) for visit in (FIRST_VISIT, BETWEEN, SECOND_VISIT)
    ]
    found = _features(each.video.path, encoder, {number for part in parts for number in part})
    return torch.stack(
        [torch.stack([found[number] for number in part]).mean(dim=0) for part in parts]
    )


def spread(first: int, end: int) -> list[int]:
    """The middles of `FRAMES` equal parts of the video frames from `first` up to `end`; all of them
    if they are few.
    """
    count = min(FRAMES, end - first)
    return [first + (2 * part + 1) * (end - first) // (2 * count) for part in range(count)]


def _features(path: Path, encoder: ImageEncoder, wanted: set[int]) -> dict[int, Tensor]:
    """The features of these video frames by their numbers."""
    found = {}
    with open_video(path) as container, torch.inference_mode():
        for number, video_frame in enumerate(read_frames(container, str(path))):
            if number in wanted:
                found[number] = encoder(torch.from_numpy(video_frame))[0].clone()
    if len(found) < len(wanted):
        raise HeadForcingError(
            f"{path} ends before its last prompt: remove it, and repeat the command"
        )
    return found
