"""A model in memory, which renders videos to files and shows the progress in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor
from tqdm import tqdm

from ..devices import is_out_of_memory
from ..errors import HeadForcingError
from ..model.compiled import compiled_forward
from ..model.cuda_graph import GraphedForward
from ..render.block_keys import going_on
from ..render.job import RenderJob
from ..render.plan import RenderPlan
from ..render.provenance import file_tags
from ..render.render import Listener, Render
from ..render.result import RenderResult
from ..render.sinks import LatentsFile, VideoFile, partial_path
from ..render.video import make_video
from ..rollout.wan_video_model import WanVideoModel
from ..runs.folder import count_blocks
from ..video.restarts import FrameCodec
from .machine import Machine

if TYPE_CHECKING:
    from ..render.live_story import Story

OUT_OF_MEMORY = (
    "out of memory: choose a smaller --size, fewer --episodic-frames, or write --latents and decode them later"
)


@dataclass(frozen=True)
class LoadedModel:
    """A model and its VAE in memory."""

    machine: Machine
    backbone: Any
    codec: FrameCodec | None
    scale: int

    def render(
        self, job: RenderJob, video: Path | None, latents: Path | None = None, story: Story | None = None
    ) -> RenderResult:
        """Render one video to files and, if there is one, a run folder; on interruption the error says what is kept.

        Where latents are written, too, a video that cannot be written is the result's `failure`, else an error.
        """
        machine, plan, job = self.machine, job.plan, replace(job, codec=self.codec)
        model = WanVideoModel(self.backbone, machine.dtype, machine.device)
        if machine.compile:
            model.forward = compiled_forward()
        if machine.cuda_graph:
            model.forward = GraphedForward(forward=model.forward)
        if machine.peers is not None:
            from ..distributed.cache import parallel_forward

            model.forward = partial(parallel_forward, forward=model.forward)
        bar = ProgressBar(plan, machine.quiet, machine.peers is None or machine.peers.leads)
        listeners: list[Listener] = [bar]
        mp4 = None
        if video is not None and self.codec is not None:
            mp4 = VideoFile(
                video,
                plan,
                partial(self.codec.decoder, plan.restart_frames),
                file_tags(job.about),
                scale=self.scale,
                background=machine.vae_device,
                losable=latents is not None,
            )
            listeners.append(mp4)
        if latents is not None:
            listeners.append(LatentsFile(latents, plan))
        if story is not None:
            from ..render.live_story import LiveEdits

            listeners.append(LiveEdits(story))
        try:
            result = make_video(job, model, machine.place(plan), listeners)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise HeadForcingError("; ".join([machine.rank + OUT_OF_MEMORY, *bar.describe_stored(video)])) from error
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(*bar.describe_stored(video)) from stop
        finally:
            bar.close()
        if machine.peers is not None and bar.render is not None:
            from ..distributed.ranks_report import RanksReport

            cache: Any = bar.render.run.cache  # a `ParallelCache`
            device = str(machine.device)
            ranks = RanksReport.collect(cache, self.backbone, device, result.seconds)
            result = replace(result, reports={"ranks": ranks})
        if mp4 is not None:
            result = replace(result, video=mp4.info, failure=mp4.failure)
        return replace(result, latents_file=latents)


class ProgressBar(Listener):
    """A progress bar of denoising steps in the terminal; of several ranks only the first `reports`."""

    def __init__(self, plan: RenderPlan, quiet: bool, reports: bool = True):
        self.plan, self.quiet, self.reports = plan, quiet, reports
        self._bar: Any = None
        self.render: Render | None = None

    def begin(self, render: Render) -> None:
        self.render = render
        done = render.run.stored_steps
        self._bar = tqdm(total=self.plan.steps, initial=done, unit="step", desc="sampling", disable=self.quiet)

    def step(self, block: int, step: int, latents: Tensor | None) -> None:
        self._bar.update(latents is not None)

    def change(self, plan: RenderPlan, about: Mapping[str, Any]) -> None:
        self.plan, self._bar.total = plan, plan.steps

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def describe_stored(self, video: Path | None) -> list[str]:
        """Say what is stored of a render that ended early, and how to resume it; empty if it had not begun."""
        if self.render is None or not self.reports:
            return []
        run, keys = self.render.run.folder, self.render.run.keys
        kept = "without --runs FOLDER no block is kept"
        if run is not None:
            kept = f"{count_blocks(run.folder, keys)} of {len(keys)} blocks are kept in {run.folder}, "
            kept += f"repeat the command to {going_on(self.plan)}"
        if video is not None and partial_path(video).is_file():
            kept += f"; the video so far is {partial_path(video)}"
        return [kept]
