"""Progress of a render on its node: a bar, previews, and the status line of its player."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import comfy.utils
import latent_preview
from comfy import model_management
from PIL import Image
from torch import Tensor

from ....headforcing_core.files import Fields
from ....headforcing_core.plan.plan import RenderPlan
from ....headforcing_core.render.render import Listener, Render
from ....headforcing_core.rollout.loop import Block
from ....headforcing_core.runs.folder import RunFolder
from ....headforcing_core.timeline.clock import TEMPORAL_STRIDE, plain_time
from ....headforcing_core.timeline.editor import words_key
from ....headforcing_core.video.writer import VideoInfo
from ..graph.folders import OutputFile
from ..graph.part import WHOLE, Part, skipped_video_frames
from .player import NodePlayer
from .sentences import Sentence, joined

log = logging.getLogger(__name__)

Preview = tuple[str, Any, int]
"""What ComfyUI's `ProgressBar` takes: a format, an image, and the longest side to show."""


def stop_where_asked(*_: Any, **__: Any) -> None:
    """Raise ComfyUI's error if a person has cancelled the run; takes what any callback gets."""
    model_management.throw_exception_if_processing_interrupted()


class RenderProgress(Listener):
    """Progress bar, animated preview, growing video and a status line on the node.

    Stops within one model call on cancel. The player in the editor shows the preview, then the
    video and the status line, which it keeps. Elsewhere they are ComfyUI's own; an editor then
    keeps showing the last preview in place of a video that the node outputs at its end, and
    `previews` must be off for that video to be shown.

    Args:
        portrait: picture that is shown until the first block is finished.
    """

    def __init__(
        self,
        model: Any,
        plans: Sequence[RenderPlan],
        hidden: Any,
        previews: bool = True,
        part: Part = WHOLE,
        portrait: Image.Image | None = None,
    ):
        self.next_video(0, plans[0])
        self.videos = len(plans)
        self.part = part
        self.player = NodePlayer(hidden)
        self.text = Sentence("")
        self.reused = 0  # steps
        self.made = 0  # blocks
        self.stepped = False  # whether the block is being made
        # the file of an earlier render, where it is the one of this video
        self.earlier: VideoInfo | None = None
        self.bar = comfy.utils.ProgressBar(sum(self._steps(plan) for plan in plans))
        self.done = 0
        self.preview = MovingPreview(model, portrait) if previews else None
        self.begun = time.perf_counter()

    def next_video(self, video: int, plan: RenderPlan, name: str = "") -> None:
        """Begin this video of the batch."""
        self.video = video  # its number
        self._planned = plan  # before it is made
        self._counted = plan
        self.name = name  # where each has one
        self._render: Render | None = None
        self.block: int | None = None  # that is being made, or read again; None before the first
        self.stored = 0  # blocks of this video that were there when it began
        # the `GrowingVideo`, where the video is decoded while it is sampled
        self.growing: Any = None
        self.run: RunFolder | None = None

    @property
    def plan(self) -> RenderPlan:
        """The plan with the current story."""
        return self._planned if self._render is None else self._render.job.plan

    @property
    def _until(self) -> int:
        """The number of blocks that are made, start blocks included."""
        return self.plan.blocks_until(self.part.until_seconds)

    def begin(self, render: Render) -> None:
        """Set the number of reused steps and the run folder."""
        self._render = render
        self.run = render.run.folder
        self.stored = len(render.run.stored)
        self.reused += render.run.stored_steps
        self.done += render.run.stored_steps

    def step(self, block: int, step: int, latents: Tensor | None) -> None:
        stop_where_asked()
        if latents is None:
            self.block = block
            self._count()
            self._say()
            return
        self.done += 1
        self.stepped = True
        if step < len(self.plan.rows[block].sigmas):
            self._advance(None)

    def add(self, block: Block) -> None:
        """Count a finished block and show it."""
        stop_where_asked()
        if self.stepped:
            self._advance(block.latents)
            self.made += 1
            self.stepped = False

    def _advance(self, latents: Tensor | None) -> None:
        image = None if self.preview is None else self.preview.next(latents)
        if self.player and self.growing is not None and self.growing.failure is None:
            self.bar.update_absolute(self.done)
            self._tell("running", image and image[1])
        else:
            self.bar.update_absolute(self.done, preview=image)

    def _count(self) -> None:
        """Count the steps of the current story, in later videos too."""
        videos = self.videos - self.video  # this one and those after it
        self.bar.total += (self._steps(self.plan) - self._steps(self._counted)) * videos
        self._counted = self.plan

    def completed(self) -> None:
        """Show a summary of the render."""
        took = time.perf_counter() - self.begun
        seconds = self._seconds(self._until) * self.videos
        parts = [Sentence("%1 of video in %2", plain_time(seconds), plain_time(took))]
        if self.made:
            parts.append(self._speed(took))
        state = "done"
        if self.earlier is not None:
            place = OutputFile(self.earlier.path).place
            parts.insert(0, Sentence("%1 is this video already", place))
        elif self.growing is not None and self.growing.info is not None:
            parts.insert(0, Sentence("wrote %1", OutputFile(self.growing.info.path).place))
        elif self.growing is not None:
            state = "failed"
            no_video = Sentence("failed: no video, %1", self.growing.failure)
            kept = Sentence(
                "the latents are complete: fix this and run Decode Latents to Video to get the "
                "video"
            )
            parts.insert(0, joined([no_video, kept], "; "))
        self._show(state, joined(parts, " - "))

    def _steps(self, plan: RenderPlan) -> int:
        """Number of denoising steps of a video."""
        return sum(
            len(row.sigmas) for row in plan.rows[: plan.blocks_until(self.part.until_seconds)]
        )

    def _speed(self, took: float) -> Sentence:
        """Video frames a second, of those that were made in so many seconds."""
        video_frames = self.made * self.plan.schedule.frames_per_block * TEMPORAL_STRIDE
        return Sentence("%1 fps", f"{video_frames / took:.1f}")

    def stopped(self) -> None:
        """Show, after a cancel or an error, where it stopped and how to resume; log where the
        blocks are.
        """
        if self.block is None:
            return
        # start blocks and those of an earlier render are finished, too
        finished = max(self.block, self.plan.start_blocks + self.stored)
        place = Sentence("stopped at %1 of %2", *self._times(finished))
        parts = [joined([self.name, place], " ")]
        if self.run is not None and self.plan.rebuilds_cache:
            parts.append(Sentence("Run goes on from there"))
        elif self.run is not None:
            parts.append(
                Sentence(
                    "Run goes on from the last stored state of the cache, or begins again if there "
                    "is none"
                )
            )
        if self.growing is not None and self.growing.growing.path.is_file():
            parts.append(Sentence("the video so far is %1", self.growing.growing.place))
        text = joined(parts, "; ")
        kept = "" if self.run is None else f"; finished blocks are kept in {self.run.folder}"
        log.info("Head Forcing: %s%s", text, kept)
        self._show("stopped", text)

    def _seconds(self, block: int) -> float:
        """Seconds of the story before this block."""
        return min(self.plan.start_seconds(block), self.plan.timeline.seconds)

    def _times(self, block: int) -> tuple[str, str]:
        """The time at which a block begins, and the length of what is made."""
        return plain_time(self._seconds(block)), plain_time(self._seconds(self._until))

    def _show(self, state: str, text: Sentence) -> None:
        self.text = joined([self.part.describe(self.plan), text], ": ")
        self._tell(state)

    def _tell(self, state: str, image: Image.Image | None = None) -> None:
        """Show the status line, and the video as far as it is written; before that, the preview."""
        video = None
        if self.growing is not None:
            video = self.growing.shown
            if video["bytes"] and self.player.grows:
                image = None
        self.player.show(state, self.text, video, preview=image, place=self._place(state))

    def _place(self, state: str) -> Fields:
        """Finished blocks of the story (`done`), the second of the video at which it begins
        (`lead`), video frames a second (`fps`), and its `scenes`: first and last block and words,
        as `timeline.editor` answers them."""
        finished = self.block or 0
        if state == "done":
            finished = self._until
        clock = self.plan.timeline.clock
        start = self.plan.start_blocks
        skipped = skipped_video_frames(self.plan, self.part.first(self.plan)) / clock.fps
        lead = clock.start_seconds(start) - skipped
        scenes = [
            {
                "start_block": segment.start_block,
                "end_block": segment.end_block,
                "words": words_key(segment.text),
            }
            for segment in self.plan.timeline.segments
        ]
        done = max(0, finished - start)
        return {"done": done, "lead": lead, "fps": clock.fps, "scenes": scenes}

    def _say(self) -> None:
        assert self.block is not None
        parts = []
        # first, since ComfyUI cuts the text after two lines
        if self.growing is not None and self.growing.failure is not None:
            parts.append(Sentence("no video: %1", self.growing.failure))
        elif self.growing is not None and not self.player:
            parts.append(Sentence("watch %1", self.growing.growing.place))
        if self.videos > 1:
            video = Sentence("video %1 of %2", self.video + 1, self.videos)
            parts.append(joined([video, self.name], ": "))
        parts.append(Sentence("%1 of %2", *self._times(self.block)))
        if len(self.plan.timeline.segments) > 1:
            prompt = self.plan.segment_index(self.block)
            words = shortened(self.plan.timeline.segments[prompt].text)
            parts.append(Sentence("prompt %1: %2", prompt + 1, words))
        if self.done > self.reused:
            took = time.perf_counter() - self.begun
            left = (self.bar.total - self.done) * took / (self.done - self.reused)
            remaining = Sentence("%1 left", plain_time(left))
            parts.append(joined([self._speed(took), remaining], ", "))
        self._show("running", joined(parts, " - "))


