"""Evaluation of a model of the world of rooms: does a room come back as it was, does the actor keep
its marking?
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from ...headforcing_core.demo import assets, word_hash
from ...headforcing_core.demo.rooms_autoencoder import load_rooms_autoencoder
from ...headforcing_core.demo.words import Look
from ...headforcing_core.head_profiles.profile import HeadProfile
from ...headforcing_core.methods.method import Method
from ...headforcing_core.model.wan import WanModel
from ...headforcing_core.plan.options import DEFAULTS, RenderOptions
from ...headforcing_core.plan.plan import RenderPlan
from ...headforcing_core.plan.request import RenderJob, RenderRequest
from ...headforcing_core.render.render import make_blocks
from ...headforcing_core.rollout.loop import BlockCache, WanVideoModel
from ...headforcing_core.rollout.rows import Picture
from ...headforcing_core.rollout.schedule import Schedule, schedule
from ...headforcing_core.timeline.timeline import Timeline, parse_timeline
from ..ablations import RULES, GivenFrames, with_rule
from ..statistics import Numbers, mean
from .detector import (
    Sighting,
    camera_words,
    layout_kept,
    layout_overlap,
    mark_of,
    motion_word,
    sightings,
)
from .drawing import FRAME_SIZE
from .scenes import (
    CLOCK,
    Layout,
    Marking,
    looks_of_frames,
    poses,
    render,
)
from .stories import last_visits, returning_story, round_story, visits

VisitPairs = Sequence[tuple[Sequence[int], Sequence[int]]]  # latent frames of two visits each

STRIDE = 4  # one video frame per latent frame is looked at
JUDGED_BLOCKS = 3  # of a room that has come back
NO_ACTOR = FRAME_SIZE / 2  # pixels; the error of a place where no actor is found
GAP = 2  # video frames between two that the camera's movement is read from
LOSS_LEVEL = 0.9375  # noise level at which the denoiser's loss is measured
# latent frames, at least, that the marking is looked for in: it can be hidden in nine of them
MARK_FRAMES = 18
OTHER_VIDEO = 1_000_000  # added to a number, gives that of a video which nothing uses


def _leaving(number: int, shown: int, away: int, before: int = 0) -> tuple[Look, ...]:
    """A room for `shown` blocks, two others for `away` blocks, the room again for `shown`
    blocks.
    """
    return returning_story(
        np.random.default_rng(number), shown, away=away, back=shown, before=before
    )


STORIES: dict[str, Callable[[int], tuple[Look, ...]]] = {
    "away_15": partial(_leaving, shown=4, away=15),
    "away_30": partial(_leaving, shown=4, away=30),
    "away_60": partial(_leaving, shown=4, away=60),
    "second_away_30": partial(_leaving, shown=4, away=30, before=4),
    "twelve_blocks": partial(_leaving, shown=3, away=6),
    "eight_rooms": lambda number: round_story(np.random.default_rng(number)),
}
"""Stories by name, each a function of the video's number."""


def timeline_of(looks: Sequence[Look]) -> Timeline:
    """The timeline of a story: a prompt at each change."""
    starts = [i for i, look in enumerate(looks) if not i or look != looks[i - 1]]
    times = [divmod(CLOCK.start_seconds(start), 60) for start in starts]
    lines = [
        f"{int(m)}:{s:07.4f} {looks[start].prompt}"
        for (m, s), start in zip(times, starts, strict=True)
    ]
    return parse_timeline("\n".join(lines), CLOCK.start_seconds(len(looks)))


