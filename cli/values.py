"""Values of common arguments: head profiles, options of a render, files of a model, devices."""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from tqdm import tqdm

from ..headforcing_core.demo import assets, word_hash
from ..headforcing_core.demo.picture_decoder import SCALE, PictureStreamingDecoder
from ..headforcing_core.demo.rooms_autoencoder import RoomsStreamingDecoder
from ..headforcing_core.devices import empty_cache
from ..headforcing_core.errors import HeadForcingError, first_sentence
from ..headforcing_core.files import Fields, path_of
from ..headforcing_core.hashing import digest, file_hash
from ..headforcing_core.head_profiles.auto import MEASURE_SECONDS, AutoProfile, ProfileChoice
from ..headforcing_core.head_profiles.profile import HeadProfile, bundled_profiles
from ..headforcing_core.head_profiles.rules import with_rule
from ..headforcing_core.model.latents import LatentFormat
from ..headforcing_core.names import DEFAULT_START_SECONDS
from ..headforcing_core.plan.options import DEFAULTS, RenderOptions, method_options
from ..headforcing_core.plan.plan import RenderPlan
from ..headforcing_core.plan.resources import room_on
from ..headforcing_core.plan.settings import MEMORY_INPUTS, Size
from ..headforcing_core.plan.start import Start, image_frames
from ..headforcing_core.plan.video_roles import profile_from
from ..headforcing_core.rollout.schedule import SCHEDULES
from ..headforcing_core.timeline.references import check_names
from ..headforcing_core.timeline.switch import Switch
from ..headforcing_core.video.advice import tiny_names
from ..headforcing_core.video.memory import DecoderMemory
from ..headforcing_core.video.restarts import FrameCodec
from ..headforcing_core.video.section import read_section
from ..headforcing_core.video.soundtrack import Soundtrack
from ..headforcing_core.weights.checkpoint import (
    CheckpointInfo,
    inspect_checkpoint,
    load_state_dict,
)
from .parser import named_file
from .texts import read_text

if TYPE_CHECKING:
    from .weight_changes import EightBits

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def parse_size(text: str | None, family: str = DEFAULTS.model_family) -> Size:
    """Width and height of `832x480`; None is the default of a model family."""
    if text is None:
        return SCHEDULES[family].size or (DEFAULTS.width, DEFAULTS.height)
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    if match is None:
        raise HeadForcingError(f"--size must look like 832x480, got {text!r}")
    return int(match[1]), int(match[2])


def find_profile(name: str) -> HeadProfile:
    """A bundled profile by name, a file, or the roles that a video was made with."""
    return profile_from(bundled_profiles().get(name, path_of(name)))


def render_options(
    args: Namespace, size: Size | None = None, family: str | None = None
) -> RenderOptions:
    """The options from the arguments of `RENDER_OPTIONS`; `size` and `family` replace those of the
    arguments.
    """
    named = _fields_of(RenderOptions, args)
    width, height = size or parse_size(args.size)
    named["width"] = width
    named["height"] = height
    named["model_family"] = family or args.model_family
    asked = {"rule": args.rule, "anchor_fraction": args.alpha, "local_fraction": args.tau_local}
    given = {name: value for name, value in asked.items() if value is not None}
    named["profile"] = _chosen_profile(args.profile, given, args.measure_seconds)
    named["switch"] = Switch(args.switch, args.blend_blocks, args.re_anchor)
    memory = {name: getattr(args, name) for name in MEMORY_INPUTS}
    name = named["method_name"] = getattr(args, "method", DEFAULTS.method_name)
    named["method_options"] = method_options(name, memory, args.set)
    return RenderOptions(**named)


def _fields_of(cls: Any, args: Namespace) -> Fields:
    """The arguments that are fields of a dataclass, as far as the command has them."""
    names = [part.name for part in fields(cls)]
    return {name: getattr(args, name) for name in names if name in args}


