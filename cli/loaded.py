"""The machine of a command, and a model in its memory, which renders videos to files and shows the
progress.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from tqdm import tqdm

from ..headforcing_core.devices import is_out_of_memory
from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.files import partial_path
from ..headforcing_core.model.attention import AttentionFunction, attention_function
from ..headforcing_core.plan.describe import going_on
from ..headforcing_core.plan.plan import RenderPlan
from ..headforcing_core.plan.request import RenderJob
from ..headforcing_core.plan.resources import Needs
from ..headforcing_core.render.measured_roles import (
    WAITING,
    FoundRoles,
    MeasuredRoles,
    Measuring,
    setup_for,
    with_measured_roles,
)
from ..headforcing_core.render.render import Listener, Place, make_video
from ..headforcing_core.render.result import RenderResult
from ..headforcing_core.render.sinks import FileTarget, LatentsFile, ProgressBar, VideoFile
from ..headforcing_core.rollout.loop import WanVideoModel
from ..headforcing_core.video.restarts import FrameCodec
from ..headforcing_core.video.stream import FrameSink
from .compiled import compiled_forward
from .values import pick_device, weight_change_of

if TYPE_CHECKING:
    from ..headforcing_core.distributed.peers import Peers
    from .weight_changes import EightBits

OUT_OF_MEMORY = (
    "out of memory: choose a smaller --size, fewer --episodic-frames, or write --latents and "
    "decode them later"
)


@dataclass(frozen=True)
class Machine:
    """Devices and attention backend of a command.

    `vae_device` is None for decoding in turn; `peers` are the ranks that make one video together,
    None for one GPU.
    """

    device: torch.device
    dtype: torch.dtype
    attention: AttentionFunction
    attention_choice: str
    compile: bool
    quiet: bool
    vae_device: torch.device | None
    weight_change: EightBits | None
    peers: Peers | None
    shard_weights: bool

    @classmethod
    def of(
        cls, args: Namespace, dtype: torch.dtype, head_dim: int, elsewhere: bool = False
    ) -> Machine:
        """Take the fields from the arguments; `elsewhere`: another process renders, and no device
        is tried here.
        """
        device = torch.device("cpu") if elsewhere else pick_device(args.device)
        choice = "auto" if elsewhere else args.attention
        vae_device = None
        if args.vae_device is not None and not elsewhere:
            vae_device = pick_device(args.vae_device, "--vae-device")
            if vae_device == device and device.type != "cpu":
                vae_device = None  # on one GPU sampling and decoding take turns
        peers: Peers | None = args.peers
        return cls(
            device=device,
            dtype=dtype,
            attention=attention_function(choice, device, dtype, head_dim),
            attention_choice=choice,
            compile=args.compile,
            # rank 0 alone shows progress
            quiet=args.json or (peers is not None and not peers.leads),
            vae_device=vae_device,
            weight_change=weight_change_of(args),
            peers=peers,
            shard_weights=peers is not None and args.shard_weights,
        )

    @property
    def leads(self) -> bool:
        """Whether this process writes files and reports: it is alone, or rank 0."""
        return self.peers is None or self.peers.leads

    @property
    def approximations(self) -> list[str]:
        """Settings that make the numbers other than those of the dtype, for reports."""
        found = []
        if self.attention_choice == "sage":
            found.append("attention that rounds to 8 bits (--attention sage)")
        if self.weight_change is not None:
            found.append(self.weight_change.describe(self.device))
        return found

    def place(self, plan: RenderPlan) -> Place:
        """Choose where a plan's video is made; the attention backend `auto` is timed at the sizes
        of its cache.
        """
        attention = self.attention
        if self.peers is not None:  # each of them could choose another backend
            from ..headforcing_core.distributed.ranks import rank_place

            return rank_place(self.peers, self.device, attention, self.attention_choice)
        if self.attention_choice == "auto":
            shape = plan.shape
            attention = attention_function(
                "auto", self.device, self.dtype, head_dim=shape.head_dim, sizes=shape.layer_sizes
            )
        return Place(self.device, attention, self.attention_choice)


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
        sinks: Sequence[FrameSink] = (),
    ) -> RenderResult:
        """Render one video to files and, if there is one, a run folder; on interruption the error
        says what is kept. Before it the roles of heads are measured if they are not known; this
        takes no more memory than the `needs` of the render. `edits` changes the story, `sinks` get
        the frames of the video.

        Where latents are written, too, a video that cannot be written is the result's `failure`,
        else an error.
        """
        machine = self.machine
        bar = ProgressBar(machine.quiet)
        listeners: list[Listener] = [bar]
        mp4 = self._video_file(video, losable=latents is not None, sinks=sinks)
        if mp4 is not None:
            listeners.append(mp4)
        if latents is not None:
            listeners.append(LatentsFile(latents))
        if edits is not None:
            listeners.append(edits)
        ranks = None
        if machine.peers is not None:
            from ..headforcing_core.distributed.ranks import MeasuredRanks

            ranks = MeasuredRanks()
            listeners.append(ranks)
        try:
            job, measured = self._with_roles(job.with_request(codec=self.codec), needs)
            result = make_video(job, self._video_model(), machine.place(job.plan), listeners)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            said = OUT_OF_MEMORY
            if machine.peers is not None:
                said = (
                    f"rank {machine.peers.rank} of {machine.peers.world} ({machine.device}): {said}"
                )
            raise HeadForcingError("; ".join([said, *self._kept(bar, video)])) from error
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(*self._kept(bar, video)) from stop
        if ranks is not None and ranks.report is not None:
            result = replace(result, reports={"ranks": ranks.report})
        if mp4 is not None:
            result = replace(result, video=mp4.info, failure=mp4.failure)
        return replace(result, latents_file=latents, measured_roles=measured)

    def _with_roles(self, job: RenderJob, needs: Needs) -> tuple[RenderJob, FoundRoles | None]:
        """The job with the roles of the model's heads; several ranks take those of the first."""
        if job.plan.auto is None:
            return job, None
        machine = self.machine
        files = job.roles_files
        if machine.peers is not None:
            # all ranks measure together, so none waits for a file or goes on after stored blocks
            job = job.with_request(found_profiles=None, spare_profiles=None)
        with _MeasuringBar(setup_for(job, needs).steps, machine.quiet) as bar:
            job, measured = with_measured_roles(
                job,
                WanVideoModel(self.backbone, machine.dtype, machine.device),
                Measuring(
                    machine.device,
                    machine.place(job.plan).attention,
                    needs,
                    on_step=bar.step,
                    while_waiting=bar.wait,
                ),
            )
        if machine.peers is not None and measured is not None:
            measured = machine.peers.from_first(measured)
            if machine.leads and isinstance(measured, MeasuredRoles):
                measured = measured.keep(files)
            job = job.with_roles(measured.profile)
        return job, measured

    def _video_model(self) -> WanVideoModel:
        """The transformer as the loop calls it: compiled, or with heads on several ranks, if the
        machine is set up so.
        """
        machine = self.machine
        model = WanVideoModel(self.backbone, machine.dtype, machine.device)
        if machine.compile:
            model.forward = compiled_forward()
        if machine.peers is not None:
            from ..headforcing_core.distributed.cache import parallel_forward

            model.forward = partial(parallel_forward, forward=model.forward)
        return model

    def _video_file(
        self, path: Path | None, losable: bool, sinks: Sequence[FrameSink]
    ) -> VideoFile | None:
        """The video that is written while blocks are made; None without a path or a VAE."""
        if path is None or self.codec is None:
            return None
        codec = self.codec
        preview = codec.preview
        kind: Callable[..., VideoFile] = VideoFile
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
            FileTarget.at(path, lambda plan: codec.decoder(plan.vae_notes), sinks),
            scale=self.scale,
            background=self.machine.vae_device,
            losable=losable,
        )

    def _kept(self, bar: ProgressBar, video: Path | None) -> list[str]:
        """Say what is stored of a render that ended early, and how to resume it; rank 0 alone says
        so.
        """
        if bar.render is None or not self.machine.leads:
            return []
        job = bar.render.job
        kept = ["without --runs FOLDER no block is kept"]
        if job.folder is not None:
            blocks = f"{job.finished_blocks} of {len(job.keys)} blocks are kept in {job.folder}"
            kept = [f"{blocks}, repeat the command to {going_on(job.plan)}"]
        if video is not None and partial_path(video).is_file():
            kept.append(f"the video so far is {partial_path(video)}")
        return ["; ".join(kept)]


class _MeasuringBar(ExitStack):
    """Shows in the terminal that heads are measured, or that another process does so."""

    def __init__(self, steps: int, quiet: bool):
        super().__init__()
        self._steps = steps
        self._quiet = quiet
        self._said = False
        self._bar: Any = None

    def step(self, block: int, step: int, latents: Tensor | None) -> None:
        """Count a step."""
        if self._bar is None:  # not before: another process may be waited for
            self._bar = self.enter_context(
                tqdm(total=self._steps, unit="step", desc="measuring heads", disable=self._quiet)
            )
        self._bar.update(latents is not None)

    def wait(self) -> None:
        """Say, once, that another process is waited for."""
        if not self._said and not self._quiet:
            tqdm.write(WAITING, file=sys.stderr)
        self._said = True
