"""Destinations of a render's blocks: an MP4, a file of latents that a later render can go on from,
memory, or a bar.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save
from torch import Tensor
from tqdm import tqdm

from ..errors import HeadForcingError, first_line
from ..files import Fields, partial_path, replacing
from ..model.latents import WAN21, WAN22, latent_format
from ..plan.plan import RenderPlan
from ..plan.request import RenderJob, about_story, file_tags
from ..plan.settings import Size
from ..rollout.loop import Block
from ..timeline.clock import video_frames_of
from ..video.pictures import PictureSheets
from ..video.sound import Sound
from ..video.stream import StreamingDecoder, VideoStream
from ..video.writer import VideoInfo, VideoSettings
from ..weights.containers import WRITABLE, read_weights
from .render import Listener, Render

log = logging.getLogger(__name__)


class KeptLatents(Listener):
    """Keeps all blocks in the host's memory: those of a long video would take gigabytes of a
    GPU's.
    """

    def __init__(self) -> None:
        self.blocks: list[Tensor] = []

    def add(self, block: Block) -> None:
        self.blocks.append(block.in_main_memory)


@dataclass(eq=False)
class VideoFile(Listener):
    """The video of a render as an MP4 that grows while blocks are made, and plays at any time.

    Attributes:
        path: of the file; None where `claim` of a subclass chooses it.
        decoder: makes the decoder of a plan.
        background: decode in a thread, on that device, while the next blocks are sampled; None
            decodes between blocks.
        losable: an error of decoder or disk ends the video and not the render, because the latents
            are kept elsewhere.

    Attributes:
        info: the finished file; None before.
        failure: why a losable video ended early; None while all is well.
    """

    # errors that end the render even where the video may be lost
    passes: ClassVar[tuple[type[BaseException], ...]] = ()

    path: Path | None
    decoder: Callable[[RenderPlan], StreamingDecoder]
    scale: int = 1
    background: torch.device | None = None
    losable: bool = False
    while_waiting: Callable[[], None] = lambda: None
    info: VideoInfo | None = None
    failure: str | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    def begin(self, render: Render) -> None:
        self._render = render
        plan = render.job.plan
        with ExitStack() as stack:
            path, partial = self.claim(stack, plan)
            settings = VideoSettings(
                path,
                plan.timeline.clock.fps,
                tags=self.tags(render.job),
                scale=self.scale,
                partial=partial,
            )
            self.video = VideoStream(
                settings,
                self.decoder(plan),
                self.length(plan),
                background=self.background,
                while_waiting=self.while_waiting,
                sound=self.sound(render.job),
                pictures=self.pictures(plan),
            )
            stack.enter_context(self.video)
            self._stack = stack.pop_all()

    def claim(self, stack: ExitStack, plan: RenderPlan) -> tuple[Path, Path]:
        """The path of the file, and where it grows until it is finished; what is entered into
        `stack` lasts as long.
        """
        if self.path is None:
            raise ValueError("a video file without a path is claimed by a subclass")
        return self.path, partial_path(self.path)

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def add(self, block: Block) -> None:
        # the story, which may have another length now, begins to differ after this block
        self.video.limit = self.length(self._render.job.plan)
        self._attempt(lambda: self.video.add(self.to_decoder(block.latents)))

    def to_decoder(self, latents: Tensor) -> Tensor:
        """Latents `[frames, 16, h, w]` as the decoder takes them."""
        return latents

    def length(self, plan: RenderPlan) -> int:
        """Number of video frames of the file."""
        return plan.video_frames

    def pictures(self, plan: RenderPlan) -> PictureSheets | None:
        """The sheets for small pictures of the video; None for none."""
        return None

    def sound(self, job: RenderJob) -> Sound | None:
        """The sound of the file; None where the story has none."""
        soundtrack = job.request.soundtrack
        return None if soundtrack is None else soundtrack.from_second(self.begins_at(job.plan))

    def begins_at(self, plan: RenderPlan) -> float:
        """The second of the story at which the file begins; below 0 where start frames come before
        the story.
        """
        return -plan.start_video_frames[0] / plan.timeline.clock.fps

    def tags(self, job: RenderJob) -> dict[str, str]:
        """The tags of the file."""
        return file_tags(job.about)

    def finish(self) -> None:
        self._attempt(self.complete)

    def complete(self) -> None:
        """Write the end of the file, with the tags of the story that the render ended with."""
        self.video.settings = replace(self.video.settings, tags=self.tags(self._render.job))
        info = self.video.finish()
        self._stack.close()
        self.info = info

    def sentence(self, error: Exception) -> str:
        """An error as `failure` says it."""
        return first_line(error)

    def _attempt(self, action: Callable[[], Any]) -> None:
        if self.failure is not None:
            return
        try:
            action()
        except self.passes:
            raise
        except Exception as error:
            if not self.losable:
                raise
            self.failure = self.sentence(error)
            log.warning("Head Forcing: sampling goes on without the video: %s", self.failure)
            with suppress(Exception):  # the first error is the one to report
                self.__exit__(type(error), error, error.__traceback__)


class ProgressBar(Listener):
    """A progress bar of denoising steps in the terminal."""

    render: Render | None = None

    def __init__(self, quiet: bool):
        self.quiet = quiet
        self._bar: Any = None

    def begin(self, render: Render) -> None:
        self.render = render
        self._bar = tqdm(
            total=render.job.plan.steps,
            initial=render.run.stored_steps,
            unit="step",
            desc="sampling",
            disable=self.quiet,
        )

    def step(self, block: int, step: int, latents: Tensor | None) -> None:
        self._bar.update(latents is not None)

    def add(self, block: Block) -> None:
        assert self.render is not None
        self._bar.total = self.render.job.plan.steps  # of the current story

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()


class LatentsFile(KeptLatents):
    """All latents `[frames, 16, h, w]`, float32, normalised, as safetensors; written when the last
    block is there.
    """

    def __init__(self, path: Path):
        super().__init__()
        self.path = path

    def begin(self, render: Render) -> None:
        self._render = render

    def finish(self) -> None:
        plan = self._render.job.plan
        about = {
            "video_frames": plan.video_frames,
            "restart_frames": plan.restart_frames,
            "starts_seconds": about_story(plan)["starts_seconds"],
        }
        latents = torch.cat(self.blocks).float().contiguous()
        with replacing(self.path) as temporary:
            temporary.write_bytes(save({"latents": latents}, {"head_forcing": json.dumps(about)}))


def read_latents(path: Path, plan_size: Size | None = None) -> tuple[Fields, Tensor]:
    """Notes on a video as a run folder has them, and its latents `[frames, channels, h, w]`, of a
    `LatentsFile`; raises HeadForcingError for another file, other shapes and types, NaN and
    infinity, and another `(width, height)` in pixels.
    """
    try:
        tensors, metadata = read_weights(path)
    except HeadForcingError as error:
        raise HeadForcingError(
            f"{path} is not a latents file written by this program: {error}"
        ) from error
    latents = _checked(tensors.get("latents"), path, plan_size)
    most = video_frames_of(len(latents))
    try:
        about = json.loads(metadata.get("head_forcing", "{}"))
        video_frames = int(about.get("video_frames", most))
        restarts = tuple(map(int, about.get("restart_frames", ())))
        # where prompts begin, the first one after start frames; not in files of older versions
        starts = tuple(map(float, about.get("starts_seconds", ())))
        if (
            not 1 <= video_frames <= most
            or not all(0 <= frame < len(latents) for frame in restarts)
            or not all(0 <= start < math.inf for start in starts)
        ):
            raise ValueError("of another video")
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise HeadForcingError(
            f"{path} does not say what its latents are of; write them again"
        ) from error
    found = {
        "video_frames": video_frames,
        "restart_frames": restarts,
        "starts_seconds": starts,
        "fps": latent_format(latents.shape[1]).fps,
    }
    return found, latents


def _checked(latents: object, path: Path, plan_size: Size | None) -> Tensor:
    """A copy of stored latents, as `read_latents` checks them."""
    if not (
        isinstance(latents, Tensor)
        and latents.ndim == 4
        and latents.numel()
        and latents.shape[1] in (WAN21.channels, WAN22.channels)
        and latents.dtype in WRITABLE
        and torch.isfinite(latents).all()
    ):
        raise HeadForcingError(
            f"{path} is not a latents file written by this program: it holds no latents [frames, "
            "16 or 48, h, w] in float32, float16 or bfloat16 without NaN and infinity"
        )
    columns, rows = latent_format(latents.shape[1]).pixels(latents.shape)
    if plan_size not in (None, (columns, rows)):
        width, height = plan_size
        raise HeadForcingError(
            f"{path}: latents are for {columns}x{rows} frames, the render is {width}x{height}"
        )
    return latents.clone()
