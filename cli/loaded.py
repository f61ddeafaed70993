"""The machine of a command, and a model in its memory, which renders videos to files and shows the
progress.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from tqdm import tqdm

from ..headforcing_core.devices import is_out_of_memory
from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.files import partial_path
from ..headforcing_core.model.attention import AttentionFunction, attention_function
from ..headforcing_core.model.wan import WanConfig, WanModel
from ..headforcing_core.plan.describe import going_on
from ..headforcing_core.plan.plan import RenderPlan
from ..headforcing_core.plan.request import RenderJob, RenderRequest
from ..headforcing_core.plan.resources import MemorySavings, Needs
from ..headforcing_core.render.render import Listener, Place, make_video
from ..headforcing_core.render.result import RenderResult
from ..headforcing_core.render.sinks import FileTarget, LatentsFile, ProgressBar, VideoFile
from ..headforcing_core.rollout.loop import WanVideoModel
from ..headforcing_core.video.restarts import FrameCodec
from .compiled import compiled_forward
from .values import pick_device, weight_change_of

if TYPE_CHECKING:
    from .weight_changes import EightBits

OUT_OF_MEMORY = (
    "out of memory: choose a smaller --size, fewer --episodic-frames, or write --latents and "
    "decode them later"
)


class Reporter(Protocol):
    """A listener with something for the report of a render, which is there at its end."""

    @property
    def report(self) -> Any:
        """Its part of the report; None for nothing."""


@dataclass(frozen=True)
class Machine:
    """Devices and attention backend of a command. A subclass is a process that renders together
    with others; what they do otherwise they override.

    `vae_device` is None for decoding in turn.
    """

    device: torch.device
    dtype: torch.dtype
    attention: AttentionFunction
    attention_choice: str
    compile: bool
    quiet: bool
    vae_device: torch.device | None
    weight_change: EightBits | None

    @classmethod
    def of(
        cls,
        args: Namespace,
        dtype: torch.dtype,
        head_dim: int,
        elsewhere: bool = False,
        **more: Any,
    ) -> Machine:
        """Take the fields from the arguments; `elsewhere`: another process renders, and no device
        is tried here. `more` are the fields of a subclass.
        """
        device = torch.device("cpu") if elsewhere else pick_device(args.device)
        choice = "auto" if elsewhere else args.attention
        vae_device = None
        if args.vae_device is not None and not elsewhere:
            vae_device = pick_device(args.vae_device, "--vae-device")
            if vae_device == device and device.type != "cpu":
                vae_device = None  # on one GPU sampling and decoding take turns
        return cls(
            device=device,
            dtype=dtype,
            attention=attention_function(choice, device, dtype, head_dim),
            attention_choice=choice,
            compile=args.compile,
            quiet=args.json,
            vae_device=vae_device,
            weight_change=weight_change_of(args),
            **more,
        )

    @property
    def is_alone(self) -> bool:
        """Whether no other process makes the same video."""
        return True

    @property
    def leads(self) -> bool:
        """Whether this process writes files and reports."""
        return True

    @property
    def out_of_memory(self) -> str:
        """The sentence for too little memory."""
        return OUT_OF_MEMORY

    @property
    def approximations(self) -> list[str]:
        """Settings that make the numbers other than those of the dtype, for reports."""
        found = []
        if self.attention_choice == "sage":
            found.append("attention that rounds to 8 bits (--attention sage)")
        if self.weight_change is not None:
            found.append(self.weight_change.describe(self.device))
        return found

    def check_plan(self, plan: RenderPlan) -> None:
        """Refuse a plan that cannot be made here; takes no time."""

    def check_job(self, job: RenderJob) -> None:
        """Refuse a job that cannot be made here."""

    def check_needs(
        self,
        needs: Needs,
        request: RenderRequest,
        plan: RenderPlan,
        room: int | None,
        savings: MemorySavings,
    ) -> Needs:
        """The part of the needs of a render that is this machine's; refuses what does not fit."""
        request.check_needs(needs, plan, room, savings)
        return needs

    def load(self, config: WanConfig, state_dict: dict[str, Tensor]) -> Any:
        """The transformer with these weights on the device."""
        # rounded on the host, so that the device never holds more than it needs
        change = self.weight_change
        host = self.device if change is None else "cpu"
        backbone = WanModel.from_state_dict(config, state_dict, self.dtype, host)
        if change is not None:
            change.apply(backbone, self.device)
            backbone = backbone.to(self.device)
        elif self.device.type == "cuda":
            backbone.join_projections()
        return backbone

    def video_model(self, backbone: Any) -> WanVideoModel:
        """The transformer as the loop calls it."""
        model = WanVideoModel(backbone, self.dtype, self.device)
        if self.compile:
            model.forward = compiled_forward()
        return model

    def place(self, plan: RenderPlan) -> Place:
        """Choose where a plan's video is made; the attention backend `auto` is timed at the sizes
        of its cache.
        """
        attention = self.attention
        if self.attention_choice == "auto":
            shape = plan.shape
            attention = attention_function(
                "auto", self.device, self.dtype, head_dim=shape.head_dim, sizes=shape.layer_sizes
            )
        return Place(self.device, attention, self.attention_choice)

    def reporters(self) -> Mapping[str, Reporter]:
        """Listeners of a render whose reports its result gets, by their key in JSON."""
        return {}

    @contextmanager
    def explained(self, kept: Callable[[], list[str]] = list) -> Iterator[None]:
        """Raise an error of too little memory, or an interrupt, with what is `kept` of the work."""
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise HeadForcingError("; ".join([self.out_of_memory, *kept()])) from error
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(*kept()) from stop


