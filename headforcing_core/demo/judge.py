"""Evaluation of the embedded model: videos are generated in memory and compared with their prompts.

Prompts do not mention landmarks. A video in which the camera pans away and back therefore measures whether the model
remembers them (`remembered`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from ..cache.method import Method
from ..cache.policy import preset
from ..drift.report import report_frames
from ..model.wan import WanModel
from ..render.plan import RenderPlan
from ..render.video_rollout import VideoRollout
from ..rollout.schedule import Schedule, schedule
from ..rollout.wan_video_model import WanVideoModel
from ..timeline.timeline import Timeline, parse_timeline
from ..weights.checkpoint import CheckpointInfo, inspect_checkpoint
from . import assets, word_hash
from .detector import Sighting, score, sightings
from .world import CLOCK, Look, camera_path, looks_of_frames, render

STRIDE = 4  # one video frame per latent frame is evaluated
HORIZON_FRAMES = 81  # video frames of the 21 latent frames in training
NEAR_FRAMES, FAR_FRAMES = 15, 24  # latent frames between two visits: inside every window, outside a window of 21
DRIFT = ("flicker", "edge_ratio", "motion", "longest_freeze_seconds", "sharpness_ratio", "saturation_slope_per_minute")
HISTORY_BLOCKS = 42  # six times the training length
HISTORY_LEVELS = (0.625, 0.8333, 0.9375)  # noise levels of the sampler's steps after the first
FIRST_STORY = 50_000  # seed of the first story; training uses other seeds


def one_prompt(count: int, seconds: float) -> list[Timeline]:
    """Timelines of a single prompt with a static camera."""
    looks = (Look.draw(np.random.default_rng(FIRST_STORY + i), pan_odds=0.0) for i in range(count))
    return [parse_timeline(f"0:00 {look.prompt}", seconds) for look in looks]


def mixed(count: int, seconds: float) -> list[Timeline]:
    """Timelines of a single prompt; in half of them the camera pans."""
    looks = (Look.draw(np.random.default_rng(FIRST_STORY + i)) for i in range(count))
    return [parse_timeline(f"0:00 {look.prompt}", seconds) for look in looks]


def six_prompts(count: int, seconds: float) -> list[Timeline]:
    """Timelines of six prompts, each with another shape, colour and wall than the one before."""
    stories = []
    for i in range(count):
        rng = np.random.default_rng(FIRST_STORY + i)
        looks = [Look.draw(rng, pan_odds=0.0)]
        while len(looks) < 6:
            new, old = Look.draw(rng, pan_odds=0.0), looks[-1]
            if new.shape != old.shape and new.colour != old.colour and new.background != old.background:
                looks.append(new)
        stories.append(parse_timeline(" | ".join(look.prompt for look in looks), seconds))
    return stories


def there_and_back(count: int, blocks: int) -> list[Timeline]:
    """Timelines in which the camera pans to the right for half of the blocks and then back to its start."""
    stories, turn, seconds = [], CLOCK.start_seconds(blocks // 2), CLOCK.start_seconds(blocks)
    for i in range(count):
        look = Look.draw(np.random.default_rng(FIRST_STORY + i), pan_odds=0.0).prompt
        stories.append(parse_timeline(f"0:00 {look} panning right\n0:{turn:07.4f} {look} panning left", seconds))
    return stories


def inspect_toy(path: str | Path) -> CheckpointInfo:
    """What a file of a toy model holds; other dimensions are allowed, with heads as wide as the embedded model's."""
    info = inspect_checkpoint(path, num_heads=1)
    heads = info.config.dim // (assets.TOY_CONFIG.dim // assets.TOY_CONFIG.num_heads)
    return replace(info, config=replace(info.config, num_heads=heads, text_len=word_hash.TEXT_LEN))