class RoomsJudge:
    """Generates and measures videos of the world of rooms, on the CPU.

    The model's files may have dimensions of their own, see `assets.inspect_toy`; its profile has
    attention shares.
    """

    def __init__(self, weights: str | Path, autoencoder: str | Path, profile: HeadProfile):
        self.info = assets.inspect_toy(Path(weights))
        self.backbone = WanModel.from_state_dict(
            self.info.config, load_file(weights), torch.float32
        )
        self.autoencoder = load_rooms_autoencoder(autoencoder)
        self.profile = profile
        self.schedule: Schedule = schedule("self_forcing")

    def plan(
        self,
        method: Method,
        roles: str,
        story: Timeline,
        seed: int,
        shuffle: int = 0,
    ) -> RenderPlan:
        """The plan of a story; roles may also be the name of a rule of `RULES`."""
        profile = self.profile
        if roles in RULES:
            profile = with_rule(profile, roles)
            roles = "profile"
        options = RenderOptions(
            width=assets.SIZE[0],
            height=assets.SIZE[1],
            roles=roles,
            shuffle=shuffle,
            seed=seed,
            given_method=method,
        )
        return RenderPlan.of(self.info.config, options, story, profile=profile)

    def latents(self, plan: RenderPlan, pictures: Mapping[str, Picture] | None = None) -> Tensor:
        """Generate the latents of a plan, `[frames, channels, 8, 8]`; `pictures` by the names that
        prompts hold.
        """
        job = job_of(plan).with_request(pictures=pictures or {})
        return torch.cat(
            [
                block.latents
                for block in make_blocks(job, WanVideoModel(self.backbone, torch.float32))
            ]
        )

    def measure_story(
        self,
        method: Method,
        roles: str,
        looks: Sequence[Look],
        number: int,
        shuffle: int = 0,
        ahead: bool = False,
    ) -> Numbers:
        """Generate the video of a story and measure it, with `ahead` also `one_block_ahead`."""
        if isinstance(method, GivenFrames):
            method = given_last_visits(looks)
        plan = self.plan(method, roles, story=timeline_of(looks), seed=number, shuffle=shuffle)
        numbers = story_numbers(self.autoencoder.decode(self.latents(plan)), looks, number)
        heads = plan.config.num_layers * plan.config.num_heads
        # of the full cache, mean over heads
        numbers["frames_a_head"] = plan.shape.frame_slots / heads
        return numbers | (self.one_block_ahead(plan, looks, number) if ahead else {})

    def measure_truth(
        self, looks: Sequence[Look], number: int, encoded: bool, ahead: bool = False
    ) -> Numbers:
        """The same of the rendered video; with `encoded`, after the autoencoder's encoder and
        decoder.
        """
        video_frames = render(looks, number).video_frames
        if encoded:
            video_frames = self.autoencoder.decode(self.autoencoder.encode(video_frames))
        numbers = story_numbers(video_frames, looks, number)
        if ahead:
            first = CLOCK.frames_per_block
            seen = sightings(video_frames[first * STRIDE :: STRIDE])
            numbers["place_error"] = float(
                np.mean(_place_errors(seen, _places(looks, number)[first:]))
            )
        return numbers

    @torch.no_grad()
    def one_block_ahead(self, plan: RenderPlan, looks: Sequence[Look], number: int) -> Numbers:
        """Errors of each block after the first, predicted from the rendered ones before it: the
        distance in pixels between the actor's place and the true one, and the squared error of the
        predicted flow."""
        clean = self.autoencoder.encode(render(looks, number).video_frames).split(
            CLOCK.frames_per_block
        )
        script = job_of(plan).script
        model = WanVideoModel(self.backbone, torch.float32)
        cache = plan.make_cache(torch.float32, "cpu")
        noise = torch.Generator().manual_seed(number)
        places = _places(looks, number).split(CLOCK.frames_per_block)
        distances = list[float]()
        losses = list[float]()
        for block, truth in enumerate(clean):
            model.use_prompt(script.embedding(block))
            cache.begin_block()
            if block:
                wrong = torch.randn(truth.shape, generator=noise)
                flow = model.flow((1 - LOSS_LEVEL) * truth + LOSS_LEVEL * wrong, LOSS_LEVEL, cache)
                assert flow is not None
                losses.append(float((flow - (wrong - truth)).square().mean()))
                predicted = _denoised(
                    model,
                    cache,
                    sigmas=self.schedule.for_block(block),
                    like=truth,
                    noise=noise,
                )
                shown = self.autoencoder.decode(torch.cat((clean[block - 1], predicted)))
                seen = sightings(shown[CLOCK.frames_per_block * STRIDE :: STRIDE])
                distances += _place_errors(seen, places[block])
            model.write_clean(truth, cache)
            cache.commit(model.prompt)
        return {
            "place_error": float(np.mean(distances)),
            f"loss_{LOSS_LEVEL}": float(np.mean(losses)),
        }


