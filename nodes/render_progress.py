"""What a person sees on the sampler while it runs."""

from __future__ import annotations

import logging
import time
from typing import Any

import comfy.model_management
import comfy.utils
import torch
from server import PromptServer

from ..headforcing_core.auto_profile import warm_up_frames
from ..headforcing_core.plan import RenderPlan
from ..headforcing_core.video_rollout import VideoRollout
from . import comfy_bridge

log = logging.getLogger(__name__)


class RenderProgress:
    """Progress bar, live preview and a status line on the node; stops within one model call on cancel."""

    def __init__(self, model: Any, plan: RenderPlan, videos: int, node_id: str):
        self.plan, self.videos, self.node_id = plan, videos, node_id
        self.video = self.reused = 0
        self.block: int | None = None  # that is being made; None before the first
        self.bar = comfy.utils.ProgressBar(plan.steps * videos)
        self.done = 0
        self.previewer = comfy_bridge.previewer(model)
        self.begun = time.perf_counter()

    def begin(self, rollout: VideoRollout) -> None:
        """Take note of what need not be made."""
        first = self.plan.blocks - self.plan.new_blocks
        blocks = range(first, first + rollout.reused)
        steps = sum(len(self.plan.schedule.for_block(block)) for block in blocks)
        self.reused += steps
        self.done += steps

    def __call__(self, block: int, step: int, latents: torch.Tensor | None) -> None:
        comfy.model_management.throw_exception_if_processing_interrupted()
        if latents is None:
            self._say(block)
            return
        self.done += 1
        last = step == len(self.plan.schedule.for_block(block))
        image = self.previewer(latents.transpose(0, 1)[None]) if last else None
        self.bar.update_absolute(self.done, preview=image)

    def next_video(self, video: int) -> None:
        """Go on to this video of the batch."""
        self.video, self.block = video, None

    def stopped(self) -> None:
        """Say, after a cancel or an error, what is kept."""
        if self.block is None:
            return
        frames_per_block = self.plan.schedule.frames_per_block
        text = f"stopped in block {self.block + 1} of {self.plan.blocks}; the others are kept, queue again to go on"
        if self.plan.auto is not None and self.block * frames_per_block < warm_up_frames(frames_per_block):
            text = f"stopped in block {self.block + 1}, before the roles were found: the next run starts again"
        log.info("Head Forcing: %s", text)
        PromptServer.instance.send_progress_text(text, self.node_id)

    def _say(self, block: int) -> None:
        self.block = block
        prompt = self.plan.segment_index(block)
        text = f"block {block + 1} of {self.plan.blocks}"
        if self.videos > 1:
            text = f"video {self.video + 1} of {self.videos} - {text}"
        if len(self.plan.timeline.segments) > 1:
            text += f" - prompt {prompt + 1}: {self.plan.timeline.segments[prompt].text[:60]}"
        if self.done > self.reused:
            left = (self.bar.total - self.done) * (time.perf_counter() - self.begun) / (self.done - self.reused)
            text += f" - about {left:.0f} s left"
        PromptServer.instance.send_progress_text(text, self.node_id)