class Judge:
    """Generates and measures videos on the CPU, with the embedded model or other weights for the toy world.

    Other weights may have other dimensions, but must have the same head_dim and text length.
    """

    def __init__(self, weights: str | None = None, autoencoder: str | None = None):
        path = weights or assets.model_path()
        self.info = inspect_toy(path)
        self.backbone = WanModel.from_state_dict(self.info.config, load_file(path), torch.float32)
        self.autoencoder: Any = self.load_autoencoder(autoencoder)
        self.schedule: Schedule = schedule("self_forcing")

    def load_autoencoder(self, weights: str | None) -> Any:
        return assets.load_autoencoder(weights=weights)

    def plan(self, policy: Method, roles: str, story: Timeline, seed: int, shuffle: int = 0) -> RenderPlan:
        size = assets.LATENT_WIDTH * 8, assets.LATENT_HEIGHT * 8
        return RenderPlan.make(
            self.info.config, policy, self.schedule, story, *size, roles=roles, shuffle=shuffle, seed=seed
        )

    def latents(self, plan: RenderPlan, seed: int) -> Tensor:
        """Generate the latents of a plan, `[frames, 16, 8, 8]`."""
        embeds = plan.embeddings([word_hash.encode(text) for text in plan.timeline.texts])
        model = WanVideoModel(self.backbone, embeds, torch.float32, torch.device("cpu"))
        rollout = VideoRollout(plan, seed, dtype=torch.float32)
        return torch.cat([block.latents for block in rollout.blocks(model)])

    def measure(
        self, policy: Method, roles: str, story: Timeline, seed: int, shuffle: int = 0
    ) -> dict[str, float | None]:
        """Generate a video and return its metrics: `early_` ones of the first 5 s, others of the last quarter."""
        plan = self.plan(policy, roles, story, seed, shuffle)
        video_frames = self.autoencoder.decode(self.latents(plan, seed))
        return content_numbers(video_frames, looks_of_frames(_looks(plan)), plan) | self._size(plan)

    def measure_rendered(self, story: Timeline, seed: int, encoded: bool) -> dict[str, float | None]:
        """Metrics of the ground-truth video of a story; with `encoded`, after the autoencoder's encoder and decoder."""
        plan = self.plan(preset("self_forcing"), "profile", story, seed)
        looks = tuple(_looks(plan))
        video_frames = render(looks, FIRST_STORY + seed).video_frames
        if encoded:
            video_frames = self.autoencoder.decode(self.autoencoder.encode(video_frames))
        return content_numbers(video_frames, looks_of_frames(looks), plan)

    def _size(self, plan: RenderPlan) -> dict[str, float | None]:
        """Frame slots of the full cache, mean over heads."""
        return {"frames_a_head": plan.shape.frame_slots / (plan.config.num_layers * plan.config.num_heads)}

    @torch.no_grad()
    def history_losses(self, policy: Method, roles: str, number: int, shuffle: int = 0) -> dict[str, float | None]:
        """Mean squared error of the predicted flow after a long ground-truth context, as `loss_<noise level>`.

        The context has no errors of the model itself, so this metric separates caches better than videos do.
        """
        look = Look.draw(np.random.default_rng(FIRST_STORY + number))
        clip = render((look,) * HISTORY_BLOCKS, FIRST_STORY + number)
        latents = self.autoencoder.encode(clip.video_frames).split(assets.BLOCK_FRAMES)
        story = parse_timeline(look.prompt, CLOCK.start_seconds(HISTORY_BLOCKS))
        plan = self.plan(policy, roles, story, number, shuffle)
        model = WanVideoModel(self.backbone, [word_hash.encode(look.prompt)], torch.float32)
        model.use_prompt(0)
        cache, noise = plan.make_cache(torch.float32, "cpu"), torch.Generator().manual_seed(number)
        assert plan.blocks_per_pass == 1  # a cache that is written block by block
        errors: dict[str, list[float]] = {f"loss_{level}": [] for level in HISTORY_LEVELS}
        for block, clean in enumerate(latents):
            cache.begin_block()
            if block >= HISTORY_BLOCKS // 4 and block % 3 == 0:
                for level in HISTORY_LEVELS:
                    wrong = torch.randn(clean.shape, generator=noise)
                    flow = model.flow((1 - level) * clean + level * wrong, level, cache)
                    errors[f"loss_{level}"].append(float((flow - (wrong - clean)).square().mean()))
            model.write_clean(clean, cache)
            cache.commit(model.prompt)
        return {name: float(np.mean(values)) for name, values in errors.items()} | self._size(plan)