def job_of(plan: RenderPlan) -> RenderJob:
    """The render of a plan with the embedded model's text embeddings."""
    embeds = {text: word_hash.encode(text) for text in plan.timeline.texts}
    return RenderRequest(plan.config, DEFAULTS, plan.timeline, embeds).job(plan)


def _denoised(
    model: WanVideoModel,
    cache: BlockCache,
    sigmas: Sequence[float],
    like: Tensor,
    noise: torch.Generator,
) -> Tensor:
    """One block from noise, as the sampler makes it; nothing is committed."""
    made = torch.zeros_like(like)
    for sigma in sigmas:
        made = model.denoise(
            (1 - sigma) * made + sigma * torch.randn(like.shape, generator=noise),
            sigma,
            cache,
        )
    return made


def given_last_visits(looks: Sequence[Look]) -> GivenFrames:
    """Head Forcing whose memory heads are given frames of the last visit where a room comes back,
    spread evenly.
    """
    most = GivenFrames().memory.episodic_frames
    per_block = CLOCK.frames_per_block
    given: list[tuple[int, ...]] = []
    for visit in last_visits(looks):
        frames = len(visit) * per_block
        chosen = np.linspace(0, frames - 1, min(most, frames)).round().tolist()
        given.append(tuple(visit.start * per_block + int(frame) for frame in chosen))
    return GivenFrames(given=tuple(given))


def story_numbers(video_frames: Tensor, looks: Sequence[Look], number: int) -> Numbers:
    """Judge what a story's video frames `[n, 64, 64, 3]` have kept; `number` is the video's.

    - `layout`: of the first blocks after a room comes back, how well its pictures are those of its
      first visit, mean over the rooms that do; `layout_by_chance`: the same for pictures that
      another video's room has; `layout_just_left`: for those of the room that was left then;
    - `identity`: 1 if the marking in the last quarter, at least the last `MARK_FRAMES` latent
      frames, has the colour of the first block's, else 0; None without one there;
      `identity_by_chance`: the same for the colour that the actor of another video has;
    - what the prompts say, in the last quarter: `background`, `pattern`, `shape`, `single`, the
      overlap with the named `outline`, the word of the motion, `moves`, and that of the `camera`.
    """
    frames = len(looks) * CLOCK.frames_per_block
    per_block = CLOCK.frames_per_block
    first = range(per_block)
    returns = _returns(looks)
    departures = [(_frames(left), back) for left, back in _departures(looks)]
    late = range(round(frames * 0.75), frames)
    marked = range(max(per_block, min(late.start, frames - MARK_FRAMES)), frames)
    wanted = {*first, *late, *marked}
    for before, back in (*returns, *departures):
        wanted.update(before, back)
    numbers = sorted(wanted)
    pictures = sightings(video_frames[[STRIDE * frame for frame in numbers]])
    seen = dict(zip(numbers, pictures, strict=True))
    start = mark_of([seen[frame] for frame in first])
    end = mark_of([seen[frame] for frame in marked])
    another = Marking.draw(looks, number + OTHER_VIDEO).colour
    found: dict[str, Sequence[float | None]] = {
        "layout": _layouts_kept(seen, returns),
        "layout_by_chance": _layouts_by_chance(seen, returns, looks, number),
        "layout_just_left": _layouts_kept(seen, departures),
        "identity": [None if start is None else start == end],
        "identity_by_chance": [None if start is None else another == end],
        **_as_prompted(seen, looks, late),
        "camera": _camera_as_prompted(video_frames, looks, STRIDE * late.start),
    }
    return {name: mean(values, decides=False) for name, values in found.items()}


