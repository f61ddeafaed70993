"""Model, prompts and device of a command that renders: everything is checked before anything is loaded."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..demo import assets, word_hash
from ..demo.rooms_autoencoder import RoomsStreamingDecoder
from ..errors import HeadForcingError, one_line
from ..files import check_writable
from ..head_profiles.auto import AutoProfile
from ..head_profiles.profile import HeadProfile
from ..model import fp8
from ..model.latents import WAN21
from ..model.wan import WanModel
from ..render.describe import format_bytes
from ..render.family import with_family
from ..render.job import RenderJob
from ..render.options import RenderOptions
from ..render.plan import RenderPlan
from ..render.provenance import about_video
from ..render.remedies import COMMAND_LINE
from ..render.resources import NO_DECODER, Needs, room_on
from ..render.sinks import load_latents
from ..render.start import Start
from ..timeline.timeline import Timeline, parse_timeline
from ..video.memory import DecoderMemory
from ..video.restarts import FrameCodec
from ..weights.checkpoint import CheckpointInfo
from .arguments import DTYPES, read_text, render_options
from .follow import FollowedFile
from .loaded import LoadedModel
from .machine import Machine
from .model_files import ModelFiles, text_encoder_bytes
from .start import chosen_start


@dataclass(frozen=True)
class Source:
    """The inputs of a command's render, before weights are loaded.

    Attributes:
        files: of the model; None is the embedded one.
        scale: every pixel of the video becomes a square of this side.
        start_latents: `[frames, 16, h, w]` of a video to go on from.
        start: the same as video frames, before `with_start` has encoded them.
        start_key: as for `RenderJob`.
        follow: the file of the story, where it is read again during the render.
        family: a line on the model family, for the report.
    """

    options: RenderOptions
    timeline: Timeline
    machine: Machine
    info: CheckpointInfo
    files: ModelFiles | None = None
    scale: int = 1
    start_latents: Tensor | None = None
    start: Start | None = None
    start_key: str = ""
    follow: FollowedFile | None = None
    family: str = ""

    @classmethod
    def of(cls, args: argparse.Namespace, follow: FollowedFile | None = None, elsewhere: bool = False) -> Source:
        """The inputs of `demo` or `generate`; `elsewhere` as for `Machine.of`."""
        if "weights" in args:
            return cls.of_files(args, args.prompts, args.start_latents, follow, elsewhere)
        return cls.demo(args, follow, elsewhere)

    @classmethod
    def demo(cls, args: argparse.Namespace, follow: FollowedFile | None = None, elsewhere: bool = False) -> Source:
        """The embedded model, with the text of `follow`, `--prompts` or its default story."""
        options, _ = with_family(render_options(args, assets.SIZE), None)
        info = ModelFiles(assets.model_path()).inspect()
        machine = Machine.of(args, torch.float32, info.config.head_dim, elsewhere)
        if follow is not None or args.prompts:
            timeline = options.parse(read_text(args.prompts) if follow is None else follow.text)
            note_unlike_training([segment.text for segment in timeline.segments])
        else:  # the plan cuts or extends it when another length is asked for
            timeline = parse_timeline(assets.DEMO_STORY, assets.DEMO_SECONDS, switch=options.switch)
        start = chosen_start(args, options)
        return cls(options, timeline, machine, machine.identified(info), scale=args.scale, start=start, follow=follow)

    @classmethod
    def of_files(
        cls,
        args: argparse.Namespace,
        prompts: str,
        start_latents: Path | None = None,
        follow: FollowedFile | None = None,
        elsewhere: bool = False,
    ) -> Source:
        """The model of `--weights`; the text of `follow` replaces `prompts`."""
        files = ModelFiles.of(args)
        options, family = with_family(render_options(args), files.weights)
        timeline = options.parse(read_text(prompts) if follow is None else follow.text)
        info = files.inspect()
        latents = None if start_latents is None else load_latents(start_latents, (options.width, options.height))
        start = chosen_start(args, options)
        machine = Machine.of(args, DTYPES[args.dtype], info.config.head_dim, elsewhere)
        source = cls(options, timeline, machine, machine.identified(info), files, follow=follow, family=family)
        return replace(source, start_latents=latents, start=start)

    def with_prompts(self, text: str) -> Source:
        """A copy with other prompts."""
        return replace(self, timeline=self.options.parse(read_text(text)))

    def parse(self, text: str) -> Timeline:
        """Another story for this source."""
        timeline = self.options.parse(text)
        if self.files is None:
            note_unlike_training([segment.text for segment in timeline.segments])
        return timeline

    @property
    def vae_name(self) -> str:
        """Name of the VAE that belongs to the model."""
        return "Wan 2.1 VAE" if self.info.config.latents is WAN21 else "Wan 2.2 VAE"

    @cached_property
    def texts(self) -> list[str]:
        """The texts to encode."""
        return self.timeline.texts

    def plan(self, profile: HeadProfile | AutoProfile | None = None) -> RenderPlan:
        """The checked plan; `profile`, if given, replaces that of the options."""
        start_frames = 0 if self.start_latents is None else len(self.start_latents)
        if self.start is not None:
            start_frames = self.start.frames
        return self.options.plan(self.info.config, self.timeline, start_frames, profile)

    def encode(self, texts: list[str] | None = None) -> list[Tensor]:
        """The embeddings of all texts. Call it before `load`, so that text encoder and weights are not in memory
        together.
        """
        texts = texts or self.texts
        if self.files is None:
            return [word_hash.encode(text) for text in texts]
        embeds, expected = self.files.encode(texts, self.machine.device), self.info.config.text_dim
        if embeds[0].shape[-1] != expected:
            raise HeadForcingError(f"the model reads text embeddings of width {expected}, got {embeds[0].shape[-1]}")
        return embeds

    def check_encoders(self, plan: RenderPlan) -> None:
        """Refuse prompts that nothing encodes, and a plan that encodes video frames if there is no VAE."""
        if self.files is not None:
            self.files.check_text()
        given = self.files is None or self.files.vae is not None
        plan.check_encoder(given, f"give --vae, the {self.vae_name}")
        if self.start is not None and not given:
            raise HeadForcingError(
                f"--start-image and --start-video need --vae, the {self.vae_name}, which encodes them"
            )

    def with_start(self) -> Source:
        """A copy with the latents of `start`. Call it before prompts are encoded: the VAE is not kept in memory."""
        if self.start is None:
            return self
        codec = self._codec(encodes=True)
        assert codec is not None
        latents = self.start.encoded(codec).float().cpu()
        return replace(self, start_latents=latents, start_key=self.start.key(codec))

    def job(self, plan: RenderPlan, embeds: Sequence[Tensor] = ()) -> RenderJob:
        """The video of a plan of this source, from the embeddings of its prompts; none where needs are estimated."""
        return RenderJob(
            plan,
            dict(zip(self.texts, embeds, strict=False)),
            self.info.fingerprint,
            self.machine.dtype,
            start_latents=self.start_latents,
            start_key=self.start_key,
            runs=self.machine.runs,
            state_seconds=self.options.state_seconds,
            found_profiles=self.machine.found_profiles,
            about=self._about(plan) if embeds else {},
        )

    def _about(self, plan: RenderPlan) -> dict[str, Any]:
        latent_format = None if self.files is None else self.info.config.latents.name
        inexact = self.machine.inexact
        return {
            **about_video(plan, self.options.method_name, self.options.seed, latent_format),
            "weights": self.info.path.name,
            **({"inexact": inexact} if inexact else {}),
            **({"start": self.start.about} if self.start else {}),
        }

    def check_needs(
        self, plan: RenderPlan, video: Path | None, *, loaded: bool = False, elsewhere: bool = False
    ) -> Needs:
        """Estimate memory and disk use; refuses a render that is not possible or does not fit.

        Args:
            loaded: model and decoder are on the device already.
            elsewhere: another machine renders, so that the memory of this one says nothing.
        """
        device, dtype, files = self.machine.device, self.machine.dtype, self.files
        if self.machine.cuda_graph and device.type != "cuda":
            raise HeadForcingError(f"--cuda-graph needs a CUDA device, got {device}")
        for folder in (self.machine.runs, video and video.parent):
            check_writable(folder and folder / "probe")
        decoder, text_encoder = NO_DECODER, 0
        if files is not None and files.vae is not None and (video is not None or plan.restart_frames):
            from ..video.codec import decoder_memory

            size, encodes = (plan.height, plan.width), bool(plan.restart_frames)
            decoder = decoder_memory(files.vae, size, dtype, encodes, files.decoder, plan.config.latents)
            if files.park_features and device.type == "cuda":
                decoder = replace(decoder, held=0)
            decoder = self._check_vae_device(decoder, loaded)
        if files is not None and files.text_encoder is not None:
            text_encoder = text_encoder_bytes(files.text_encoder, device)
        weights = self.info.parameters * dtype.itemsize
        if self.machine.fp8_linears:
            weights -= fp8.saved_bytes(self.info.config, dtype)
        room, peers = None if elsewhere else room_on(device), self.machine.peers
        if loaded and room is not None:
            room += weights + decoder.weights
        needs = self.job(plan).check_needs(
            weights,
            room if peers is None else None,
            COMMAND_LINE if device.type == "cuda" else replace(COMMAND_LINE, park=""),
            encodes=files is None or files.vae is not None,
            remedy=f"give --vae, the {self.vae_name}",
            decoder=decoder,
            text_encoder=text_encoder,
            cuda_graph=self.machine.cuda_graph,
            writes_video=video is not None,
            scale=self.scale,
        )
        if peers is None:
            return needs
        from ..distributed.ranks import check_rank_memory

        return check_rank_memory(needs, plan, peers, self.machine.shard_weights, room)

    def _check_vae_device(self, decoder: DecoderMemory, loaded: bool) -> DecoderMemory:
        """Refuse a decoder that is too large for `--vae-device`; what it takes where blocks are sampled."""
        device = self.machine.vae_device
        if device is None or device == self.machine.device:
            return decoder
        room, wanted = room_on(device), decoder.peak + (0 if loaded else decoder.weights)
        if device.type == "cuda" and room is not None and wanted > room:
            raise HeadForcingError(
                f"--vae-device {device} has {format_bytes(room)} free, decoding needs {format_bytes(wanted)}: choose a "
                "smaller --size, or write --latents and decode them later"
            )
        return NO_DECODER

    def load(self, decodes: bool = True, encodes: bool = False) -> LoadedModel:
        """Load the model, and the VAE if it `decodes` videos or `encodes` video frames between rollouts."""
        device, dtype = self.machine.device, self.machine.dtype
        codec = self._codec(encodes) if decodes or encodes else None
        state_dict = (self.files or ModelFiles(assets.model_path())).load()
        backbone: Any
        if self.machine.fp8_linears:  # rounded on the host, so that the device never holds more than it needs
            backbone = WanModel.from_state_dict(self.info.config, state_dict, dtype)
            fp8.use_fp8_linears(backbone, fp8.has_product(device))
            backbone = backbone.to(device)
        else:
            sharded = self.machine.shard_weights
            backbone = WanModel.from_state_dict(self.info.config, state_dict, dtype, "cpu" if sharded else device)
            if sharded:
                from ..distributed.sharded import shard

                backbone = shard(backbone, device)
        return LoadedModel(self.machine, backbone, codec, self.scale)

    def _codec(self, encodes: bool) -> FrameCodec | None:
        """The VAE, None if none is given."""
        device, files = self.machine.vae_device or self.machine.device, self.files
        if files is None:
            return toy_codec(device)
        if files.vae is None:
            return None
        from ..video.codec import load_codec

        return load_codec(files.vae, device, self.machine.dtype, encodes, files.decoder, files.park_features)


def toy_codec(device: torch.device) -> FrameCodec:
    """The embedded model's VAE."""
    network = assets.load_autoencoder(device)
    return FrameCodec(partial(RoomsStreamingDecoder, network), network, network.encode)


def note_unlike_training(texts: Sequence[str]) -> None:
    """Write to stderr one sentence on the first prompt that is unlike those the embedded model was trained on."""
    found = next(filter(None, map(word_hash.advice, texts)), None)
    if found is not None:
        sys.stderr.write(f"note: {one_line(found)}.\n")
