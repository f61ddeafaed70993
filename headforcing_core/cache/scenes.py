"""Scenes that come back: the latent frames that memory heads keep of every scene, and which scene a prompt recalls.

A scene is what one prompt of the timeline makes. None of this is the paper's; METHOD.md, "A scene that comes back",
specifies it. The caches hold the tokens (`FrameStore`), this module decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import HeadForcingError
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
        """That of the current scene, from 1."""
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
    """What prompts are compared by: the mean of the embedding's rows that are not zero, normalised, `[text_dim]`."""
    rows = embedding.float()
    mean = rows[rows.abs().sum(dim=-1) > 0].mean(dim=0)
    return mean / mean.norm().clamp_min(1e-12)


def scene_features(
    embeds: Sequence[Tensor], prompts: Sequence[int], switches: Mapping[int, Switch], by_words: bool = False
) -> list[Tensor]:
    """The feature of every scene.

    Args:
        embeds: text embeddings `[tokens, text_dim]`; its attribute `compared`, if there is one and it is not empty,
            holds those of the scenes' prompts without common words, see `timeline.likeness`, and `words` the
            features by words alone.
        prompts: for every block the number of its embedding; a scene's last block has no blend.
        switches: by block number, where the scenes after the first begin.
    """
    compared = getattr(embeds, "compared", ())
    if compared and by_words:
        return list(getattr(embeds, "words", ()))
    if compared:
        return [prompt_feature(embedding) for embedding in compared]
    ends = [*sorted(switches), len(prompts)]
    return [prompt_feature(embeds[prompts[end - 1]]) for end in ends]


def most_alike(features: Sequence[Tensor]) -> int:
    """Index of the feature that is nearest to the last one, by the dot product; the earliest on a tie."""
    return int(torch.stack([feature @ features[-1] for feature in features[:-1]]).argmax())


class NumberedRecalls(Mapping[int, Switch]):
    """Prompt switches whose `[recall]` by likeness has become one by number.

    Read when a switch happens, because later prompts may change while a video is made.
    """

    def __init__(self, switches: Mapping[int, Switch], embeds: Sequence[Tensor], prompts: Sequence[int]):
        self._switches, self._embeds, self._prompts = switches, embeds, prompts

    def __getitem__(self, block: int) -> Switch:
        switch = self._switches[block]
        if switch.recall != 0:
            return switch
        ended = 1 + sorted(self._switches).index(block)  # scenes before this one
        first = max(0, ended - MAX_SCENES)
        features = scene_features(self._embeds, self._prompts, self._switches)[first : ended + 1]
        return replace(switch, recall=first + most_alike(features) + 1)

    def __iter__(self) -> Iterator[int]:
        return iter(self._switches)

    def __len__(self) -> int:
        return len(self._switches)