def _layouts_kept(seen: Mapping[int, Sighting], pairs: VisitPairs) -> list[float | None]:
    """How well the pictures of the later visit are those of the earlier one, by pair."""
    kept = []
    for before, back in pairs:
        kept.append(layout_kept([seen[i] for i in before], [seen[i] for i in back]))
    return kept


def _layouts_by_chance(
    seen: Mapping[int, Sighting], returns: VisitPairs, looks: Sequence[Look], number: int
) -> list[float | None]:
    """The overlap with the pictures that another video's room has, by frame of a return."""
    rooms: dict[int, str] = {}
    for _, back in returns:
        for frame in back:
            rooms[frame] = looks[frame // CLOCK.frames_per_block].room
    return [
        layout_overlap(seen[frame], Layout(number, room, version=1).pictures())
        for frame, room in rooms.items()
    ]


def _as_prompted(
    seen: Mapping[int, Sighting], looks: Sequence[Look], frames: range
) -> dict[str, Sequence[float | None]]:
    """Whether these latent frames are as the prompts say, frame by frame."""
    every = looks_of_frames(looks)
    pairs = [(seen[frame], every[STRIDE * frame]) for frame in frames]
    moves = motion_word([sighting.place for sighting, _ in pairs], STRIDE)
    return {
        "background": [sighting.background == look.background for sighting, look in pairs],
        "pattern": [sighting.pattern == look.pattern for sighting, look in pairs],
        "shape": [sighting.shape == look.shape for sighting, look in pairs],
        "single": [sighting.count == 1 for sighting, _ in pairs],
        "outline": [sighting.overlaps.get(look.shape, 0.0) for sighting, look in pairs],
        "moves": [moves == pairs[0][1].motion],
    }


def _camera_as_prompted(video_frames: Tensor, looks: Sequence[Look], start: int) -> list[bool]:
    """Whether the camera moves as the prompt says, from video frame `start` on; without frames
    beside a change of prompt.
    """
    every = looks_of_frames(looks)
    words = camera_words(video_frames[start:], GAP)
    steady = [i for i in range(start, len(every) - GAP) if every[i] == every[i + GAP]]
    return [words[i - start] == every[i].camera for i in steady]


def _returns(looks: Sequence[Look]) -> list[tuple[list[int], list[int]]]:
    """For every room that comes back: the latent frames of its first visit, and the first ones of
    the later visit.
    """
    first: dict[str, range] = {}
    pairs = []
    for visit in visits(looks):
        if (seen := first.setdefault(looks[visit.start].room, visit)) is not visit:
            pairs.append((_frames(seen), _frames(visit[:JUDGED_BLOCKS])))
    return pairs


def _departures(looks: Sequence[Look]) -> list[tuple[range, list[int]]]:
    """For every room that comes back: the last blocks of the room before it, and its first latent
    frames.
    """
    known: set[str] = set()
    found = []
    for left, visit in pairwise(visits(looks)):
        known.add(looks[left.start].room)
        if looks[visit.start].room in known:
            found.append((left[-JUDGED_BLOCKS:], _frames(visit[:JUDGED_BLOCKS])))
    return found


def _frames(blocks: range) -> list[int]:
    return list(
        range(
            blocks.start * CLOCK.frames_per_block,
            blocks.stop * CLOCK.frames_per_block,
        )
    )


def _places(looks: Sequence[Look], number: int) -> Tensor:
    """The actor's true place in every latent frame, `[frames, 2]`."""
    pose = poses(looks, number)
    return torch.from_numpy(np.stack((pose.x, pose.y), 1))[::STRIDE]


def _place_errors(seen: Sequence[Sighting], places: Tensor) -> list[float]:
    return [
        NO_ACTOR if sighting.place is None else min(NO_ACTOR, math.dist(sighting.place, place))
        for sighting, place in zip(seen, places.tolist(), strict=True)
    ]