def _chosen_profile(
    name: str | None, given: Fields, measure_seconds: float | None
) -> ProfileChoice:
    """The head profile of `--profile`, its roles by the `given` arguments of `with_rule`; None for
    the bundled one that fits the model.
    """
    if measure_seconds is not None and name != "auto":
        raise HeadForcingError(
            "--measure-seconds is the longest that measuring may take: give it with --profile auto"
        )
    if name is None:
        if given:
            raise HeadForcingError(
                "--rule, --alpha and --tau-local make roles of a profile's shares; name it with "
                "--profile, or --profile auto"
            )
        return None
    if name == "auto":
        seconds = MEASURE_SECONDS if measure_seconds is None else measure_seconds
        return AutoProfile(**given, measure_seconds=seconds)
    profile = find_profile(name)
    return with_rule(profile, **given) if given else profile


def reference_files(args: Namespace) -> dict[str, Path]:
    """The files of `--reference` by name."""
    named = [named_file(word) for word in args.reference]
    for word, (name, file) in zip(args.reference, named, strict=True):
        if not name or file == Path():
            raise HeadForcingError(
                f"--reference is NAME=FILE, such as hero=hero.png, got {word[:80]!r}"
            )
    if named:
        check_names([name for name, _ in named])
    return dict(named)


def read_references(files: Mapping[str, Path], options: RenderOptions) -> dict[str, Start]:
    """The pictures by name, each shown for a block."""
    frames = options.schedule.frames_per_block
    return {name: Start.image_file(file, options.size, frames) for name, file in files.items()}


