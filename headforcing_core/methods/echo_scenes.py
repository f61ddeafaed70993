"""Echo-Forcing's scenes: how each prompt begins, and which earlier scene's memory frame it gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..cache.scenes import prompt_starts, scene_features
from ..rollout.rows import Script

HARD_CUT_INDEX = 45  # added to the temporal indices of the first block after a hard cut
MAX_RECALL_INDEX = 6


@dataclass(frozen=True)
class Scene:
    """The beginning of a scene."""

    source: int  # number of the scene whose memory frame it gets
    jump: int  # added to the temporal indices of its first block
    kept_frames: int = 0  # last frames of the scene before that stay, behind the memory frame
    first_weight: float = 1.0  # of the memory frame in the first block
    # and `fastest`: limits of the factor by which kept tokens fade from block to block
    slowest: float = 0.9
    fastest: float = 0.55
    kept_blocks: int = 5  # after this many blocks they are dropped


# by block of a prompt switch: the number of the scene that ends, and the beginning of the next one
ScenePlan = dict[int, tuple[int, Scene]]


def plan_scenes(script: Script, by_words: bool = False) -> ScenePlan:
    """The scenes of a video.

    `by_words` as for `scene_features`, which tell how alike two scenes are.
    """
    scenes: ScenePlan = {}
    features = scene_features(script, by_words)
    first = 0  # scene since the last cut or recall
    for number, block in enumerate(prompt_starts(script.rows)):
        switch = script.rows[block].switch
        if not number or switch is None:
            continue
        if switch.recall is not None:
            source, jump = _find_recalled(features[: number + 1], switch.recall)
            scenes[block] = number - 1, Scene(source, jump)
            first = number
        elif switch.re_anchor:
            cut = Scene(
                number - 1,
                HARD_CUT_INDEX,
                first_weight=0.8,
                slowest=1.0,
                fastest=1.0,
                kept_blocks=1,
            )
            scenes[block] = number - 1, cut
            first = number
        else:
            scenes[block] = number - 1, Scene(first, 0, kept_frames=2, slowest=0.95, fastest=0.8)
    return scenes


def _find_recalled(features: Sequence[Tensor], wanted: int) -> tuple[int, int]:
    """The scene before the last one that is recalled, `wanted` from 1 or 0 for the most alike, and
    its jump.
    """
    likeness = torch.stack([feature @ features[-1] for feature in features[:-1]])
    source = wanted - 1 if wanted else int(likeness.argmax())
    gaps = (1 - likeness).clamp_min(0)
    total = float(gaps.sum())
    return source, round(MAX_RECALL_INDEX * float(gaps[source]) / total) if total > 1e-6 else 0