def _looks(plan: RenderPlan) -> list[Look]:
    """The prompted look of each block."""
    return [Look.parse(plan.timeline.segments[number].text) for number in plan.prompts]


def content_numbers(video_frames: Tensor, looks: Sequence[Look], plan: RenderPlan) -> dict[str, float | None]:
    """Metrics of a plan's video frames `[n, 64, 64, 3]`; `looks` is the prompted look of each frame."""
    shown = range(0, len(video_frames), STRIDE)
    seen, wanted = sightings(video_frames[shown.start :: STRIDE]), [looks[i] for i in shown]
    late, early = round(len(seen) * 0.75), HORIZON_FRAMES // STRIDE + 1
    starts = [video_frame // STRIDE + 1 for video_frame in plan.start_video_frames[1:]]
    switched = [i for start in starts for i in range(start, min(start + 3, len(seen)))]  # the block after a switch
    numbers: dict[str, float | None] = dict(score(seen[late:], wanted[late:]).means())
    numbers |= {f"early_{key}": value for key, value in score(seen[:early], wanted[:early]).means().items()}
    if switched:
        after = score([seen[i] for i in switched], [wanted[i] for i in switched]).means()
        numbers |= {"switched_present": after["present"], "switched_background": after["background"]}
    numbers |= remembered(seen, camera_path([looks[i] for i in shown]) * STRIDE)
    drift = report_frames([(video_frames * 255).round().byte().numpy()], timeline=plan.timeline).whole
    return numbers | {key: drift[key] for key in DRIFT}


def remembered(seen: Sequence[Sighting], camera: Tensor) -> dict[str, float | None]:
    """Fraction of landmarks that are at their places when the camera returns, by the time between the two visits.

    `by_chance` uses the later frame upside down as a baseline: equally many landmarks, at unrelated places.
    """
    pairs_by_key: dict[str, list[tuple[int, int]]] = {"remembered_near": [], "remembered_far": [], "by_chance": []}
    first_visit: dict[int, int] = {}
    for later, place in enumerate(camera.tolist()):
        earlier = first_visit.setdefault(place, later)
        apart = later - earlier
        if apart == 0 or len(set(camera[earlier : later + 1].tolist())) == 1:
            continue
        if apart <= NEAR_FRAMES:
            pairs_by_key["remembered_near"].append(landmarks_found(seen[earlier], seen[later]))
        elif apart >= FAR_FRAMES:
            pairs_by_key["remembered_far"].append(landmarks_found(seen[earlier], seen[later]))
            pairs_by_key["by_chance"].append(landmarks_found(seen[earlier], seen[later], upside_down=True))
    return {key: _share(pairs) for key, pairs in pairs_by_key.items()}


def _share(pairs: Sequence[tuple[int, int]]) -> float | None:
    expected = sum(total for _, total in pairs)
    return sum(back for back, _ in pairs) / expected if expected else None


def landmarks_found(before: Sighting, after: Sighting, upside_down: bool = False) -> tuple[int, int]:
    """Number of landmarks of an earlier frame that are in a later one of the same place, and number that can be.

    A landmark counts if it is at most 4 pixels off after compensation of a camera error of up to 6 pixels. Landmarks at
    the border or hidden by the shape are excluded.
    """
    size = 64.0
    hidden = 1.5 * math.sqrt(after.area / math.pi) + 4
    could = [
        (x, y)
        for x, y in before.landmarks
        if 8 <= x <= size - 8 and (after.place is None or math.dist((x, y), after.place) > hidden)
    ]
    now = [(x, size - y if upside_down else y) for x, y in after.landmarks]
    best = 0
    for shift in (-6, -3, 0, 3, 6):
        best = max(best, sum(any(math.dist((x + shift, y), other) <= 4 for other in now) for x, y in could))
    return best, len(could)