def chosen_start(args: Namespace, options: RenderOptions) -> Start | None:
    """The video frames of `--start-image` or `--start-video`, None if neither is given."""
    size = options.size
    schedule = options.schedule
    if args.start_video is None and (args.start_part is not None or args.start_seconds is not None):
        raise HeadForcingError(
            "--start-part and --start-seconds choose a section of --start-video FILE; give one"
        )
    if args.start_image is not None:
        instead = "give a short video with --start-video"
        frames = image_frames(options, instead)
        return Start.image_file(args.start_image, size, frames, portrait=schedule.is_driven)
    if args.start_video is None:
        return None
    seconds = DEFAULT_START_SECONDS if args.start_seconds is None else args.start_seconds
    section = read_section(
        args.start_video,
        size,
        seconds,
        args.start_part or "last",
        frames_per_block=schedule.frames_per_block,
        fps=schedule.latents.fps,
    )
    return Start(*section)


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model given by `--weights` and the arguments that go with it."""

    embedded: ClassVar[bool] = False
    picture_scale: ClassVar[int] = 1  # a side of decoded video frames, in sides of the render's

    weights: Path
    num_heads: int | None = None
    lora: Path | None = None
    text_encoder: Path | None = None
    embeddings: Path | None = None
    vae: Path | None = None
    decoder: str = "auto"
    park_features: bool = False
    live_decoder: Path | None = None

    @classmethod
    def of(cls, args: Namespace) -> ModelFiles:
        """Take the fields from the arguments of the same names, as far as the command has them."""
        return cls(**_fields_of(cls, args))

    def inspect(self) -> CheckpointInfo:
        """Describe the weights file; the fingerprint includes the LoRA, if one is given."""
        info = inspect_checkpoint(self.weights, num_heads=self.num_heads)
        lora = self.lora
        if lora is None:
            return info
        return replace(info, identify=lambda: digest(info.fingerprint, file_hash(lora))[:16])

    @property
    def encoder(self) -> Any:
        """The files that embed prompts; of the embedded model None twice."""
        return self.text_encoder, self.embeddings

    def check_text(self) -> None:
        """Refuse files that do not say from what prompts are encoded."""
        if (self.text_encoder is None) == (self.embeddings is None):
            raise HeadForcingError(
                "give either --text-encoder (a umT5-xxl file) or --embeddings (precomputed)"
            )

    def encode(self, texts: list[str], device: torch.device) -> list[torch.Tensor]:
        """Text embeddings from `--embeddings` or `--text-encoder`, one per text."""
        from ..headforcing_core.weights.umt5 import load_embeddings

        self.check_text()
        if self.text_encoder is not None:
            return encode_texts(self.text_encoder, texts, device)
        assert self.embeddings is not None
        stored = load_embeddings(self.embeddings)
        return [stored[text] for text in texts]

    def load(self) -> dict[str, torch.Tensor]:
        """The weights under Wan names, LoRA merged."""
        return load_state_dict(self.weights, num_heads=self.num_heads, lora=self.lora)[0]

    @property
    def has_vae(self) -> bool:
        """Whether video frames can be encoded and decoded."""
        return self.vae is not None

    def codec(
        self, device: torch.device, dtype: torch.dtype, encodes: bool = False
    ) -> FrameCodec | None:
        """The VAE, None if none is given."""
        from .codec import load_codec

        if self.vae is None:
            return None
        codec = load_codec(
            self.vae,
            device,
            dtype,
            encodes=encodes,
            decoder=self.decoder,
            park=self.park_features,
        )
        if self.live_decoder is None:
            return codec
        preview = load_codec(self.live_decoder, device, dtype, encodes=False)
        return replace(codec, preview=replace(preview, encode=codec.encode))

    def decoder_memory(
        self, plan: RenderPlan, device: torch.device, dtype: torch.dtype, decodes: bool
    ) -> DecoderMemory:
        """Estimated memory of the VAE during a render that `decodes` its blocks, or only encodes
        video frames between rollouts, with features parked if `device` samples.
        """
        from .codec import decoder_memory

        latents = plan.config.latents
        size = (plan.height, plan.width)
        decoder = decoder_memory(
            self.vae,
            size,
            dtype,
            encodes=plan.vae_use is not None,
            decoder=self.decoder,
            latents=latents,
        )
        if self.park_features and device.type == "cuda":
            decoder = replace(decoder, held=0)
        if self.live_decoder is None or not decodes:
            return decoder
        return decoder.after(decoder_memory(self.live_decoder, size, dtype, latents=latents))

    def check_decoders(self, latents: LatentFormat) -> None:
        """Refuse a `--live-decoder` that is no tiny decoder for these latents, or is of no use."""
        live = self.live_decoder
        if live is None:
            return
        from .codec import is_tiny, tiny_latents

        if self.vae is None:
            raise HeadForcingError(
                "--live-decoder shows a video until the VAE decodes it: give --vae and --out, too"
            )
        if is_tiny(self.vae):
            raise HeadForcingError(
                f"--live-decoder: {self.vae.name} of --vae is a tiny decoder, too; give the VAE "
                "that decodes the finished video"
            )
        if tiny_latents(live) is not latents:
            name = tiny_names(latents)[1]
            raise HeadForcingError(
                f"--live-decoder: {live.name} is no tiny decoder for latents of {latents.channels} "
                f"channels: use a file such as {name}safetensors"
            )


@dataclass(frozen=True)
class EmbeddedModel(ModelFiles):
    """The embedded model, or another one of its world, which needs no files for texts and video
    frames."""

    embedded = True
    picture_scale = SCALE
    has_vae = True

    def check_text(self) -> None:
        pass

    def encode(self, texts: list[str], device: torch.device) -> list[torch.Tensor]:
        return [word_hash.encode(text) for text in texts]

    def codec(self, device: torch.device, dtype: torch.dtype, encodes: bool = False) -> FrameCodec:
        decoder = assets.load_picture_decoder(device)
        autoencoder = decoder.autoencoder
        return FrameCodec(
            partial(PictureStreamingDecoder, decoder),
            decoder,
            autoencoder.encode,
            new_source_decoder=partial(RoomsStreamingDecoder, autoencoder),
        )


def encode_texts(text_encoder: Path, texts: list[str], device: torch.device) -> list[torch.Tensor]:
    """One text embedding per text, computed on `device` if the encoder fits there now, else on the
    CPU.
    """
    from ..headforcing_core.weights.umt5 import load_text_encoder

    place = device if text_encoder_bytes(text_encoder, device) else torch.device("cpu")
    if place != device:
        sys.stderr.write(
            f"note: prompts are encoded on the CPU, {text_encoder.name} does not fit on {device}\n"
        )
    embeddings = load_text_encoder(text_encoder, place).encode(texts)
    empty_cache(place)  # what the encoder took, in pieces that do not fit the model's
    return embeddings


def text_encoder_bytes(text_encoder: Path, device: torch.device) -> int:
    """Memory in bytes of encoding prompts on `device`; 0 where the encoder does not fit there
    now.
    """
    from ..headforcing_core.weights.umt5 import encoder_bytes

    needed = encoder_bytes(text_encoder)
    room = room_on(device)
    if device.type != "cpu" and room is not None and needed > room:
        return 0
    return needed


_TELLING_DEVICES = ("", "cpu", "cuda", "xpu", "meta")  # PyTorch has a short reason for these
_MOST_DEVICE_WORDS = 160  # letters


def pick_device(name: str, option: str = "--device") -> torch.device:
    """The device of that name, with its number, after a test that it works; `auto` takes the
    fastest kind there is.
    """
    if name == "auto":
        kinds = {"cuda": torch.cuda, "mps": torch.backends.mps, "xpu": torch.xpu}
        name = next((kind for kind, module in kinds.items() if module.is_available()), "cpu")
    try:
        probe = torch.zeros(1, device=torch.device(name))
        probe.cpu()  # "meta" holds no numbers
        return probe.device
    except Exception as error:  # a backend that is not there fails in any way
        kind = name.partition(":")[0]
        why = first_sentence(error)
        if kind not in _TELLING_DEVICES or len(why) > _MOST_DEVICE_WORDS:
            why = f"this PyTorch has no {kind.upper() if kind == 'mps' else kind}"
        raise HeadForcingError(f"{option} {name!r} cannot be used here: {why}") from error


@contextmanager
def progress_bar(doing: str, quiet: bool, **options: Any) -> Iterator[Callable[[int, int], None]]:
    """A bar in the terminal, which is told how much is done, and of how much, 0 if unknown."""
    # the delay keeps the bar from being printed before an error
    with tqdm(desc=doing, disable=quiet, delay=1e-3, **options) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total or None
            bar.update(done - bar.n)

        yield show


def changed(args: Namespace, **values: Any) -> Namespace:
    """A copy of arguments with other values."""
    copied = copy(args)
    for name, value in values.items():
        setattr(copied, name, value)
    return copied


def portable(args: Namespace) -> Namespace:
    """A copy that means the same in another process: absolute paths, and the text of a file of
    prompts.
    """
    values: Fields = {}
    for name in args.paths:
        path = getattr(args, name)
        if isinstance(path, Path):
            values[name] = path.absolute()
    if args.profile not in (None, "auto", *bundled_profiles()):
        values["profile"] = str(path_of(args.profile).absolute())
    pictures = [named_file(word) for word in args.reference]
    values["reference"] = [f"{name}={file.absolute()}" for name, file in pictures]
    if args.prompts is not None:
        text = read_text(args.prompts, [name for name, _ in pictures])
        if text.startswith("@"):  # which would be taken for a file
            text = f"\n{text}"
        values["prompts"] = text
    return changed(args, **values)


def chosen_sound(args: Namespace) -> Soundtrack | None:
    """The sound of `--audio` in its place; None if none is given."""
    if args.audio is not None:
        return Soundtrack.of_file(args.audio).placed(args.audio_offset, args.audio_gain)
    placed = {"--audio-offset": args.audio_offset, "--audio-gain": args.audio_gain}
    for option, value in placed.items():
        if value:
            raise HeadForcingError(f"{option} places the sound of --audio; give --audio FILE")
    return None


def weight_change_of(args: Namespace) -> EightBits | None:
    """The change of the model's weights that the arguments of a command ask for."""
    if not args.fp8_linears:
        return None
    from .weight_changes import EightBits

    return EightBits()
