"""Scenes that return: how alike a scene is to its first visit, against chance.

Of each visit the mean of DINO's features, unit vectors, of a few video frames is kept: the product
of two such means is the mean cosine similarity of all pairs of frames. Chance is the same with the
first visits of the row's other videos.

Beside it RememBench's score (2610.02153): one frame at the departure, one at the return. And
whether the return happened, as a memory that nothing asked for says nothing (MBench, 2606.00793):
by CLIP, where its files are there, the scene between is more like its own prompt than like that of
the visits, and the second visit the other way round.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...cli.values import pick_device
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
SHOWN = (FIRST_VISIT, BETWEEN, SECOND_VISIT)
IMAGES = COLUMNS["return"].needs
TEXTS = COLUMNS["text"].needs


@dataclass(frozen=True)
class Visits:
    """Features of a story that returns.

    Attributes:
        means: `[3, d]`, mean features of the first visit, of what is shown next, and of the second
            visit.
        pair: `[3, d]`, features of the last frame of the first visit, of the last one before the
            second, and of the middle one of the second.
        happened: whether the return happened; None where that was not measured.
    """

    means: Tensor
    pair: Tensor
    happened: bool | None = None


def similarities(visits: Sequence[Visits]) -> list[Numbers]:
    """Of each video of a row how alike the return is to its first visit, and to what shows no
    memory.

    That is by chance to the first visits of all other videos, and to the one visit in which another
    video shows the same prompt: the one between the visits of the video before it.
    """
    first, between, again = torch.stack([each.means for each in visits]).unbind(1)
    departure, left, back = torch.stack([each.pair for each in visits]).unbind(1)
    table = again @ first.T
    own = table.diagonal()
    prompt = (again * between.roll(1, 0)).sum(1)
    chance = (table.sum(1) - own) / (len(table) - 1)
    columns = {
        "similarity": own,
        "chance": chance,
        "prompt": prompt,
        "above": own - chance,
        "above_prompt": own - prompt,
        "pair": (departure * back).sum(1),
        "pair_left": (left * back).sum(1),
    }
    rows = []
    for i, each in enumerate(visits):
        numbers: Numbers = {}
        for key, values in columns.items():
            numbers[f"return_{key}"] = float(values[i])
        if each.happened is not None:
            numbers["return_happened"] = float(each.happened)
        if each.happened:
            numbers["return_above_happened"] = numbers["return_above"]
        rows.append(numbers)
    return rows


def add_returns(args: argparse.Namespace, scores: Scores) -> None:
    """Add the numbers of `similarities` to those of all stories that return, where DINO's files are
    there.
    """
    if IMAGES not in scores.metrics:
        return
    device = "cpu" if args.farm else args.metric_device
    models = Models(args.metric_models, pick_device(device, "--metric-device"))
    stamps = {name: scores.metrics[name] for name in (IMAGES, TEXTS) if name in scores.metrics}
    for videos in scores.by_entry(RETURN).values():
        visits = [visits_of(each, models, stamps) for each in videos]
        for each, numbers in zip(videos, similarities(visits), strict=True):
            scores.known[each.name] = scores.known[each.name] | numbers


def visits_of(each: ScoredVideo, models: Models, stamps: Mapping[str, str]) -> Visits:
    """The features of a finished video, as an earlier run stored them or measured now; `stamps` of
    the metrics whose models are there.
    """
    path = each.video.path.with_suffix(".visits.json")
    made_from = [file_hash(each.video.path), stamps]
    try:
        stored = json.loads(path.read_text("utf-8"))
        if stored["made_from"] == made_from:
            means = torch.tensor(stored["means"])
            return Visits(means, torch.tensor(stored["pair"]), stored["happened"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    visits = measured_visits(each, models, TEXTS in stamps)
    told = {
        "made_from": made_from,
        "means": visits.means.tolist(),
        "pair": visits.pair.tolist(),
        "happened": visits.happened,
    }
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(told), encoding="utf-8")
    return visits


def measured_visits(each: ScoredVideo, models: Models, texts: bool) -> Visits:
    """The features of `FRAMES` video frames of each visit and of the pair; with `texts` CLIP says
    whether the return happened. Raises HeadForcingError for a damaged file.
    """
    starts = [*each.video.plan.prompt_video_frames, each.video.plan.video_frames]
    ends = {visit: (starts[visit], starts[visit + 1]) for visit in SHOWN}
    parts = {visit: spread(*ends[visit]) for visit in SHOWN}
    middle = sum(ends[SECOND_VISIT]) // 2
    pair = [ends[FIRST_VISIT][1] - 1, ends[BETWEEN][1] - 1, middle]
    wanted = set(pair).union(*parts.values())
    pictures = _pictures(each.video.path, wanted)
    with torch.inference_mode():
        seen = _features(models.dino, pictures)
        means = torch.stack([_mean(seen, parts[visit]) for visit in SHOWN])
        happened = None
        if texts:
            segments = each.video.plan.timeline.segments
            prompts = [segments[visit].text for visit in (FIRST_VISIT, BETWEEN)]
            like = _features(models.clip_base.images, pictures)
            between = _mean(like, parts[BETWEEN])
            again = _mean(like, parts[SECOND_VISIT])
            happened = return_happened(between, again, models.clip_base.texts(prompts))
    return Visits(means, torch.stack([seen[number] for number in pair]), happened)


def return_happened(between: Tensor, again: Tensor, prompts: Tensor) -> bool:
    """Whether the scene between is more like its own prompt, the second one, and the second visit
    more like the first; features `[d]`, `prompts [2, d]`.
    """
    left = bool(between @ prompts[1] > between @ prompts[0])
    return left and bool(again @ prompts[0] > again @ prompts[1])


def _mean(features: Mapping[int, Tensor], numbers: Sequence[int]) -> Tensor:
    return torch.stack([features[number] for number in numbers]).mean(dim=0)


def spread(first: int, end: int) -> list[int]:
    """The middles of `FRAMES` equal parts of the video frames from `first` up to `end`; all of them
    if they are few.
    """
    count = min(FRAMES, end - first)
    return [first + (2 * part + 1) * (end - first) // (2 * count) for part in range(count)]


def _pictures(path: Path, wanted: set[int]) -> dict[int, Tensor]:
    """These video frames `[1, H, W, 3]` by their numbers."""
    found = {}
    with open_video(path) as container:
        for number, video_frame in enumerate(read_frames(container, str(path))):
            if number in wanted:
                found[number] = torch.from_numpy(video_frame).clone()
    if len(found) < len(wanted):
        raise HeadForcingError(
            f"{path} ends before its last prompt: remove it, and repeat the command"
        )
    return found


def _features(encoder: ImageEncoder, pictures: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """The features of video frames by their numbers."""
    return {number: encoder(picture)[0].clone() for number, picture in pictures.items()}
