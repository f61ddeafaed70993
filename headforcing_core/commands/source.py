"""Model, prompts and device of a command that renders: everything is checked before anything is loaded."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..demo import assets, word_hash
from ..demo.rooms_autoencoder import RoomsStreamingDecoder
from ..errors import HeadForcingError, one_line
from ..files import cache_folder, check_writable
from ..hashing import digest
from ..model import fp8
from ..model.latents import WAN21
from ..model.wan import WanModel
from ..render.describe import format_bytes
from ..render.family import family_for
from ..render.plan import RenderPlan
from ..render.request import RenderJob, RenderRequest, StartLatents
from ..render.resources import COMMAND_LINE, NO_DECODER, Needs, room_on
from ..render.sinks import load_latents
from ..render.start import Start
from ..rollout.rows import Embeddings, Picture
from ..rollout.schedule import known_family
from ..timeline.timeline import Timeline, parse_timeline
from ..video.memory import DecoderMemory
from ..video.restarts import FrameCodec
from ..weights.checkpoint import CheckpointInfo
from .loaded import LoadedModel, Machine
from .values import (
    DTYPES,
    FollowedFile,
    ModelFiles,
    chosen_start,
    read_references,
    read_text,
    reference_files,
    render_options,
    text_encoder_bytes,
)


@dataclass(frozen=True)
class Source:
    """The request that the arguments of a command describe, with what carries it out, before weights are loaded.

    Attributes:
        request: without embeddings at first, and with stand-ins for video frames that are not encoded yet.
        files: of the model; None is the embedded one.
        scale: every pixel of the video becomes a square of this side.
        start, references: video frames to continue from, and pictures by name; see `with_start`.
        follow: the file of the story, if it is read again during the render.
        family: a line on the model family, for the report.
    """

    request: RenderRequest
    machine: Machine
    info: CheckpointInfo
    files: ModelFiles | None = None
    scale: int = 1
    start: Start | None = None
    follow: FollowedFile | None = None
    family: str = ""
    references: Mapping[str, Start] = field(default_factory=dict)

    @classmethod
    def of(cls, args: argparse.Namespace, elsewhere: bool = False) -> Source:
        """The inputs that the arguments of a command name: the model of `--weights`, else the embedded one.

        `elsewhere`: another machine renders.
        """
        given, family, family_line, files = vars(args), known_family(args.model_family), "", None
        if given.get("weights"):
            files = ModelFiles.of(args)
            family, family_line = family_for(args.model_family, files.weights)
        options = render_options(args, None if files else assets.SIZE, family)
        pictures = reference_files(args)
        follow = FollowedFile(args.follow) if given.get("follow") else None
        if files or follow or args.prompts:
            text = follow.text if follow else read_text(args.prompts, tuple(pictures))
            timeline = options.parse(text, references=tuple(pictures))
            if files is None:
                note_unlike_training(timeline)
        else:  # the plan cuts or extends it when another length is asked for
            timeline = parse_timeline(assets.DEMO_STORY, assets.DEMO_SECONDS, switch=options.switch)
        info = (files or ModelFiles(assets.model_path())).inspect()
        if args.fp8_linears:
            identify = info.identify
            info = replace(info, identify=lambda: digest(identify(), fp8.IDENTITY)[:16])
        machine = Machine.of(args, DTYPES[args.dtype] if files else torch.float32, info.config.head_dim, elsewhere)
        references = read_references(pictures, options)  # after the prompts: a large picture takes seconds
        start = chosen_start(args, options)
        begins_with = None
        if start is not None:
            stand_in = torch.empty(1, start.frames, 0, 0, 0)
            begins_with = StartLatents(stand_in, about=start.about)
        elif given.get("start_latents") is not None:
            latents = load_latents(args.start_latents, (options.width, options.height))
            begins_with = StartLatents(latents[None])
        cache = cache_folder()
        follows = machine.peers is not None and not machine.peers.leads  # rank 0 alone has a run folder
        request = RenderRequest(
            info.config,
            options,
            timeline,
            start=begins_with,
            pictures={name: Picture(torch.empty(0), name) for name in references},
            dtype=machine.dtype,
            runs=None if follows else args.runs,
            found_profiles=args.found_profiles or (cache and cache / "profiles"),
            latent_format=None if files is None else info.config.latents.name,
            notes=_notes(info, machine, references),
        )
        return cls(
            request,
            machine,
            info,
            files=files,
            scale=1 if files else args.scale,
            start=start,
            follow=follow,
            family=family_line,
            references=references,
        )

    def with_request(self, **changes: Any) -> Source:
        """The same with other fields of the request."""
        return replace(self, request=replace(self.request, **changes))

    def parse(self, text: str) -> Timeline:
        """Another story for this source."""
        timeline = self.request.options.parse(text, references=self.request.timeline.references)
        if self.files is None:
            note_unlike_training(timeline)
        return timeline

    @property
    def vae_name(self) -> str:
        """Name of the VAE that belongs to the model."""
        return "Wan 2.1 VAE" if self.info.config.latents is WAN21 else "Wan 2.2 VAE"

    def encode(self, texts: Sequence[str] | None = None) -> dict[str, Tensor]:
        """The embeddings of all prompts, or of these texts, by text; call it before `load`, as text encoder and weights
        may not fit together."""
        texts = self.request.timeline.texts if texts is None else texts
        if self.files is None:
            return {text: word_hash.encode(text) for text in texts}
        embeds, expected = self.files.encode(list(texts), self.machine.device), self.info.config.text_dim
        if embeds[0].shape[-1] != expected:
            raise HeadForcingError(f"the model reads text embeddings of width {expected}, got {embeds[0].shape[-1]}")
        return dict(zip(texts, embeds, strict=True))

    def check_encoders(self, plan: RenderPlan) -> None:
        """Refuse prompts that nothing encodes, and a plan that encodes video frames if there is no VAE."""
        if self.files is not None:
            self.files.check_text()
        given = self.files is None or self.files.vae is not None
        plan.check_encoder(given, f"give --vae, the {self.vae_name}")
        if (self.start is not None or self.references) and not given:
            options = "--start-image and --start-video need" if self.start is not None else "--reference needs"
            raise HeadForcingError(f"{options} --vae, the {self.vae_name}, which encodes images")

    def with_start(self) -> Source:
        """A copy with the latents of `start` and `references`; the VAE is not kept in memory."""
        if self.start is None and not self.references:
            return self
        codec = self._codec(encodes=True)
        assert codec is not None
        request = replace(
            self.request, pictures={name: shown.picture(codec) for name, shown in self.references.items()}
        )
        if self.start is not None:
            latents = StartLatents(self.start.encoded(codec)[None], self.start.key(codec), self.start.about)
            request = replace(request, start=latents)
        return replace(self, request=request)

    def job(self, plan: RenderPlan, embeds: Embeddings) -> RenderJob:
        """The video of a plan of this source, from the embeddings of its prompts.

        The fingerprint of the weights, for which they are read, is taken only if something is stored or compared by it.
        """
        named = self.request.runs is not None or plan.auto is not None or self.machine.peers is not None
        weights = self.info.fingerprint if named else ""
        return replace(self.request, embeds=embeds, weights=weights).job(plan)

    def check_needs(
        self, plan: RenderPlan, video: Path | None, *, loaded: bool = False, elsewhere: bool = False
    ) -> Needs:
        """Estimate memory and disk use; refuses a render that is not possible or does not fit.

        `loaded`: model and decoder are on the device already; `elsewhere`: another machine renders.
        """
        machine, device, files = self.machine, self.machine.device, self.files
        if machine.cuda_graph and device.type != "cuda":
            raise HeadForcingError(f"--cuda-graph needs a CUDA device, got {device}")
        for folder in (self.request.runs, video and video.parent):
            check_writable(folder and folder / "probe")
        decoder, text_encoder = NO_DECODER, 0
        if files is not None and files.vae is not None and (video is not None or plan.restart_frames):
            from ..video.codec import decoder_memory

            size, encodes = (plan.height, plan.width), bool(plan.restart_frames)
            decoder = decoder_memory(files.vae, size, machine.dtype, encodes, files.decoder, plan.config.latents)
            if files.park_features and device.type == "cuda":
                decoder = replace(decoder, held=0)
            decoder = self._check_vae_device(decoder, loaded)
        if files is not None and files.text_encoder is not None:
            text_encoder = text_encoder_bytes(files.text_encoder, device)
        weights = self.info.parameters * machine.dtype.itemsize
        if machine.fp8_linears:
            weights -= fp8.saved_bytes(self.info.config, machine.dtype)
        room = None if elsewhere else room_on(device)
        if machine.peers is not None and room is not None and device.type == "cpu":
            room //= machine.peers.world  # all ranks are on this machine
        if loaded and room is not None:
            room += weights + decoder.weights
        needs = self.request.check_needs(
            plan,
            weights,
            room if machine.peers is None else None,
            COMMAND_LINE if device.type == "cuda" else replace(COMMAND_LINE, park=""),
            encodes=files is None or files.vae is not None,
            remedy=f"give --vae, the {self.vae_name}",
            decoder=decoder,
            text_encoder=text_encoder,
            cuda_graph=machine.cuda_graph,
            writes_video=video is not None,
            scale=self.scale,
        )
        if machine.peers is None:
            return needs
        from ..distributed.ranks import check_rank_memory

        return check_rank_memory(needs, plan, machine.peers, machine.shard_weights, room)

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
        rounded, sharded = self.machine.fp8_linears, self.machine.shard_weights
        # rounded or divided on the host, so that the device never holds more than it needs
        host = "cpu" if rounded or sharded else device
        backbone: Any = WanModel.from_state_dict(self.info.config, state_dict, dtype, host)
        if rounded:
            fp8.use_fp8_linears(backbone, fp8.has_product(device))
            backbone = backbone.to(device)
        elif sharded:
            from ..distributed.sharded import shard

            backbone = shard(backbone, device)
        elif device.type == "cuda":
            backbone.join_projections()
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


def _notes(info: CheckpointInfo, machine: Machine, references: Mapping[str, Start]) -> dict[str, Any]:
    """The fields of a run's note that no plan has."""
    notes: dict[str, Any] = {"weights": info.path.name}
    if machine.inexact:
        notes["inexact"] = machine.inexact
    if references:
        notes["references"] = {name: shown.about for name, shown in references.items()}
    return notes


def toy_codec(device: torch.device) -> FrameCodec:
    """The embedded model's VAE."""
    network = assets.load_autoencoder(device)
    return FrameCodec(partial(RoomsStreamingDecoder, network), network, network.encode)


def note_unlike_training(timeline: Timeline) -> None:
    """Write to stderr one sentence on the first prompt that is unlike those the embedded model was trained on."""
    found = next(filter(None, map(word_hash.advice, map(timeline.spoken, timeline.segments))), None)
    if found is not None:
        sys.stderr.write(f"note: {one_line(found)}.\n")
