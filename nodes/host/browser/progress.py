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
from ....headforcing_core.render.sinks import VideoFile, skipped_video_frames
from ....headforcing_core.rollout.loop import Block
from ....headforcing_core.runs.folder import RunFolder
from ....headforcing_core.timeline.clock import TEMPORAL_STRIDE, plain_time
from ....headforcing_core.timeline.editor import scenes_of
from ....headforcing_core.timeline.timeline import Timeline
from ....headforcing_core.video.writer import VideoInfo
from ..folders import OutputFile
from ..graph.part import WHOLE, Part
from ..sentences import Sentence, joined
from .player import NodePlayer, draft_file, shown_video

log = logging.getLogger(__name__)

Preview = tuple[str, Any, int]
"""What ComfyUI's `ProgressBar` takes: a format, an image, and the longest side to show."""


LONGEST = 32  # characters of a prompt in the status line


def stop_where_asked(*_: Any, **__: Any) -> None:
    """Raise ComfyUI's error if a person has cancelled the run; a callback with any arguments."""
    model_management.throw_exception_if_processing_interrupted()


class RenderProgress(Listener):
    """Progress bar, animated preview, growing video and a status line on the node.

    Stops within one model call on cancel. The player of the pack shows the preview, then the video
    and the status line. Without it ComfyUI shows them itself, and goes on to show the last preview
    in place of a video that the node outputs: for such a node `previews` must be off.

    Args:
        plans: one for each video of the batch.
        hidden: the node's hidden inputs.
        part: what is rendered of each video.
        portrait: picture that is shown until the first block is finished.

    Attributes:
        reused_steps: denoising steps of blocks that were read.
        made_blocks: blocks that were made, of all videos.
        is_sampled: whether the current block has had a denoising step, so that it is not read.
        earlier: the finished file of an earlier render, if it is this video; set by the caller.
        done: denoising steps, those of blocks that were read included.
        video: index of the video in the batch.
        name: of the video, empty where the videos have no names.
        block: index of the block that is made or read now; None before the first.
        stored: number of blocks of this video that were there when its render began.
        growing: the file, if the video is decoded while it is sampled; set by the caller.
        has_end: whether the length of the story is that of the video.
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
        self.reused_steps = 0
        self.made_blocks = 0
        self.is_sampled = False
        self.earlier: VideoInfo | None = None
        self.has_end = True
        self.bar = comfy.utils.ProgressBar(sum(self._steps(plan) for plan in plans))
        self.done = 0
        self._known_scenes: tuple[Timeline, Timeline, list[Fields]] | None = None
        self.preview = MovingPreview(model, portrait) if previews else None
        self.start_time = time.perf_counter()

    def next_video(self, video: int, plan: RenderPlan, name: str = "") -> None:
        """Begin this video of the batch."""
        self.video = video
        self._first_plan = plan
        self._plan_in_bar = plan  # whose steps the bar's total has
        self.name = name
        self._render: Render | None = None
        self.block: int | None = None
        self.stored = 0
        self.growing: VideoFile | None = None
        self.run_folder: RunFolder | None = None

    @property
    def plan(self) -> RenderPlan:
        """The plan with the current story."""
        return self._first_plan if self._render is None else self._render.job.plan

    @property
    def _end_block(self) -> int:
        """The block before which the part ends."""
        return self.plan.blocks_until(self.part.until_seconds)

    def begin(self, render: Render) -> None:
        """Count the blocks and steps that are read, and note the run folder."""
        self._render = render
        self.run_folder = render.run.folder
        self.stored = len(render.run.stored)
        self.reused_steps += render.run.stored_steps
        self.done += render.run.stored_steps

    def step(self, block: int, step: int, latents: Tensor | None) -> None:
        """Count denoising step `step`, from 1; latents of None: the block is about to begin."""
        stop_where_asked()
        if latents is None:
            self.block = block
            self._correct_total()
            self._show_running()
            return
        self.done += 1
        self.is_sampled = True
        is_last = step >= len(self.plan.rows[block].sigmas)
        if not is_last:  # `add` shows the last one, with the finished block
            self._update_bar(None)

    def add(self, block: Block) -> None:
        """Count a finished block and show it."""
        stop_where_asked()
        if self.is_sampled:
            self._update_bar(block.latents)
            self.made_blocks += 1
            self.is_sampled = False

    def _update_bar(self, latents: Tensor | None) -> None:
        """Move the bar, and show a picture: of a finished block's latents, or the next one of the
        block before.
        """
        preview = None if self.preview is None else self.preview.next(latents)
        if self.player and self.growing is not None and self.growing.watched.failure is None:
            self.bar.update_absolute(self.done)
            self._send("running", None if preview is None else preview[1])
        else:
            self.bar.update_absolute(self.done, preview=preview)

    def without_end(self) -> None:
        """Let ComfyUI show no progress: the end of the video moves away."""
        self.has_end = False
        self.bar.hook = None

    def decoding(self, block: int) -> None:
        """Show that all blocks are made, and those before this one decoded once more. Each counts
        as a step.
        """
        self.block = self._end_block
        self.done += 1
        self.bar.total += 1
        self.bar.update_absolute(self.done)
        stop_where_asked()
        sentence = Sentence(
            "all blocks are made; the VAE has decoded %1 of %2", *self._position(block)
        )
        self._show("running", joined([*self._in_batch(), sentence], " - "))

    def _correct_total(self) -> None:
        """Let the bar have the steps of the current story, of later videos of the batch, too."""
        videos = self.videos - self.video  # this one and those after it
        self.bar.total += (self._steps(self.plan) - self._steps(self._plan_in_bar)) * videos
        self._plan_in_bar = self.plan

    def completed(self) -> None:
        """Show a summary of the render."""
        took = time.perf_counter() - self.start_time
        seconds = self._seconds(self._end_block) * self.videos
        parts = [Sentence("%1 of video in %2", plain_time(seconds), plain_time(took))]
        if self.made_blocks:
            parts.append(self._speed(took))
        state = "done"
        if self.earlier is not None:
            file = OutputFile(self.earlier.path)
            parts.insert(0, Sentence("%1 is this video already", file.place))
        elif self.growing is None:
            pass  # no video was asked for
        elif self.growing.info is not None:
            parts.insert(0, Sentence("wrote %1", OutputFile(self.growing.info.path).place))
        else:
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
        """Video frames that were made per second of rendering; `took` is its seconds so far."""
        video_frames = self.made_blocks * self.plan.schedule.frames_per_block * TEMPORAL_STRIDE
        return Sentence("%1 fps", f"{video_frames / took:.1f}")

    def stopped(self) -> None:
        """Show, after a cancel or an error, where it stopped and how to resume; log where the
        blocks are.
        """
        if self.block is None:
            return
        # the blocks before this one, or more, if it was reading those of an earlier render
        finished = max(self.block, self.plan.layout.start_blocks + self.stored)
        stopped = Sentence("stopped at %1 of %2", *self._position(finished))
        parts = [joined([self.name, stopped], " ")]
        kept = ""
        if self.run_folder is not None:
            kept = f"; finished blocks are kept in {self.run_folder.folder}"
            ways = Sentence("Run goes on from there")
            if not self.plan.rebuilds_cache:
                ways = Sentence(
                    "Run goes on from the last stored state of the cache, or begins again if there "
                    "is none"
                )
            parts.append(ways)
        if self.growing is not None:
            parts.append(self._so_far(self.growing))
        text = joined(parts, "; ")
        log.info("Head Forcing: %s%s", text, kept)
        self._show("stopped", text)

    def _so_far(self, growing: VideoFile) -> Sentence:
        """Words on the file that can be watched; empty where there is none."""
        if (draft := _finished_draft(growing)) is not None:
            return Sentence("a draft of the video is %1", draft.place)
        partial = growing.watched.partial
        if partial.is_file():
            return Sentence("the video so far is %1", OutputFile(partial).place)
        return Sentence("")

    def _seconds(self, block: int) -> float:
        """Seconds of the story before this block; the last block may go on after its end."""
        return min(self.plan.start_seconds(block), self.plan.timeline.seconds)

    def _position(self, block: int) -> tuple[str, str]:
        """The time at which a block begins, and that at which the part ends."""
        return plain_time(self._seconds(block)), plain_time(self._seconds(self._end_block))

    def _show(self, state: str, text: Sentence) -> None:
        """Set the status line and send it."""
        self.text = joined([self.part.describe(self.plan), text], ": ")
        self._send(state)

    def _send(self, state: str, image: Image.Image | None = None) -> None:
        """Send the player the status line, and the video as far as it is written; before that, the
        preview.
        """
        video = None
        files: list[Fields] = []
        if self.growing is not None:
            video = shown_video(self.growing.watched)
            if video["bytes"] and self.player.grows:
                image = None
            if (draft := _finished_draft(self.growing)) is not None:
                files = [draft_file(draft)]
        self.player.show(
            state,
            self.text,
            video,
            preview=image,
            place=self._in_story(state),
            scenes=self._scenes(),
            files=files,
        )

    def _in_story(self, state: str) -> Fields:
        """The place of the file in its story: finished blocks (`done`), the seconds of the file
        before the story begins (`lead`) and video frames a second (`fps`).
        """
        finished = self.block or 0
        if state == "done":
            finished = self._end_block
        clock = self.plan.timeline.clock
        start = self.plan.layout.start_blocks
        # the file of a part begins later than the video
        skipped = skipped_video_frames(self.plan, self.part.first(self.plan)) / clock.fps
        lead = clock.start_seconds(start) - skipped
        done = max(0, finished - start)
        return {"done": done, "lead": lead, "fps": clock.fps}

    def _scenes(self) -> list[Fields]:
        """The scenes of the story, by which the bars of the editor know theirs."""
        laid_out = self.plan.timeline
        written = laid_out if self._render is None else self._render.job.request.timeline
        known = self._known_scenes
        if known is None or known[0] is not laid_out or known[1] is not written:
            known = (laid_out, written, scenes_of(laid_out, written))
            self._known_scenes = known
        return known[2]

    def _show_running(self) -> None:
        """Show where the render is, its speed and the time that is left."""
        assert self.block is not None  # `step` has set it
        parts = []
        # first, since ComfyUI cuts the text after two lines
        if self.growing is not None:
            watched = self.growing.watched
            if watched.failure is not None:
                parts.append(Sentence("no video: %1", watched.failure))
            elif not self.player:
                parts.append(Sentence("watch %1", OutputFile(watched.partial).place))
        parts += self._in_batch()
        now, end = self._position(self.block)
        parts.append(Sentence("%1 of %2", now, end) if self.has_end else Sentence("live, %1", now))
        if len(self.plan.timeline.segments) > 1:
            index = self.plan.segment_index(self.block)
            words = shortened(self.plan.timeline.segments[index].text)
            parts.append(Sentence("prompt %1: %2", index + 1, words))
        if self.done > self.reused_steps and self.has_end:
            took = time.perf_counter() - self.start_time
            seconds_per_step = took / (self.done - self.reused_steps)
            left = (self.bar.total - self.done) * seconds_per_step
            remaining = Sentence("%1 left", plain_time(left))
            parts.append(joined([self._speed(took), remaining], ", "))
        self._show("running", joined(parts, " - "))

    def _in_batch(self) -> list[Sentence]:
        """Words on which of several videos this is."""
        if self.videos == 1:
            return []
        video = Sentence("video %1 of %2", self.video + 1, self.videos)
        return [joined([video, self.name], ": ")]


def _finished_draft(growing: VideoFile) -> OutputFile | None:
    """The file that is watched until the video is there; None while it grows itself."""
    watched = growing.watched
    if watched is growing or watched.info is None:
        return None
    return OutputFile(watched.info.path)


def shortened(text: str) -> str:
    """At most 32 characters of a text, cut after a word where there is a space to cut at."""
    text = " ".join(text.split())
    if len(text) <= LONGEST:
        return text
    words = text[:LONGEST].rpartition(" ")[0]
    return (words or text[: LONGEST - 1]).rstrip(" ,.;:") + "…"


class MovingPreview:
    """Shows the frames of the last finished block one after another while the next one is made, and
    `first`, if that is given, until the first block is finished.

    ComfyUI's own previewers return an image of the first frame they get. Those of VideoHelperSuite
    take all frames, play them in the browser, and return no image.
    """

    def __init__(self, model: Any, first: Image.Image | None = None):
        self._previewer = previewer(model)
        self._first = None if first is None else ("JPEG", first, max(first.size))
        self._block: Tensor | None = None  # [1, 16, frames, h, w]
        self._frame = 0
        self._takes_all_frames = False

    def next(self, finished: Tensor | None) -> Preview | None:
        """The image to show at this step; `finished` is a new block's clean latents `[frames,
        channels, h, w]`.

        They are copied to the CPU first: ComfyUI's previewers copy from a GPU without waiting, and
        read the copy before it is complete.
        """
        if finished is not None:
            self._block = finished.to("cpu").transpose(0, 1)[None]
            self._frame = 0
        if self._block is None:
            return self._first
        frames = self._block if self._takes_all_frames else self._block[:, :, self._frame :]
        image = self._previewer(frames)
        if image is None:
            self._takes_all_frames = True
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