def shortened(text: str) -> str:
    """The first 32 characters of a text, cut after a word where there is a space to cut at."""
    text = " ".join(text.split())
    if len(text) <= 32:
        return text
    words = text[:32].rpartition(" ")[0]
    return (words or text[:31]).rstrip(" ,.;:") + "…"


class MovingPreview:
    """Shows the frames of the last finished block one after another while the next one is made;
    before the first block is finished a picture, if there is one.

    ComfyUI's own previewers return an image of the first frame they get. Those of VideoHelperSuite
    take all frames, play them in the browser, and return no image.
    """

    def __init__(self, model: Any, first: Image.Image | None = None):
        self._previewer = previewer(model)
        self._first = None if first is None else ("JPEG", first, max(first.size))
        self._block: Tensor | None = None  # [1, 16, frames, h, w]
        self._frame = 0
        self._plays_itself = False

    def next(self, finished: Tensor | None) -> Preview | None:
        """The image to show at this step; `finished` is a new block's clean latents `[frames, 16,
        h, w]`.

        They are shown from the host's memory: ComfyUI's previewers read a copy from a GPU before it
        is complete.
        """
        if finished is not None:
            self._block = finished.to("cpu").transpose(0, 1)[None]
            self._frame = 0
        if self._block is None:
            return self._first
        image = self._previewer(
            self._block if self._plays_itself else self._block[:, :, self._frame :]
        )
        self._plays_itself |= image is None
        self._frame = min(self._frame + 1, self._block.shape[2] - 1)
        return image


def linear_colours(latent_format: Any) -> Any:
    """ComfyUI's previewer of linear colours for a latent format."""
    return latent_preview.Latent2RGBPreviewer(
        latent_format.latent_rgb_factors, latent_format.latent_rgb_factors_bias
    )


def previewer(model: Any) -> Callable[[Tensor], Preview | None]:
    """A function from clean latents `[1, 16, frames, h, w]` to what `ProgressBar` takes as a
    preview.

    ComfyUI's chosen preview method where one is set, else the latent format's linear colours: a
    long render should never be blind, and they cost next to nothing.
    """
    latent_format = model.model.latent_format
    chosen = latent_preview.get_previewer(model.load_device, latent_format)
    if chosen is None:
        chosen = linear_colours(latent_format)
    return lambda latents: chosen.decode_latent_to_preview_image("JPEG", latents)
