"""Scenes that come back: the latent frames that are kept of every scene, and which scene a prompt
recalls.

Recalling scenes is not in the paper; BEYOND_THE_PAPER.md specifies it. A scene has the number, from
1, of the first prompt that showed it, so numbers may have gaps. A visit is a run of prompts in one
scene: one whose switch `continues` stays in the visit of the prompt before it. Sinks are first
frames to which heads always attend; memory heads hold more frames, the entries of memory.

A cache (`head_cache.py`) calls `copy_frames` after every block. Before the first block of a prompt
it calls `keep_pictures` if the prompt names pictures, then `begin` and `recall`; before the first
block of the video, where no switch comes, `recall` alone and only after `keep_pictures`. The groups
of heads hold the tokens (`head_group.py`); this module decides which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar

import torch
from torch import Tensor

from ..errors import HeadForcingError
from ..rollout.rows import BlockRow, Script
from ..timeline.likeness import word_features
from ..timeline.returns import latest_scenes, scene_of
from ..timeline.switch import MOST_ALIKE, Switch
from ..timeline.timeline import Timeline
from .head_group import HeadGroup
from .state import KeptFrame, Saved, check_fields

T = TypeVar("T")
MAX_SCENES = 8  # visited last, whose frames are kept besides those of the home scene


@dataclass(frozen=True)
class RecalledScene:
    """The scene that a switch brings back: the number of a prompt that shows it, and further
    numbers that a method adds to the keys of stored blocks.
    """

    prompt: int
    for_keys: tuple[int, ...] = ()


RecalledScenes = dict[int, RecalledScene]  # by the block of the switch


@dataclass
class KeptScene:
    """The frames that are kept of one scene, which begins at latent frame `start`."""

    start: int
    # for every group of `Scenes.anchors`: the first frames from `start` on, as many as it has sinks
    first: list[list[KeptFrame]]
    # for memory heads: the first frame of every `step`-th block of the scene's first visit
    spread: list[KeptFrame] = field(default_factory=list)
    step: int = 1


@dataclass(frozen=True)
class Recall:
    """A scene that was brought back before `block`: its number, and the latent frames that were
    kept of it; pictures that the prompt names take the places of some.
    """

    block: int
    scene: int
    frames: list[int]

    def describe(self) -> str:
        """One line for a report."""
        held = ", ".join(map(str, self.frames)) or "none were kept"
        return f"before block {self.block}: recalled scene {self.scene}: frames {held}"


class Scenes:
    """The scenes of one video so far.

    Args:
        memory: the memory heads, None without any.
        anchors: the groups that hold sinks, `policy.sink_frames` each.

    Attributes:
        capacity: how many frames of a scene come back into memory; 0 without memory heads.
        starts: per prompt, the first latent frame of its visit.
        numbers: per prompt, the number of its scene.
        kept: by scene number, the frames that are kept of it.
        home: the scene of the last prompt with `[re-anchor]`, else the first: its first frames are
            the sinks unless another scene is recalled.
        recalls: the scenes that were brought back.
        pictures: frames of the pictures that the next prompt names, between `keep_pictures` and
            `recall`; no state is stored in between.
    """

    def __init__(self, memory: HeadGroup | None, anchors: Sequence[HeadGroup]) -> None:
        self.memory = memory
        self.capacity = 0 if memory is None else memory.policy.episodic_frames
        self.anchors = anchors
        self.starts = [0]
        self.numbers = [1]
        self.kept = {1: self._empty_scene(0)}
        self.home = 1
        self.recalls: list[Recall] = []
        self.pictures: KeptScene | None = None

    @property
    def saved(self) -> Saved:
        """The scenes between two blocks."""
        return {
            "starts": self.starts,
            "numbers": self.numbers,
            "home": self.home,
            "kept": self.kept,
            "recalls": self.recalls,
        }

    @saved.setter
    def saved(self, saved: Saved) -> None:
        check_fields(saved, self.saved)
        self.starts = saved["starts"]
        self.numbers = saved["numbers"]
        self.home = saved["home"]
        self.kept = saved["kept"]
        self.recalls = saved["recalls"]

    def _empty_scene(self, start: int) -> KeptScene:
        return KeptScene(start, [[] for _ in self.anchors])

    @property
    def current(self) -> KeptScene:
        """The scene of the last prompt."""
        return self.kept[self.numbers[-1]]

    def copy_frames(self, first_frame: int, frame_count: int) -> None:
        """Keep the frames of a finished block that a recall may bring back."""
        # a scene shorter than its sinks is filled up with the frames after it, as the sinks are
        for scene in self.kept.values():
            for group, held in zip(self.anchors, scene.first, strict=True):
                end = min(first_frame + frame_count, scene.start + group.policy.sink_frames)
                for frame in range(max(first_frame, scene.start), end):
                    held.append(group.keep_frame(frame))
        scene = self.current
        is_first_visit = self.starts[-1] == scene.start
        if self.memory is None or not is_first_visit:
            return
        block_of_scene = (first_frame - scene.start) // frame_count
        if block_of_scene % scene.step == 0:
            scene.spread.append(self.memory.keep_frame(first_frame))
        # how long the scene will be is not known: every second frame goes when there are too many
        if len(scene.spread) == 2 * self.capacity:
            del scene.spread[1::2]
            scene.step *= 2

    def begin(self, switch: Switch, frames_seen: int) -> None:
        """Begin a new prompt after so many latent frames: in the scene of the one before it, in a
        new scene, or in an earlier one.
        """
        number = scene_of(switch, self.numbers)
        start = self.starts[-1]
        if not switch.continues:
            start = frames_seen
            ended = self.current
            ended.spread = spread_over(ended.spread, self.capacity)
            latest = {*latest_scenes(self.numbers, MAX_SCENES), self.home}
            self.kept = {each: scene for each, scene in self.kept.items() if each in latest}
            if switch.recall is not None and number not in self.kept:
                raise HeadForcingError(
                    f"no frames of scene {number} are kept in this cache; render the story anew"
                )
            self.kept.setdefault(number, self._empty_scene(frames_seen))
            if switch.re_anchor:
                self.home = number
        self.starts.append(start)
        self.numbers.append(number)

    def keep_pictures(
        self,
        pictures: Sequence[Tensor],
        written_alone: Callable[[Tensor], AbstractContextManager[None]],
    ) -> None:
        """Keep the keys and values of reference pictures, for the next `recall`
        (BEYOND_THE_PAPER.md).

        Args:
            pictures: latents `[frames, channels, h, w]` of each, at most a block.
            written_alone: makes a clean pass over these latents; while it is entered, the groups
                hold nothing but their keys and values, as frames 0, 1, ...
        """
        counts = [group.policy.sink_frames for group in self.anchors]
        # pictures come before the video: their frames have numbers below 0
        kept = self._empty_scene(-max(counts, default=0))
        for index, latents in enumerate(pictures):
            with written_alone(latents):
                for group, held, sinks in zip(self.anchors, kept.first, counts, strict=True):
                    share = max(1, sinks // len(pictures))  # of the sinks, for each picture
                    room = sinks - len(held)
                    for frame in range(min(share, len(latents), room)):
                        copy = group.keep_frame(frame)
                        copy.frame = kept.start + len(held)
                        held.append(copy)
                if self.memory is not None and index < self.memory.policy.picture_entries:
                    copy = self.memory.keep_frame(0)
                    copy.frame = index - len(pictures)
                    kept.spread.append(copy)
        self.pictures = kept

    def recall(self, switch: Switch, block: int) -> tuple[KeptScene, list[KeptFrame]] | None:
        """Note the recall of `switch`, if it is one, and use up the pictures; returns the scene
        whose first frames are the sinks from `block` on, and the frames that replace the entries of
        memory, or None if nothing changes. In a new scene the sinks are those of `home`.

        Where no frames are given, memory keeps its entries, but for those of earlier pictures.
        """
        pictures = self.pictures
        self.pictures = None
        if switch.continues and pictures is None:
            return None
        with_sinks = self.kept[self.home]
        entries: list[KeptFrame] = []
        if switch.recall is not None:
            with_sinks = self.current
            entries = with_sinks.spread
            back = {kept.frame for kept in chain(entries, *with_sinks.first)}
            self.recalls.append(Recall(block, self.numbers[-1], sorted(back)))
        if pictures is not None:
            with_sinks = pictures
            entries = [*pictures.spread, *entries][: self.capacity]
        return with_sinks, entries


def spread_over(values: list[T], count: int) -> list[T]:
    """At most `count` (0 or from 2 on) of the values, evenly spaced, the first and the last one
    among them.
    """
    if len(values) <= count:
        return values
    return [values[round(index * (len(values) - 1) / (count - 1))] for index in range(count)]


def check_recalls(timeline: Timeline) -> None:
    """Raise HeadForcingError if a prompt recalls a scene of which frames are no longer kept."""
    scenes = _scenes(timeline)
    for index, segment in enumerate(timeline.segments):
        recall = segment.switch.recall
        if recall is None or recall == MOST_ALIKE:
            continue
        latest = latest_scenes(scenes[:index], MAX_SCENES)
        if scenes[recall - 1] not in latest:
            raise HeadForcingError(
                f"prompt {index + 1} recalls the scene of prompt {recall}, but only frames of the "
                f"last {MAX_SCENES} scenes are kept; recall one from prompt {min(latest)} on"
            )


def scenes_kept(timeline: Timeline) -> list[int]:
    """The scenes that a next prompt can recall, the last one first, each by the number of a prompt
    that shows it.
    """
    return latest_scenes(_scenes(timeline), MAX_SCENES)


def _scenes(timeline: Timeline) -> list[int]:
    """The scene of each prompt, as the number of its first prompt; a [recall] without a number,
    whose scene is not known yet, counts as a new scene.
    """
    scenes = [1]
    for segment in timeline.segments[1:]:
        scenes.append(scene_of(segment.switch, scenes))
    return scenes


# ------------------------------------------------------------------------------ likeness of prompts


def scene_features(script: Script, by_words: bool = False) -> list[Tensor]:
    """A unit vector for every prompt, by which prompts are compared: the mean of the rows of its
    embedding that are not zero.

    `Script.alike` may name another text for a prompt, whose embedding is taken. With `by_words` the
    vectors count words instead, where the script has such texts.
    """
    ends = [*prompt_starts(script.rows)[1:], len(script)]
    # the first blocks of a prompt may be blended with the one before it, its last is not
    prompts = [script.rows[end - 1].prompt for end in ends]
    if by_words and script.alike:
        return word_features([str(prompt) for prompt in prompts])
    features = []
    for prompt, end in zip(prompts, ends, strict=True):
        text = script.alike.get(str(prompt))
        embedding = script.embedding(end - 1) if text is None else script.embeds[text]
        rows = embedding.float()
        mean = rows[rows.abs().sum(dim=-1) > 0].mean(dim=0)
        features.append(mean / mean.norm().clamp_min(1e-12))
    return features


def prompt_starts(rows: Sequence[BlockRow]) -> list[int]:
    """The first block of every prompt, where every new prompt is a switch in the rows."""
    return [0, *(block for block, row in enumerate(rows) if row.switch is not None)]


def visit_starts(rows: Sequence[BlockRow]) -> list[int]:
    """For every prompt the first block of its visit; `Scenes.starts` has the same in latent
    frames.
    """
    starts = [0]
    for block, row in enumerate(rows):
        if row.switch is not None:
            starts.append(starts[-1] if row.switch.continues else block)
    return starts


def recalled_scenes(script: Script) -> RecalledScenes:
    """By block, the number of the prompt whose scene its switch brings back: the one that it names,
    or the most similar of the last `MAX_SCENES` prompts, of equals the first.
    """
    features: list[Tensor] = []
    recalled: RecalledScenes = {}
    for index, block in enumerate(prompt_starts(script.rows)):
        switch = script.rows[block].switch
        if switch is None or switch.recall is None:
            continue
        prompt = switch.recall
        if prompt == MOST_ALIKE:
            features = features or scene_features(script)
            oldest = max(0, index - MAX_SCENES)  # these are of scenes that are kept
            candidates = features[oldest:index]
            likeness = torch.stack([feature @ features[index] for feature in candidates])
            prompt = oldest + int(likeness.argmax()) + 1
        recalled[block] = RecalledScene(prompt)
    return recalled


def number_recalls(script: Script, recalled: RecalledScenes) -> Script:
    """The script with the number of a prompt in every switch that brings its scene back; `recalled`
    is what `Method.recalled` returns.

    From the first recall or picture on, what comes back depends on where scenes begin: each row
    with which a visit begins gets this as `recall_key`, a part of its block's key.
    """
    rows = list(script.rows)
    with_pictures = [block for block, row in enumerate(rows) if row.pictures]
    first_affected = min((*recalled, *with_pictures), default=len(rows))
    starts = visit_starts(rows)
    for index, block in enumerate(prompt_starts(rows)):
        row = rows[block]
        switch = row.switch
        if switch is None or switch.continues or block < first_affected:
            continue
        numbers = [0]  # nothing is recalled
        if block in recalled:
            scene = recalled[block]
            switch = replace(switch, recall=scene.prompt)
            numbers = [scene.prompt, *scene.for_keys]
        key = (*numbers, *starts[: index + 1])
        rows[block] = replace(row, switch=switch, recall_key=key)
    return Script(rows, script.embeds, script.alike, script.pictures)
