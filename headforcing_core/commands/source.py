"""Model, prompts and device of a command that renders: everything is checked before anything is loaded."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from tqdm import tqdm

from ..cache.shape import Shape
from ..demo import assets, word_hash
from ..demo.autoencoder import ToyStreamingDecoder
from ..errors import HeadForcingError
from ..files import check_writable
from ..hashing import digest
from ..head_profiles.auto import AutoProfile
from ..head_profiles.profile import HeadProfile
from ..model import fp8
from ..model.attention import AttentionFunction, attention_function, sdpa_priority
from ..model.compiled import compiled_forward
from ..model.cuda_graph import GraphedForward
from ..model.wan import WanModel
from ..render.block_keys import going_on
from ..render.describe import format_bytes
from ..render.family import with_family
from ..render.job import RenderJob, Watcher
from ..render.live_story import Story
from ..render.options import RenderOptions
from ..render.plan import RenderPlan
from ..render.provenance import about_video, file_tags
from ..render.remedies import COMMAND_LINE
from ..render.resources import NO_DECODER, Needs, room_on
from ..render.result import RenderResult
from ..render.sinks import DecodedBeside, LatentsFile, Mp4File, Sink, load_latents, partial_path
from ..render.start import Start
from ..render.video_rollout import VideoRollout
from ..rollout.wan_video_model import WanVideoModel
from ..runs.folder import count_blocks
from ..timeline.timeline import Timeline, parse_timeline
from ..video.memory import DecoderMemory
from ..video.restarts import FrameCodec
from ..weights.checkpoint import CheckpointInfo
from .arguments import (
    DTYPES,
    ModelFiles,
    found_profiles_folder,
    pick_device,
    read_text,
    render_options,
    text_encoder_bytes,
)
from .follow import FollowedFile
from .start import chosen_start

if TYPE_CHECKING:
    from ..parallel.peers import Peers

OUT_OF_MEMORY = (
    "out of memory: choose a smaller --size, fewer --episodic-frames, or write --latents and decode them later"
)


@dataclass(frozen=True)
class Machine:
    """Devices, attention backend and run folder of a command.

    Attributes:
        vae_device: None for decoding in turn.
        peers: the ranks that make one video together; None for one GPU.
        shard_weights: whether they divide the weights, too.
    """

    device: torch.device
    dtype: torch.dtype
    attention: AttentionFunction
    attention_choice: str
    cuda_graph: bool
    compile: bool
    runs: Path | None
    found_profiles: Path | None
    quiet: bool
    vae_device: torch.device | None
    fp8_linears: bool = False
    peers: Peers | None = None
    shard_weights: bool = False

    @classmethod
    def of(cls, args: argparse.Namespace, dtype: torch.dtype, head_dim: int) -> Machine:
        """Take the fields from the arguments of the same names."""
        device, kept = pick_device(args.device), (args.runs, found_profiles_folder(args.found_profiles))
        attention = attention_function(args.attention, device, dtype, head_dim)
        vae_device = None if args.vae_device is None else pick_device(args.vae_device, "--vae-device")
        if vae_device is not None and vae_device.type != "cpu" and vae_device == device:
            vae_device = None  # on one GPU sampling and decoding take turns
        choices = args.attention, args.cuda_graph, args.compile
        machine = cls(device, dtype, attention, *choices, *kept, args.json, vae_device, args.fp8_linears)
        if (peers := vars(args).get("peers")) is None:
            return machine
        if args.shard_weights and args.fp8_linears:
            raise HeadForcingError("--shard-weights divides weights of one dtype: leave out --fp8-linears")
        machine = replace(machine, peers=peers, shard_weights=args.shard_weights)
        # rank 0 alone has a run folder and shows progress
        return machine if peers.leads else replace(machine, runs=None, quiet=True)

    @property
    def inexact(self) -> list[str]:
        """What makes the numbers other than those of the dtype, for reports."""
        if not self.fp8_linears:
            return []
        how = (
            "" if fp8.has_product(self.device) else ", emulated: this device does not multiply them, nothing is faster"
        )
        return [f"{fp8.INEXACT} (--fp8-linears{how})"]

    def identified(self, info: CheckpointInfo) -> CheckpointInfo:
        """The model with an identity of its own where it is computed inexactly."""
        if not self.fp8_linears:
            return info
        return replace(info, identify=lambda: digest(info.fingerprint, fp8.IDENTITY)[:16])

    @property
    def rank(self) -> str:
        """The beginning of messages about this rank alone; empty for one GPU."""
        return "" if self.peers is None else f"rank {self.peers.rank} of {self.peers.world} ({self.device}): "

    def attention_for(self, shape: Shape) -> AttentionFunction:
        """The backend for a render with a cache of this shape: `auto` times them at its sizes.

        Not on several ranks, because each of them could choose another one.
        """
        if self.attention_choice != "auto" or self.peers is not None:
            return self.attention
        return attention_function("auto", self.device, self.dtype, shape.head_dim, shape.layer_sizes)


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
    def demo(cls, args: argparse.Namespace, follow: FollowedFile | None = None) -> Source:
        """The embedded model, with the text of `follow`, `--prompts` or its default story."""
        options, _ = with_family(render_options(args, (assets.LATENT_WIDTH * 8, assets.LATENT_HEIGHT * 8)), None)
        info = ModelFiles(assets.model_path()).inspect()
        machine = Machine.of(args, torch.float32, info.config.head_dim)
        if follow is not None or args.prompts:
            timeline = _parsed(read_text(args.prompts) if follow is None else follow.text, options)
        else:  # the plan cuts or extends it when another length is asked for
            timeline = parse_timeline(assets.DEMO_STORY, assets.DEMO_SECONDS, switch=options.switch)
        note_unknown_words([segment.text for segment in timeline.segments])
        start = chosen_start(args, options)
        return cls(options, timeline, machine, machine.identified(info), scale=args.scale, start=start, follow=follow)

    @classmethod
    def of_files(
        cls,
        args: argparse.Namespace,
        prompts: str,
        start_latents: Path | None = None,
        follow: FollowedFile | None = None,
    ) -> Source:
        """The model of `--weights`; the text of `follow` replaces `prompts`."""
        files = ModelFiles.of(args)
        options, family = with_family(render_options(args), files.weights)
        timeline = _parsed(read_text(prompts) if follow is None else follow.text, options)
        info = files.inspect()
        latents = None if start_latents is None else load_latents(start_latents, (options.width, options.height))
        start = chosen_start(args, options)
        machine = Machine.of(args, DTYPES[args.dtype], info.config.head_dim)
        source = cls(options, timeline, machine, machine.identified(info), files, follow=follow, family=family)
        return replace(source, start_latents=latents, start=start)

    def with_prompts(self, text: str) -> Source:
        """A copy with other prompts."""
        return replace(self, timeline=_parsed(read_text(text), self.options))

    def parse(self, text: str) -> Timeline:
        """Another story for this source."""
        timeline = _parsed(text, self.options)
        if self.files is None:
            note_unknown_words([segment.text for segment in timeline.segments])
        return timeline

    @property
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

    def check_encoder(self, plan: RenderPlan) -> None:
        """Refuse a plan that encodes video frames if there is no VAE. Call it before prompts are encoded."""
        given = self.files is None or self.files.vae is not None
        plan.check_encoder(given, "give --vae, the Wan 2.1 VAE")
        if self.start is not None and not given:
            raise HeadForcingError("--start-image and --start-video need --vae, the Wan 2.1 VAE, which encodes them")

    def with_start(self) -> Source:
        """A copy with the latents of `start`. Call it before prompts are encoded: the VAE is not kept in memory."""
        if self.start is None:
            return self
        codec = self._codec(encodes=True)
        assert codec is not None
        latents = self.start.encoded(codec).float().cpu()
        return replace(self, start_latents=latents, start_key=self.start.key(codec))

    def job(self, plan: RenderPlan, embeds: Sequence[Tensor] = ()) -> RenderJob:
        """The video of a plan of this source, from the embeddings of its prompts."""
        latent_format = None if self.files is None else "Wan21"
        about = about_video(plan, self.options.method, self.options.seed, latent_format)
        return RenderJob(
            plan,
            plan.embeddings(embeds),
            self.info.fingerprint,
            self.options.seed,
            self.machine.dtype,
            start_latents=self.start_latents,
            start_key=self.start_key,
            runs=self.machine.runs,
            state_seconds=self.options.state_seconds,
            found_profiles=self.machine.found_profiles,
            about={
                **about,
                "weights": self.info.path.name,
                **self._inexact,
                **({"start": self.start.about} if self.start else {}),
            },
        )

    @property
    def _inexact(self) -> dict[str, list[str]]:
        return {"inexact": self.machine.inexact} if self.machine.inexact else {}

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
            decoder = decoder_memory(files.vae, size, dtype, encodes, files.decoder)
            if files.park_features and device.type == "cuda":
                decoder = replace(decoder, held=0)
            decoder = self._check_vae_device(decoder)
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
            remedy="give --vae, the Wan 2.1 VAE",
            decoder=decoder,
            text_encoder=text_encoder,
            passes=2 if self.machine.cuda_graph else 1,
            writes_video=video is not None,
            scale=self.scale,
        )
        if peers is None:
            return needs
        from .ranks import check_rank_memory

        return check_rank_memory(needs, plan, peers, self.machine.shard_weights, room)

    def _check_vae_device(self, decoder: DecoderMemory) -> DecoderMemory:
        """Refuse a decoder that is too large for `--vae-device`; what it takes where blocks are sampled."""
        device = self.machine.vae_device
        if device is None or device == self.machine.device:
            return decoder
        room, wanted = room_on(device), decoder.weights + decoder.peak
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
                from ..parallel.sharded import shard

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
        """Render one video to files and, if there is one, a run folder; on interruption the error says what is kept."""
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
        mp4 = None
        if video is not None and self.codec is not None:
            decoder = self.codec.decoder(plan.restart_frames)
            mp4 = Mp4File(video, plan, decoder, self.scale, file_tags(job.about))
            sinks.append(mp4 if machine.vae_device is None else DecodedBeside(mp4, machine.vae_device))
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
        return replace(result, video=None if mp4 is None else mp4.info, latents_file=latents)


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


def _parsed(text: str, options: RenderOptions) -> Timeline:
    return parse_timeline(text, options.seconds or None, switch=options.switch)


def toy_codec(device: torch.device) -> FrameCodec:
    """The embedded model's VAE."""
    network = assets.load_autoencoder(device)
    return FrameCodec(partial(ToyStreamingDecoder, network), network, network.encode)


def note_unknown_words(texts: Sequence[str]) -> None:
    """List on stderr the words of the prompts that the embedded model was not trained with."""
    for unknown in (word_hash.check_prompt(text) for text in texts):
        if unknown:
            sys.stderr.write(f"note: the toy world does not know {', '.join(unknown)}. {word_hash.HELP}\n")