@dataclass(frozen=True)
class LoadedModel:
    """A model and its VAE in memory."""

    machine: Machine
    backbone: Any
    codec: FrameCodec | None
    scale: int

    def render(
        self,
        job: RenderJob,
        needs: Needs,
        video: Path | None,
        latents: Path | None = None,
        edits: Listener | None = None,
        file_class: type[VideoFile] = VideoFile,
        repeat: str = "repeat the command",
    ) -> RenderResult:
        """Render one video to files and, if there is one, a run folder; on interruption the error
        says what is kept, and by `repeat` how to go on. `edits` changes the story.

        Where latents are written, too, a video that cannot be written is the result's `failure`,
        else an error.
        """
        machine = self.machine
        bar = ProgressBar(machine.quiet)
        listeners: list[Any] = [bar]
        mp4 = self._video_file(video, file_class, losable=latents is not None)
        if mp4 is not None:
            listeners.append(mp4)
        if latents is not None:
            listeners.append(LatentsFile(latents))
        if edits is not None:
            listeners.append(edits)
        reporters = machine.reporters()
        listeners += reporters.values()
        job = job.with_request(codec=self.codec)
        with machine.explained(lambda: self._kept(bar, video, repeat)):
            result = make_video(
                job, machine.video_model(self.backbone), machine.place(job.plan), listeners
            )
        reports = {name: each.report for name, each in reporters.items() if each.report is not None}
        if mp4 is not None:
            result = replace(result, video=mp4.info, failure=mp4.failure)
        return replace(result, latents_file=latents, reports=reports)

    def _video_file(
        self, path: Path | None, file_class: type[VideoFile], losable: bool
    ) -> VideoFile | None:
        """The video that is written while blocks are made; None without a path or a VAE."""
        if path is None or self.codec is None:
            return None
        codec = self.codec
        preview = codec.preview
        kind: Callable[..., VideoFile] = file_class
        if preview is not None:
            from ..headforcing_core.render.drafted_video import DraftedVideo

            kind = partial(
                DraftedVideo,
                draft_decoder=lambda plan: preview.decoder(plan.vae_notes),
                second_pass=partial(
                    tqdm, desc="decoding", unit="block", disable=self.machine.quiet
                ),
            )
        return kind(
            FileTarget.at(path, lambda plan: codec.decoder(plan.vae_notes)),
            scale=self.scale,
            background=self.machine.vae_device,
            losable=losable,
        )

    def _kept(self, bar: ProgressBar, video: Path | None, repeat: str) -> list[str]:
        """Say what is stored of a render that ended early, and how to resume it; the process that
        leads alone says so.
        """
        if bar.render is None or not self.machine.leads:
            return []
        job = bar.render.job
        kept = ["without --runs FOLDER no block is kept"]
        if job.folder is not None:
            blocks = f"{job.finished_blocks} of {len(job.keys)} blocks are kept in {job.folder}"
            kept = [f"{blocks}, {repeat} to {going_on(job.plan)}"]
        if video is not None and partial_path(video).is_file():
            kept.append(f"the video so far is {partial_path(video)}")
        return ["; ".join(kept)]
