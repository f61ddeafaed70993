"""Scenes that come back: the latent frames that memory heads keep of every scene, and which scene a prompt recalls.

A scene is what one prompt of the timeline makes. None of this is the paper's; METHOD.md, "A scene that comes back",
specifies it. The caches hold the tokens (`FrameStore`), this module decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import HeadForcingError
from ..rollout.rows import BlockRow, Script
from ..timeline.likeness import word_features
from ..timeline.switch import Switch
from .memory import EpisodicMemory, MemoryEntry

SCENE_FRAMES = 2  # latent frames that are kept of a scene
MAX_SCENES = 8  # scenes of which frames are kept; those of the earliest one are dropped first


@dataclass
class KeptFrame:
    """A latent frame of an ended scene, in main memory.

    Attributes:
        pooled: its pooled key, as in `MemoryEntry`.
        index: temporal index that its keys are rotated to; unused where keys are stored without temporal rotation.
        k, v: per layer, `[memory heads, s, head_dim]`.
    """

    frame: int
    pooled: Tensor
    index: int
    k: list[Tensor]
    v: list[Tensor]


@dataclass(frozen=True)
class Recall:
    """A scene that was brought back before `block`: its number, from 1, and the latent frames that came back."""

    block: int
    scene: int
    frames: tuple[int, ...]

    def describe(self) -> str:
        """One line for a report."""
        held = ", ".join(map(str, self.frames)) if self.frames else "none were kept"
        return f"before block {self.block}: recalled scene {self.scene}: frames {held}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class FrameStore(Protocol):
    """Holds the keys and values of memory heads."""

    def held_frames(self) -> list[int]:
        """The frames that memory heads hold unmerged, episodic entries first, each in the order of the context."""

    def keep_frame(self, frame: int) -> KeptFrame:
        """A copy of a held frame."""

    def put_entries(self, frames: Sequence[KeptFrame]) -> list[Tensor]:
        """Replace all entries of episodic memory by these frames; returns their pooled keys on the cache's device."""


class Scenes:
    """The scenes of one video so far.

    Attributes:
        starts: the first latent frame of every scene so far.
        kept: by scene number, from 1, the frames that are kept of it.
        recalls: the scenes that were brought back.
    """

    def __init__(self) -> None:
        self.starts = [0]
        self.kept: dict[int, list[KeptFrame]] = {}
        self.recalls: list[Recall] = []

    @property
    def number(self) -> int:
        """Number of the current scene, from 1."""
        return len(self.starts)

    def end(self, memory: EpisodicMemory, store: FrameStore, frames_seen: int) -> None:
        """Keep the latest frames of its own that the current scene has in episodic memory, and its last frame."""
        held = [frame for frame in store.held_frames() if frame >= self.starts[-1]]
        last = frames_seen - 1
        remembered = {frame for sources in memory.sources for frame in sources} - {last}
        chosen = [frame for frame in held if frame in remembered][1 - SCENE_FRAMES :]
        chosen += [last] if last in held else []
        self.kept[self.number] = [store.keep_frame(frame) for frame in chosen]
        self.kept.pop(self.number - MAX_SCENES, None)
        self.starts.append(frames_seen)

    def recall(self, number: int, block: int, memory: EpisodicMemory, store: FrameStore) -> None:
        """Put the kept frames of a scene in place of all entries of episodic memory; nothing where none were kept."""
        if number not in self.kept:
            raise HeadForcingError(f"no frames of scene {number} are kept in this cache; render the story anew")
        frames = self.kept[number]
        if frames:
            pooled = store.put_entries(frames)
            memory.replace([MemoryEntry([kept.frame], key) for kept, key in zip(frames, pooled, strict=True)])
        self.recalls.append(Recall(block, number, tuple(kept.frame for kept in frames)))


def check_recall(switch: Switch, prompt: int) -> None:
    """Raise HeadForcingError if prompt number `prompt`, from 1, recalls a scene of which frames are no longer kept."""
    if switch.recall and prompt - switch.recall > MAX_SCENES:
        raise HeadForcingError(
            f"prompt {prompt} recalls the scene of prompt {switch.recall}, and frames of the last {MAX_SCENES} scenes "
            f"are kept; recall one from {prompt - MAX_SCENES} on"
        )


# ------------------------------------------------------------------------------------------------ likeness of prompts


def prompt_feature(embedding: Tensor) -> Tensor:
    """The mean of an embedding's rows that are not zero, normalised, `[text_dim]`; prompts are compared by it."""
    rows = embedding.float()
    mean = rows[rows.abs().sum(dim=-1) > 0].mean(dim=0)
    return mean / mean.norm().clamp_min(1e-12)


def scene_features(script: Script, by_words: bool = False) -> list[Tensor]:
    """The feature of every scene: of its prompt's embedding, or `by_words` of the words of its prompt.

    Of a prompt with a text in `Script.alike`, the embedding of that text is taken.
    """
    ends = [*scene_starts(script.rows)[1:], len(script)]
    prompts = [script.rows[end - 1].prompt for end in ends]  # a scene's last block has no blend
    if by_words and script.alike:
        return word_features([str(prompt) for prompt in prompts])
    texts = (script.alike.get(str(prompt)) for prompt in prompts)
    return [
        prompt_feature(script.embedding(end - 1) if text is None else script.embeds[text])
        for text, end in zip(texts, ends, strict=True)
    ]


def scene_starts(rows: Sequence[BlockRow]) -> list[int]:
    """The first block of every scene, where every new prompt is a switch in the rows."""
    return [0, *(block for block, row in enumerate(rows) if row.switch is not None)]


def most_alike(features: Sequence[Tensor]) -> int:
    """Index of the feature that is nearest to the last one, by the dot product; the earliest on a tie."""
    return int(torch.stack([feature @ features[-1] for feature in features[:-1]]).argmax())


def recalled_scenes(script: Script) -> dict[int, tuple[int, ...]]:
    """By block, the number of the scene, from 1, that its switch brings back: the one it names, or the most alike."""
    switches = {block: row.switch for block, row in enumerate(script.rows) if row.switch is not None}
    features = scene_features(script) if any(switch.recall == 0 for switch in switches.values()) else []
    numbers: dict[int, tuple[int, ...]] = {}
    for ended, (block, switch) in enumerate(switches.items(), 1):
        if switch.recall == 0:
            first = max(0, ended - MAX_SCENES)
            numbers[block] = (first + most_alike(features[first : ended + 1]) + 1,)
        elif switch.recall is not None:
            numbers[block] = (switch.recall,)
    return numbers


def number_recalls(script: Script, recalled: Mapping[int, tuple[int, ...]]) -> Script:
    """The script with the number of a scene in every switch that brings one back; `recalled` as `Method.recalled`.

    The rows depend on where the scenes before them begin, too: a number alone could mean other scenes.
    """
    rows, starts = list(script.rows), scene_starts(script.rows)
    for block, numbers in recalled.items():
        switch, begun = rows[block].switch, [start for start in starts if start <= block]
        if switch is not None:
            rows[block] = replace(rows[block], switch=replace(switch, recall=numbers[0]), recall=(*numbers, *begun))
    return Script(rows, script.embeds, script.alike)
