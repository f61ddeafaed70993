"""Destinations of a render's blocks: an MP4, a file of latents that a later render can go on from,
memory, or a bar.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
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
from ..timeline.clock import TEMPORAL_STRIDE, video_frames_of
from ..video import restarts
from ..video.pictures import PictureSheets
from ..video.sound import Sound
from ..video.stream import FrameSink, StreamingDecoder, VideoStream
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


@dataclass(frozen=True)
class FileTarget:
    """The place of a render's video, and what the file holds.

    Attributes:
        claim: claims the path of the file and the one where it grows until it is finished, for the
            time of the render.
        decoder: makes the decoder of a plan, for what `to_decoder` returns.
        to_decoder: latents `[frames, channels, h, w]` as the decoder takes them.
        tags: those of the file.
        first_block: the block with which the file begins.
        pictures: get small pictures of the video; None for none.
        claim_last: claims another path for the finished file, when all blocks are there; None keeps
            that of `claim`.
        sentence: an error and the path where the file grows, as `VideoFile.failure`.
    """

    claim: Callable[[RenderPlan], AbstractContextManager[tuple[Path, Path]]]
    decoder: Callable[[RenderPlan], StreamingDecoder]
    to_decoder: Callable[[Tensor], Tensor] = lambda latents: latents
    tags: Callable[[RenderJob], dict[str, str]] = lambda job: file_tags(job.about)
    first_block: int = 0
    pictures: PictureSheets | None = None
    claim_last: Callable[[RenderPlan], AbstractContextManager[Path]] | None = None
    sentence: Callable[[Exception, Path], str] = lambda error, _: first_line(error)

    @classmethod
    def at(cls, path: Path, decoder: Callable[[RenderPlan], StreamingDecoder]) -> FileTarget:
        """A file at this path with all of the video, which grows beside it."""
        return cls(lambda plan: nullcontext((path, partial_path(path))), decoder)


def skipped_video_frames(plan: RenderPlan, first_block: int) -> int:
    """Number of video frames by which a file that begins with a block begins later than the
    video.
    """
    return first_block * plan.schedule.frames_per_block * TEMPORAL_STRIDE


@dataclass(eq=False)
class VideoFile(Listener):
    """The video of a render as an MP4 that grows while blocks are made, and plays at any time.

    Args:
        background: decode in a thread, on that device, while the next blocks are sampled; None
            decodes between blocks.
        losable: an error of decoder or disk ends the video and not the render, because the latents
            are kept elsewhere.
        while_waiting: as in `VideoStream`.
        cancels: errors that end the render even where the video may be lost.

    Attributes:
        partial: where the file grows; set when the render begins.
        info: the finished file; None before.
        error: what ended a losable video early; None while all is well.
        failure: the same in a sentence.
    """

    target: FileTarget
    scale: int = 1
    background: torch.device | None = None
    losable: bool = False
    while_waiting: Callable[[], None] = lambda: None
    cancels: tuple[type[BaseException], ...] = ()
    partial: Path = field(init=False)
    info: VideoInfo | None = None
    error: Exception | None = None
    failure: str | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    @property
    def watched(self) -> VideoFile:
        """The file that shows how far the video is."""
        return self

    is_followed: ClassVar[bool] = False  # whether players read each frame when it is made

    @property
    def shown(self) -> Path:
        """The file that plays while the video is made."""
        return self.partial

    @property
    def shown_frames(self) -> int:
        """Number of its frames that can be read."""
        return self.video.video_frames

    def begin(self, render: Render) -> None:
        self._render = render
        target = self.target
        plan = render.job.plan
        with ExitStack() as stack:
            path, self.partial = stack.enter_context(target.claim(plan))
            settings = VideoSettings(
                path,
                plan.timeline.clock.fps,
                tags=target.tags(render.job),
                scale=self.scale,
                partial=self.partial,
            )
            self.video = VideoStream(
                settings,
                target.decoder(plan),
                self._length(plan),
                background=self.background,
                while_waiting=self.while_waiting,
                sound=self._sound(render.job),
                sinks=self._sinks(render.job, path),
            )
            stack.enter_context(self.video)
            self._stack = stack.pop_all()

    def _sinks(self, job: RenderJob, path: Path) -> list[FrameSink]:
        """Receivers of the frames besides the file, which has this path when it is finished."""
        pictures = self.target.pictures
        return [] if pictures is None else [pictures]

    def __exit__(self, *error: Any) -> None:
        with suppress(Exception):  # what ended the render is the error to report
            self._stack.__exit__(*error)

    def add(self, block: Block) -> None:
        # the story, which may have another length now, begins to differ after this block
        self.video.limit = self._length(self._render.job.plan)
        if block.index >= self.target.first_block:
            self._attempt(lambda: self.video.add(self.target.to_decoder(block.latents)))

    def _length(self, plan: RenderPlan) -> int:
        """Number of video frames of the file."""
        return plan.video_frames - skipped_video_frames(plan, self.target.first_block)

    def _sound(self, job: RenderJob) -> Sound | None:
        """The sound of the file from its first video frame on, which may stand before the story's
        first second; None where the story has none.
        """
        soundtrack = job.request.soundtrack
        if soundtrack is None:
            return None
        plan = job.plan
        fps = plan.timeline.clock.fps
        skipped = skipped_video_frames(plan, self.target.first_block) / fps
        return soundtrack.from_second(skipped - plan.prompt_video_frames[0] / fps)

    def finish(self) -> None:
        self._attempt(self._complete)

    def _complete(self) -> None:
        """Write the end of the file, with the tags of the story that the render ended with."""
        job = self._render.job
        target = self.target
        settings = replace(self.video.settings, tags=target.tags(job))
        with ExitStack() as last:
            if target.claim_last is not None:
                settings = replace(settings, path=last.enter_context(target.claim_last(job.plan)))
            self.video.settings = settings
            info = self.video.finish()
            self._stack.close()
            self.info = info

    def _attempt(self, action: Callable[[], Any]) -> None:
        if self.error is not None:
            return
        try:
            action()
        except self.cancels:
            raise
        except Exception as error:
            if not self.losable:
                raise
            self.error = error
            self.failure = self.target.sentence(error, self.partial)
            log.warning("Head Forcing: sampling goes on without the video: %s", self.failure)
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
    """All latents `[frames, channels, h, w]`, float32, normalised, as safetensors; written when the
    last block is there.
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
            **plan.vae_notes,
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
        notes = restarts.checked(about, len(latents))
        # where prompts begin, the first one after start frames; not in files of older versions
        starts = tuple(map(float, about.get("starts_seconds", ())))
        if not 1 <= video_frames <= most or not all(0 <= start < math.inf for start in starts):
            raise ValueError("of another video")
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise HeadForcingError(
            f"{path} does not say what its latents are of; write them again"
        ) from error
    found = {
        "video_frames": video_frames,
        **notes,
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
