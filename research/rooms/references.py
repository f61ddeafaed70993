"""The command `references`: does the layout of a room appear that is shown only as a picture?
Exploratory.

A room for four blocks, then one that the story has not shown, whose prompt holds a picture: a frame
of that room as the world draws it, or of the same room in another video, or none.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np
import torch
from tqdm import tqdm

from ...cli.arguments import Result
from ...cli.compare import write_result
from ...cli.parser import count, folder_written
from ...headforcing_core.demo.words import Look
from ...headforcing_core.files import claimed
from ...headforcing_core.methods.head_forcing import HeadForcing
from ...headforcing_core.rollout.rows import Picture
from ...headforcing_core.timeline.timeline import parse_timeline
from ..statistics import Numbers, mean
from .detector import layout_overlap, sightings
from .judge import STRIDE, RoomsJudge, timeline_of
from .measurements import embedded_judge
from .scenes import CLOCK, Layout, render
from .stories import returning_story
from .verdicts import means_table

FIRST = 86_000
VIDEOS = 16
BEFORE = 4
SHOWN = 4  # blocks in the room before, and in the room of the picture
NONE = "no picture"
RIGHT = "a picture of the room"
WRONG = "a picture of another video's room"
COLUMNS = ("layout", "wrong layout", "outline")
RULES = ("quota", "function")


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    sub = command(
        "references",
        references,
        "Measure whether a room appears that is shown only as a picture.",
    )
    sub.add_argument("--out", type=folder_written("references.*"), required=True, help="folder")
    sub.add_argument("--videos", type=count, default=VIDEOS, help=f"per row ({VIDEOS})")


def references(args: argparse.Namespace) -> Result:
    """Make all videos, then write `references.md` and `references.json`."""
    judge = embedded_judge()
    rows = {}
    for rule, shown in product(RULES, (NONE, RIGHT, WRONG)):
        rows[f"{shown}, roles by {rule}"] = (shown, rule)
    videos: dict[str, list[Numbers]] = {row: [] for row in rows}
    with claimed(args.out / "references.json"):
        torch.set_num_threads(1)
        for number in tqdm(range(FIRST, FIRST + args.videos), unit="story", disable=args.json):
            for row, (shown, rule) in rows.items():
                videos[row].append(measure(judge, number, shown, rule))
    found = {"rows": videos, "numbers": [FIRST, FIRST + args.videos]}
    return write_result(args.out, "references", text=table(videos), found=found, indent=None)


def measure(judge: RoomsJudge, number: int, shown: str, rule: str) -> Numbers:
    """Make one video, and look for the layout of the room, and for that of the wrong picture, in
    its second scene.
    """
    looks = returning_story(np.random.default_rng(number), SHOWN, away=0, back=0, before=BEFORE)
    story = timeline_of(looks)
    pictures = (
        {} if shown == NONE else {"room": _picture(judge, looks, number, wrong=shown == WRONG)}
    )
    if pictures:  # the model reads the same words
        *others, last = [segment.text for segment in story.segments]
        named = "|".join([*others, last.replace(" room", " @room")])
        story = parse_timeline(named, CLOCK.start_seconds(len(looks)), references=("room",))
    latents = judge.latents(judge.plan(HeadForcing(), rule, story, number), pictures)
    seen = sightings(
        judge.autoencoder.decode(latents)[STRIDE * BEFORE * CLOCK.frames_per_block :: STRIDE]
    )
    found: list[Sequence[float | None]] = []
    for version in (0, 1):
        layout = Layout(number, looks[-1].room, version).pictures()
        found.append([layout_overlap(sighting, layout) for sighting in seen])
    found.append([sighting.overlaps.get(looks[-1].shape, 0.0) for sighting in seen])
    return {
        column: mean(values, decides=False) for column, values in zip(COLUMNS, found, strict=True)
    }


def _picture(judge: RoomsJudge, looks: Sequence[Look], number: int, wrong: bool) -> Picture:
    """The first video frame of the second scene, repeated to a block and encoded."""
    versions = [int(wrong)] * len(looks)
    still = render(looks, number, versions).video_frames[CLOCK.video_frames(BEFORE)]
    frames = STRIDE * (CLOCK.frames_per_block - 1) + 1
    return Picture(
        judge.autoencoder.encode(still.expand(frames, -1, -1, -1)),
        f"{number} {wrong}",
    )


def table(videos: Mapping[str, Sequence[Numbers]]) -> str:
    """The rows with means and 95 % intervals, and each row's layout minus that without a
    picture.
    """
    floors = {row: f"{NONE}, roles by {row.rpartition(' ')[2]}" for row in videos}
    return means_table(videos, COLUMNS, floors, "layout minus no picture")
