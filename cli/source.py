"""Model, prompts and device of a command that renders: everything is checked before anything is
loaded.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..headforcing_core.demo import assets, word_hash
from ..headforcing_core.devices import stay_on_card
from ..headforcing_core.errors import HeadForcingError, one_line
from ..headforcing_core.files import Fields, check_writable
from ..headforcing_core.hashing import digest
from ..headforcing_core.plan.describe import format_bytes
from ..headforcing_core.plan.family import family_for
from ..headforcing_core.plan.options import RenderOptions
from ..headforcing_core.plan.plan import RenderPlan
from ..headforcing_core.plan.request import RenderJob, RenderRequest, StartLatents
from ..headforcing_core.plan.resources import COMMAND_LINE, NO_DECODER, Needs, needs_of, room_on
from ..headforcing_core.plan.start import Start
from ..headforcing_core.render.result import INEXACT
from ..headforcing_core.render.sinks import read_latents
from ..headforcing_core.rollout.rows import Embeddings, Picture
from ..headforcing_core.rollout.schedule import known_family
from ..headforcing_core.timeline.timeline import Timeline, parse_timeline
from ..headforcing_core.video.memory import DecoderMemory
from ..headforcing_core.video.restarts import FrameCodec, needs_encoder
from ..headforcing_core.weights.checkpoint import CheckpointInfo
from .loaded import LoadedModel, Machine
from .roles import roles_folders
from .texts import FollowedFile, read_text, translated
from .values import (
    DTYPES,
    EmbeddedModel,
    ModelFiles,
    changed,
    chosen_sound,
    chosen_start,
    parse_size,
    read_references,
    reference_files,
    render_options,
    text_encoder_bytes,
    weight_change_of,
)


@dataclass(frozen=True)
class Source:
    """The request that the arguments of a command describe, with what carries it out, before
    weights are loaded.

    Attributes:
        request: without embeddings at first, and with stand-ins for video frames that are not
            encoded yet.
        files: of the model.
        text: the story as it is given, in the written form.
        scale: every pixel of the video becomes a square of this side.
        start, references: video frames to continue from, and pictures by name; see `with_start`.
        follow: the file of the story, if it is read again during the render.
        family: a line on the model family, for the report.
        roles_folders: see there.
    """

    request: RenderRequest
    machine: Machine
    info: CheckpointInfo
    files: ModelFiles
    text: str
    scale: int = 1
    start: Start | None = None
    follow: FollowedFile | None = None
    family: str = ""
    references: Mapping[str, Start] = field(default_factory=dict)
    roles_folders: Sequence[Path] = ()

    @classmethod
    def of(cls, args: Namespace, elsewhere: bool = False) -> Source:
        """The inputs that the arguments of a command name; `elsewhere`: another machine renders."""
        files: ModelFiles = EmbeddedModel(assets.model_path())
        size = assets.SIZE
        dtype = torch.float32
        family = known_family(args.model_family)
        family_line = ""
        if args.weights is not None:
            files = ModelFiles.of(args)
            dtype = DTYPES[args.dtype]
            family, family_line = family_for(args.model_family, files.weights)
            size = parse_size(args.size, family)
        if args.speech is not None:
            from .speech import chosen_speech, heard

            args = heard(args)
        soundtrack = chosen_sound(args)
        if soundtrack is not None and not args.seconds:
            args = changed(args, seconds=soundtrack.story_length())
        options = render_options(args, size, family)
        pictures = reference_files(args)
        follow = None if args.follow is None else FollowedFile(args.follow)
        text, timeline = _story(args, options, follow, tuple(pictures))
        info = _named_by_rounding(files.inspect(), args)
        take_machine = args.machine or Machine.of
        machine = take_machine(args, dtype, info.config.head_dim, elsewhere)
        # after the prompts: a large picture takes seconds
        references = read_references(pictures, options)
        start = chosen_start(args, options)
        conditions = None
        if args.speech is not None:
            conditions = chosen_speech(args, options, timeline, machine.device)
        request = RenderRequest(
            info.config,
            options,
            timeline,
            start=_start_latents(args, options, start),
            pictures={name: Picture(torch.empty(0), name) for name in references},
            dtype=dtype,
            runs=args.runs if machine.leads else None,
            soundtrack=soundtrack,
            conditions=conditions,
            latent_format=None if files.embedded else info.config.latents.name,
            about=_about(args, info, machine, references),
        )
        return cls(
            request,
            machine,
            info,
            files,
            text,
            scale=args.scale if files.embedded else 1,
            start=start,
            follow=follow,
            family=family_line,
            references=references,
            roles_folders=roles_folders(args),
        )

    def with_request(self, **changes: Any) -> Source:
        """The same with other fields of the request."""
        return replace(self, request=replace(self.request, **changes))

    def note_unlike_training(self, timeline: Timeline) -> None:
        """Write to stderr one sentence on the first prompt that is unlike those the embedded model
        was trained on.
        """
        if not self.files.embedded:
            return
        for segment in timeline.segments:
            advice = word_hash.advice(timeline.spoken(segment))
            if advice is not None:
                sys.stderr.write(f"note: {one_line(advice)}.\n")
                return

    def encode(self, texts: Sequence[str] | None = None) -> dict[str, Tensor]:
        """The embeddings of all prompts, or of these texts, by text; call it before `load`, as text
        encoder and weights may not fit together."""
        texts = list(self.request.timeline.texts if texts is None else texts)
        embeds = self.files.encode(texts, self.machine.device)
        width = embeds[0].shape[-1]
        if width != self.info.config.text_dim:
            raise HeadForcingError(
                f"the model reads text embeddings of width {self.info.config.text_dim}, got {width}"
            )
        return dict(zip(texts, embeds, strict=True))

    def check_encoders(self, plan: RenderPlan) -> None:
        """Refuse prompts that nothing encodes, and a plan that encodes video frames if there is no
        VAE.
        """
        self.files.check_text()
        self._check_encoder(plan)
        if not self.files.has_vae and (self.start is not None or self.references):
            options = (
                "--start-image and --start-video need"
                if self.start is not None
                else "--reference needs"
            )
            raise HeadForcingError(
                f"{options} --vae, the {self.info.config.latents.vae}, which encodes images"
            )

    def _check_encoder(self, plan: RenderPlan) -> None:
        plan.check_encoder(self.files.has_vae, f"give --vae, the {self.info.config.latents.vae}")

    def with_start(self) -> Source:
        """A copy with the latents of `start` and `references`; the VAE is not kept in memory."""
        if self.start is None and not self.references:
            return self
        codec = self._codec(encodes=True)
        assert codec is not None
        start = self.request.start
        if self.start is not None:
            start = StartLatents(
                self.start.encoded(codec)[None], self.start.key(codec), self.start.about
            )
        pictures = {name: picture.picture(codec) for name, picture in self.references.items()}
        return self.with_request(start=start, pictures=pictures)

    def job(self, plan: RenderPlan, embeds: Embeddings) -> RenderJob:
        """The video of a plan of this source, from the embeddings of its prompts.

        The fingerprint of the weights, for which they are read, is taken only if something is
        stored or compared by it.
        """
        weights = ""
        if (
            self.request.runs is not None
            or plan.heads.auto is not None
            or not self.machine.is_alone
        ):
            weights = self.info.fingerprint
        return replace(self.request, embeds=embeds, weights=weights).job(plan)

    def check_needs(
        self, plan: RenderPlan, video: Path | None, *, loaded: bool = False, elsewhere: bool = False
    ) -> Needs:
        """Estimate memory and disk use; refuses a render that is not possible or does not fit.

        `loaded`: model and decoder are on the device already; `elsewhere`: another machine renders.
        """
        machine = self.machine
        on_gpu = machine.device.type == "cuda"
        if self.request.runs is not None:
            check_writable(self.request.runs / "probe")
        decoder = self._decoder_memory(plan, decodes=video is not None, loaded=loaded)
        text_encoder = 0
        if self.files.text_encoder is not None:
            text_encoder = text_encoder_bytes(self.files.text_encoder, machine.device)
        weights = self.info.parameters * machine.dtype.itemsize
        emulated = 0
        change = machine.weight_change
        if change is not None:
            weights -= change.saved_bytes(self.info.config, machine.dtype)
            emulated = change.emulated_bytes(self.info.config, machine.device)
        savings = replace(COMMAND_LINE, park="")
        if on_gpu:
            from .weight_changes import command_line_savings

            savings = command_line_savings()
        if change is not None:
            savings = replace(savings, smaller_weights=None)
        room = None if elsewhere else room_on(machine.device)
        if room is not None and loaded:
            room += weights + decoder.weights
        self._check_encoder(plan)
        needs = needs_of(
            plan,
            machine.dtype,
            weights,
            decoder=decoder,
            text_encoder=text_encoder,
            kept=self.request.runs is not None,
            state=self.request.options.state_seconds > 0,
            writes_video=video is not None,
            scale=self.scale * self.files.picture_scale,
            more_for_a_token=emulated,
        )
        return machine.check_needs(needs, self.request, plan, room, savings)

    def _decoder_memory(self, plan: RenderPlan, *, decodes: bool, loaded: bool) -> DecoderMemory:
        """Memory of the VAE where blocks are sampled; refuses one that is too large for
        `--vae-device`.
        """
        files = self.files
        files.check_decoders(plan.config.latents)
        if files.vae is None or not (decodes or plan.vae_use is not None):
            return NO_DECODER
        machine = self.machine
        decoder = files.decoder_memory(plan, machine.device, machine.dtype, decodes=decodes)
        device = machine.vae_device
        if device is None or device == machine.device:
            return decoder
        needed = decoder.peak if loaded else decoder.peak + decoder.weights
        room = room_on(device)
        if device.type == "cuda" and room is not None and needed > room:
            raise HeadForcingError(
                f"--vae-device {device} has {format_bytes(room)} free, decoding needs "
                f"{format_bytes(needed)}: choose a smaller --size, or write --latents and decode "
                "them later"
            )
        return NO_DECODER

    def load(self, decodes: bool = True, encodes: bool = False) -> LoadedModel:
        """Load the model, and the VAE if it `decodes` videos or `encodes` video frames between
        rollouts.
        """
        machine = self.machine
        for device in (machine.device, machine.vae_device):
            if device is not None:
                stay_on_card(device)
        codec = self._codec(encodes) if decodes or encodes else None
        state_dict = self.files.load()
        backbone = machine.load(self.info.config, state_dict)
        return LoadedModel(machine, backbone, codec, self.scale)

    def _codec(self, encodes: bool) -> FrameCodec | None:
        """The VAE, None if none is given."""
        machine = self.machine
        return self.files.codec(machine.vae_device or machine.device, machine.dtype, encodes)


def _story(
    args: Namespace,
    options: RenderOptions,
    follow: FollowedFile | None,
    references: tuple[str, ...],
) -> tuple[str, Timeline]:
    """The story of `--follow` or `--prompts`, which may name these pictures, else that of the
    embedded model: in the written form, and as it was read.
    """
    if follow is not None:
        text = follow.text
        value = f"@{follow.path}"
    elif args.weights is None and not args.prompts:
        text = assets.DEMO_STORY
        return text, parse_timeline(text, assets.DEMO_SECONDS, switch=options.switch)
    else:
        value = args.prompts
        text = read_text(value, references)
    arguments = options.timeline_arguments
    pasted = translated(text, value, arguments["clock"], arguments["seconds"])
    return pasted.text, pasted.timeline(**arguments, references=references)


def _named_by_rounding(info: CheckpointInfo, args: Namespace) -> CheckpointInfo:
    """The weights under another name where they, or attention, are rounded to 8 bits: the blocks
    are others then.
    """
    change = weight_change_of(args)
    marks = [] if change is None else [change.identity]
    if args.attention == "sage":
        marks.append("sage")
    if not marks:
        return info
    return replace(info, identify=lambda: digest(info.fingerprint, *marks)[:16])


def _start_latents(
    args: Namespace, options: RenderOptions, start: Start | None
) -> StartLatents | None:
    """A stand-in for video frames that are not encoded yet, or the latents of `--start-latents`."""
    if start is not None:
        return StartLatents(torch.empty((1, start.frames, 0, 0, 0)), about=start.about)
    if args.start_latents is None:
        return None
    about, latents = read_latents(args.start_latents, options.size)
    if needs_encoder(about):
        raise HeadForcingError(
            f"{args.start_latents} has latents of several rollouts, each a video of its own; go on "
            "from the MP4 with --start-video"
        )
    return StartLatents(latents[None])


def _about(
    args: Namespace,
    info: CheckpointInfo,
    machine: Machine,
    references: Mapping[str, Start],
) -> Fields:
    """The fields of a run's note that no plan has."""
    about: Fields = {"weights": info.path.name}
    if machine.approximations:
        about[INEXACT] = machine.approximations
    if references:
        about["references"] = {name: shown.about for name, shown in references.items()}
    if args.speech is not None:
        about["speech"] = args.speech.name
    return about
