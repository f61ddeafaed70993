"""A model in memory, which renders videos to files and shows the progress in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from ..errors import HeadForcingError
from ..model.attention import sdpa_priority
from ..model.compiled import compiled_forward
from ..model.cuda_graph import GraphedForward
from ..render.block_keys import going_on
from ..render.job import RenderJob, Watcher
from ..render.live_story import Story
from ..render.plan import RenderPlan
from ..render.provenance import file_tags
from ..render.result import RenderResult
from ..render.sinks import DecodedBeside, LatentsFile, LosableVideo, Mp4File, Sink, partial_path
from ..render.video_rollout import VideoRollout
from ..rollout.wan_video_model import WanVideoModel
from ..runs.folder import count_blocks
from ..video.restarts import FrameCodec
from .machine import Machine

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
        model = WanVideoModel(self.backbone, job.embeds, machine.dtype, machine.device)
        if machine.compile:
            model.forward = compiled_forward()
        if machine.cuda_graph:
            model.forward = GraphedForward(forward=model.forward)
        if machine.peers is not None:
            from ..parallel.cache import parallel_forward

            model.forward = partial(parallel_forward, forward=model.forward)
        sinks: list[Sink] = []
        mp4, losable = None, None
        if video is not None and self.codec is not None:
            decoder = self.codec.decoder(plan.restart_frames)
            mp4 = Mp4File(video, plan, decoder, self.scale, file_tags(job.about))
            sink = mp4 if machine.vae_device is None else DecodedBeside(mp4, machine.vae_device)
            losable = None if latents is None else LosableVideo(sink)
            sinks.append(losable or sink)
        if latents is not None:
            sinks.append(LatentsFile(latents, plan))
        bar = ProgressBar(plan, machine.quiet)
        try:
            with sdpa_priority(machine.device):
                attention = machine.attention_for(plan.shape)
                result = job.run(
                    model, machine.device, attention, sinks, bar, machine.attention_choice, story, machine.peers
                )
        except torch.OutOfMemoryError as error:
            raise HeadForcingError("; ".join([machine.rank + OUT_OF_MEMORY, *bar.what_is_kept(video)])) from error
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(*bar.what_is_kept(video)) from stop
        finally:
            bar.close()
        if machine.peers is not None and bar.rollout is not None:
            from ..parallel.report import RanksReport

            cache, device = bar.rollout.cache, str(machine.device)
            result = replace(result, ranks=RanksReport.collect(cache, self.backbone, device, result.seconds))
        failure = None if losable is None else losable.failure
        info = None if mp4 is None or failure is not None else mp4.info
        return replace(result, video=info, failure=failure, latents_file=latents)


class ProgressBar(Watcher):
    """A progress bar of denoising steps in the terminal."""

    def __init__(self, plan: RenderPlan, quiet: bool):
        self.plan, self.quiet = plan, quiet
        self._bar: Any = None
        self.rollout: VideoRollout | None = None

    def begin(self, rollout: VideoRollout, sinks: Sequence[Sink]) -> None:
        self.rollout = rollout
        self._bar = tqdm(
            total=self.plan.steps, initial=rollout.reused_steps, unit="step", desc="sampling", disable=self.quiet
        )

    def __call__(self, block: int, step: int, latents: Tensor | None) -> None:
        self._bar.update(latents is not None)

    def retold(self, plan: RenderPlan, about: Mapping[str, Any]) -> None:
        self.plan, self._bar.total = plan, plan.steps

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def what_is_kept(self, video: Path | None) -> list[str]:
        """What is stored of a render that ended early, and how to resume it; empty if it had not begun.

        Of several ranks only the first knows.
        """
        if self.rollout is None or (self.rollout.peers is not None and not self.rollout.peers.leads):
            return []
        run, keys = self.rollout.run, self.rollout.keys
        kept = "without --runs FOLDER no block is kept"
        if run is not None:
            kept = f"{count_blocks(run.folder, keys)} of {len(keys)} blocks are kept in {run.folder}, "
            kept += f"repeat the command to {going_on(self.plan)}"
        if video is not None and partial_path(video).is_file():
            kept += f"; the video so far is {partial_path(video)}"
        return [kept]
