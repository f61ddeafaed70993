"""The commands `encode` and `decode`: the first and the last stage of a render on their own, where memory is short."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from ..errors import HeadForcingError
from ..files import check_writable, claimed
from ..model.latents import latent_format
from ..render.options import DEFAULTS, RenderOptions
from ..render.provenance import file_tags
from ..render.sinks import load_latents, partial_path
from ..rollout.schedule import SCHEDULES
from ..runs.stored import StoredVideo, find_stored
from ..timeline.clock import VIDEO_FPS, video_frames_of
from ..video.codec import DECODERS
from ..video.stream import write_video
from ..weights.containers import read_weights
from .arguments import DTYPES, Result, check_scale, pick_device, read_text
from .model_files import encode_texts
from .parser import Commands
from .paths import LATENTS, READ, TEXT, VIDEO, WRITTEN
from .source import toy_codec

CHUNK_FRAMES = 3


def add_parsers(command: Commands) -> None:
    """Add `encode` and `decode` to the command line."""
    sub = command("encode", encode)
    sub.add_argument("out", type=WRITTEN, help="safetensors file to write")
    sub.add_argument(
        "--text-encoder", type=READ, required=True, help="umT5-xxl encoder, ComfyUI's or the original file"
    )
    sub.add_argument(
        "--prompts", type=TEXT, nargs="+", required=True, help="timelines or single prompts, as text or @FILE"
    )
    sub.add_argument("--device", default="auto", help="auto, cpu, cuda, mps (auto); the CPU where it does not fit")
    models = "of the model; longlive2 has texts of its own where a shot begins"
    sub.add_argument("--model-family", choices=SCHEDULES, default=DEFAULTS.model_family, help=models)

    sub = command("decode", decode)
    text = "safetensors file of generate --latents; or a run folder, or FOLDER/VIDEO in one as `runs list` names it"
    sub.add_argument("latents", type=LATENTS, metavar="RUN", help=text)
    sub.add_argument("out", type=VIDEO, help="MP4 to write")
    vae = sub.add_mutually_exclusive_group(required=True)
    vae.add_argument("--vae", type=READ, help="VAE of Wan 2.1 or 2.2, or a tiny decoder")
    vae.add_argument("--demo", action="store_true", help="the embedded model's VAE")
    sub.add_argument("--scale", type=int, default=1, help="every pixel becomes a square of this side (1)")
    sub.add_argument("--decoder", choices=DECODERS, default="auto", help="what the file of --vae is (auto)")
    sub.add_argument("--dtype", choices=DTYPES, default="bf16", help="compute dtype (bf16)")
    sub.add_argument("--device", default="auto", help="auto, cpu, cuda, mps (auto)")


def encode(args: argparse.Namespace) -> Result:
    """Encode every prompt once."""
    from ..weights.umt5 import save_embeddings

    if args.out.suffix != ".safetensors":
        raise HeadForcingError(f"the file of embeddings must end in .safetensors, got {args.out.name!r}")
    check_writable(args.out)
    options = RenderOptions(model_family=args.model_family)
    timelines = [options.parse(read_text(text)) for text in args.prompts]
    texts = list(dict.fromkeys(text for timeline in timelines for text in timeline.texts))
    with claimed(args.out):
        rows = encode_texts(args.text_encoder, texts, pick_device(args.device))
        save_embeddings(args.out, dict(zip(texts, rows, strict=True)))
    found = {"out": str(args.out), "prompts": texts, "tokens": [len(embedding) for embedding in rows]}
    return {"text": f"{len(texts)} prompts in {args.out}", "json": found}


def decode(args: argparse.Namespace) -> Result:
    """Decode latents block by block, with the VAE alone in memory."""
    from ..video.codec import load_codec

    check_scale(args)
    check_writable(args.out)
    run = None if args.latents.is_file() else find_stored(args.latents)
    latents = _of_file(args.latents) if run is None else _of_run(run)
    with claimed(args.out):
        device = pick_device(args.device)
        if args.demo:
            codec = toy_codec(device)
        else:
            codec = load_codec(args.vae, device, DTYPES[args.dtype], bool(latents.restart_frames), args.decoder)
        info = write_video(
            args.out,
            latents.blocks,
            codec.decoder(latents.restart_frames),
            fps=latents.fps,
            video_frames=latents.video_frames,
            scale=args.scale,
            metadata=latents.tags,
            partial=partial_path(args.out),
        )
    problems = [] if run is None else run.run.problems
    found = {"video": str(args.out), "frames": info.video_frames, "seconds": info.seconds, "problems": problems}
    lines = [
        f"{info.video_frames} frames, {info.seconds:.2f} s, in {args.out}",
        *(f"damaged  {one}" for one in problems),
    ]
    return {"text": "\n".join(lines), "json": found}


@dataclass(frozen=True)
class _Latents:
    """Latents to decode: `blocks` of `[frames, channels, h, w]`, and what is known of the video.

    Attributes:
        video_frames: the most that the video has.
        restart_frames: the first latent frames of its rollouts, see `RestartingDecoder`.
        tags: metadata of the file.
    """

    blocks: Iterable[Tensor]
    video_frames: int
    restart_frames: tuple[int, ...]
    fps: float = VIDEO_FPS
    tags: Mapping[str, str] = field(default_factory=dict)


def _of_file(path: Path) -> _Latents:
    """The latents of `generate --latents`."""
    latents = load_latents(path)
    most = video_frames_of(len(latents))
    try:
        about = json.loads(read_weights(path)[2].get("head_forcing", "{}"))
        video_frames = int(about.get("video_frames", most))
        restarts = tuple(map(int, about.get("restart_frames", ())))
        if not 1 <= video_frames <= most or not all(0 <= frame < len(latents) for frame in restarts):
            raise ValueError("of another video")
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise HeadForcingError(f"{path} does not say what its latents are of; write them again") from error
    return _Latents(latents.split(CHUNK_FRAMES), video_frames, restarts, latent_format(latents.shape[1]).fps)


def _of_run(video: StoredVideo) -> _Latents:
    """The finished blocks of a stored video, which are read one at a time."""
    about = video.about
    chunks = (chunk for block in video.blocks() for chunk in block.split(CHUNK_FRAMES))
    restarts = tuple(about.get("restart_frames", ()))
    return _Latents(chunks, about["video_frames"], restarts, about.get("fps", VIDEO_FPS), file_tags(about))
