"""Scenes that come back: the latent frames that are kept of every scene, and which scene a prompt
recalls.

BEYOND_THE_PAPER.md specifies it. The caches hold the tokens (`head_group.py`), this module decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..errors import HeadForcingError
from ..rollout.rows import BlockRow, Script
from ..timeline.likeness import word_features
from ..timeline.returns import latest_scenes, scene_of
from ..timeline.switch import Switch
from ..timeline.timeline import Timeline
from .roles import FREE_ENTRIES
from .state import KeptFrame, Stored

T = TypeVar("T")
# by block, for the switches that bring a scene back: its number, from 1, and what else the block
# depends on
RecalledScenes = dict[int, tuple[int, ...]]
MAX_SCENES = 8  # scenes that can come back: those that were visited last


@dataclass
class KeptScene:
    """The frames that are kept of one scene, which begins at latent frame `start`."""

    start: int
    # for every store of sinks, the scene's first frames, as many as it has sinks
    first: list[list[KeptFrame]]
    # of its first visit for memory heads, one of `step` blocks
    spread: list[KeptFrame] = field(default_factory=list)
    step: int = 1


@dataclass(frozen=True)
class Recall:
    """A scene that was brought back before `block`: its number, from 1, and the latent frames that
    came back.
    """

    block: int
    scene: int
    frames: list[int]

    def describe(self) -> str:
        """One line for a report."""
        held = ", ".join(map(str, self.frames)) or "none were kept"
        return f"before block {self.block}: recalled scene {self.scene}: frames {held}"


class Scenes(Stored):
    """The scenes of one video so far.

    Args:
        memory: the store of memory heads, a `HeadGroup`, whose module imports `memory`; None
            without any.
        anchors: stores of sinks, `policy.sink_frames` each.

    Attributes:
        entries: how many frames of a scene come back into memory; 0 without memory heads.
        starts: per prompt, the first latent frame of the visit that it belongs to.
        numbers: per prompt, the number of its scene: that of the first prompt that made it, from 1.
        kept: by scene number, the frames that are kept of it.
        home: the scene whose first frames are the sinks while no other one is recalled.
        recalls: the scenes that were brought back.
        pictures: frames of the pictures that the prompt about to begin names, until they are in the
            caches.
    """

    saved_fields = ("starts", "numbers", "home", "kept", "recalls")

    def __init__(self, memory: Any, anchors: Sequence[Any]) -> None:
        self.memory = memory
        self.entries = 0 if memory is None else memory.policy.episodic_frames
        self.anchors = anchors
        self.starts = [0]
        self.numbers = [1]
        self.kept = {1: self._new(0)}
        self.home = 1
        self.recalls: list[Recall] = []
        self.pictures: KeptScene | None = None

    def _new(self, start: int) -> KeptScene:
        return KeptScene(start, [[] for _ in self.anchors])

    @property
    def current(self) -> KeptScene:
        """The scene of the last prompt."""
        return self.kept[self.numbers[-1]]

    def keep(self, first: int, frames: int) -> None:
        """Keep the frames of a finished block that a recall may bring back; `first` is the block's
        first frame.
        """
        for scene in self.kept.values():
            for store, held in zip(self.anchors, scene.first, strict=True):
                end = min(first + frames, scene.start + store.policy.sink_frames)
                for frame in range(max(first, scene.start), end):
                    held.append(store.keep_frame(frame))
        scene = self.current
        # of a later visit nothing is kept
        if self.memory is None or self.starts[-1] != scene.start:
            return
        if (first - scene.start) // frames % scene.step == 0:
            scene.spread.append(self.memory.keep_frame(first))
        if len(scene.spread) == 2 * self.entries:
            del scene.spread[1::2]
            scene.step *= 2

    def begin(self, switch: Switch, frames_seen: int) -> None:
        """Begin the scene of a new prompt after so many latent frames."""
        number = scene_of(switch, self.numbers)
        if not switch.continues:
            ended = self.current
            ended.spread = spread_over(ended.spread, self.entries)
            latest = {*latest_scenes(self.numbers, MAX_SCENES), self.home}
            self.kept = {scene: kept for scene, kept in self.kept.items() if scene in latest}
            if switch.recall is not None and number not in self.kept:
                raise HeadForcingError(
                    f"no frames of scene {number} are kept in this cache; render the story anew"
                )
            self.kept.setdefault(number, self._new(frames_seen))
            if switch.re_anchor:
                self.home = number
        self.starts.append(self.starts[-1] if switch.continues else frames_seen)
        self.numbers.append(number)

    def keep_pictures(
        self, pictures: Sequence[Tensor], alone: Callable[[Tensor], AbstractContextManager[None]]
    ) -> None:
        """Keep what heads hold of pictures, for the next `brought_back` (BEYOND_THE_PAPER.md).

        Args:
            pictures: `[frames, channels, h, w]` each, at most a block; their frames get negative
                numbers.
            alone: writes latents as a current block with nothing else in its context, while it is
                entered.
        """
        counts = [store.policy.sink_frames for store in self.anchors]
        kept = self._new(-max(counts, default=0))
        for number, latents in enumerate(pictures):
            with alone(latents):
                for store, held, sinks in zip(self.anchors, kept.first, counts, strict=True):
                    share = max(1, sinks // len(pictures))
                    for frame in range(min(share, len(latents), sinks - len(held))):
                        copy = store.keep_frame(frame)
                        copy.frame = kept.start + len(held)
                        held.append(copy)
                if self.memory is not None and number < self.entries - FREE_ENTRIES:
                    copy = self.memory.keep_frame(0)
                    copy.frame = number - len(pictures)
                    kept.spread.append(copy)
        self.pictures = kept

    def brought_back(self, switch: Switch, block: int) -> tuple[KeptScene, list[KeptFrame]] | None:
        """The frames that are the sinks from `block` on, and the entries of memory in place of all
        others; without entries memory keeps its own, but for pictures. None: nothing changes."""
        pictures = self.pictures
        self.pictures = None
        if switch.continues and pictures is None:
            return None
        scene = self.kept[self.home]
        entries: list[KeptFrame] = []
        if switch.recall is not None:
            scene = self.current
            entries = scene.spread
            back = {kept.frame for kept in chain(scene.spread, *scene.first)}
            self.recalls.append(Recall(block, self.numbers[-1], sorted(back)))
        if pictures is not None:
            scene = pictures
            entries = [*pictures.spread, *entries][: self.entries]
        return scene, entries


def spread_over(values: list[T], count: int) -> list[T]:
    """At most `count` of the values, evenly spaced, the first and the last one among them."""
    if len(values) <= count:
        return values
    return [values[round(place * (len(values) - 1) / (count - 1))] for place in range(count)]


def check_recalls(timeline: Timeline) -> None:
    """Raise HeadForcingError if a prompt recalls a scene of which frames are no longer kept."""
    scenes = [1]
    for number, segment in enumerate(timeline.segments[1:], 2):
        latest = latest_scenes(scenes, MAX_SCENES)
        recall = segment.switch.recall
        if recall and scenes[recall - 1] not in latest:
            raise HeadForcingError(
                f"prompt {number} recalls the scene of prompt {recall}, but only frames of the "
                f"last {MAX_SCENES} scenes are kept; recall one from prompt {min(latest)} on"
            )
        scenes.append(scene_of(segment.switch, scenes))


# ------------------------------------------------------------------------------------------------
# likeness of prompts


def scene_features(script: Script, by_words: bool = False) -> list[Tensor]:
    """A feature of every scene, normalised: of the words of its prompt, or the mean over the rows
    that are not zero of its embedding, or of that of its text in `Script.alike`."""
    ends = [*scene_starts(script.rows)[1:], len(script)]
    prompts = [script.rows[end - 1].prompt for end in ends]  # a scene's last block has no blend
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


def scene_starts(rows: Sequence[BlockRow]) -> list[int]:
    """The first block of every prompt, where every new prompt is a switch in the rows."""
    return [0, *(block for block, row in enumerate(rows) if row.switch is not None)]


def visit_starts(rows: Sequence[BlockRow]) -> list[int]:
    """For every prompt the first block of the visit to a scene that it belongs to, as in
    `Scenes.starts`.
    """
    starts = [0]
    for block, row in enumerate(rows):
        if row.switch is not None:
            starts.append(starts[-1] if row.switch.continues else block)
    return starts


def recalled_scenes(script: Script) -> RecalledScenes:
    """By block, the number of the scene, from 1, that its switch names, or the first of the most
    alike kept ones.
    """
    features: list[Tensor] = []
    numbers: RecalledScenes = {}
    for ended, block in enumerate(scene_starts(script.rows)):
        switch = script.rows[block].switch
        if switch is None or switch.recall is None:
            continue
        numbers[block] = (switch.recall,)
        if switch.recall == 0:
            features = features or scene_features(script)
            first = max(0, ended - MAX_SCENES)
            likeness = torch.stack([feature @ features[ended] for feature in features[first:ended]])
            numbers[block] = (first + int(likeness.argmax()) + 1,)
    return numbers


def number_recalls(script: Script, recalled: RecalledScenes) -> Script:
    """The script with the number of a scene in every switch that brings one back; `recalled` as
    `Method.recalled`.

    These rows, and those of scenes after them or after pictures, also depend on where the scenes
    before them begin.
    """
    rows = list(script.rows)
    with_pictures = [block for block, row in enumerate(rows) if row.pictures]
    first = min((*recalled, *with_pictures), default=len(rows))
    for block, row in enumerate(rows):
        if row.switch is None or row.switch.continues or block < first:
            continue
        switch = row.switch
        numbers = recalled.get(block, (0,))
        if block in recalled:
            switch = replace(switch, recall=numbers[0])
        rows[block] = replace(
            row, switch=switch, recall=(*numbers, *visit_starts(rows[: block + 1]))
        )
    return Script(rows, script.embeds, script.alike, script.pictures)
