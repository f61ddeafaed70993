"""The commands `encode` and `decode`: the first and the last stage of a render on their own, where memory is short."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from ..errors import HeadForcingError
from ..files import check_writable, claimed
from ..render.sinks import load_latents, partial_path
from ..timeline.clock import VIDEO_FPS, video_frames_of
from ..timeline.timeline import parse_timeline
from ..video.codec import DECODERS
from ..video.stream import write_video
from ..weights.containers import read_weights
from .arguments import DTYPES, Result, pick_device, read_text
from .model_files import encode_texts


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `encode` and `decode` to the command line."""
    sub = command("encode", encode, "Write the embeddings of prompts, which `generate --embeddings` reads.")
    sub.add_argument("out", type=Path, help="safetensors file to write")
    sub.add_argument(
        "--text-encoder", type=Path, required=True, help="umT5-xxl encoder, ComfyUI's or the original file"
    )
    sub.add_argument("--prompts", nargs="+", required=True, help="timelines or single prompts, as text or @FILE")
    sub.add_argument("--device", default="auto", help="auto, cpu, cuda, mps (auto); the CPU where it does not fit")

    sub = command("decode", decode, "Decode latents that `generate --latents` wrote to an MP4.")
    sub.add_argument("latents", type=Path, help="safetensors file of generate --latents")
    sub.add_argument("out", type=Path, help="MP4 to write")
    sub.add_argument("--vae", type=Path, required=True, help="Wan 2.1 VAE, or a tiny decoder")
    sub.add_argument("--decoder", choices=DECODERS, default="auto", help="what the file of --vae is (auto)")
    sub.add_argument("--dtype", choices=DTYPES, default="bf16", help="compute dtype (bf16)")
    sub.add_argument("--device", default="auto", help="auto, cpu, cuda, mps (auto)")


def encode(args: argparse.Namespace) -> Result:
    """Encode every prompt once."""
    from ..weights.umt5 import save_embeddings

    if args.out.suffix != ".safetensors":
        raise HeadForcingError(f"the file of embeddings must end in .safetensors, got {args.out.name!r}")
    check_writable(args.out)
    timelines = [parse_timeline(read_text(text)) for text in args.prompts]
    texts = list(dict.fromkeys(text for timeline in timelines for text in timeline.texts))
    with claimed(args.out):
        rows = encode_texts(args.text_encoder, texts, pick_device(args.device))
        save_embeddings(args.out, dict(zip(texts, rows, strict=True)))
    found = {"out": str(args.out), "prompts": texts, "tokens": [len(embedding) for embedding in rows]}
    return {"text": f"{len(texts)} prompts in {args.out}", "json": found}


def decode(args: argparse.Namespace) -> Result:
    """Decode latents block by block, with the VAE alone in memory."""
    from ..video.codec import load_codec

    check_writable(args.out)
    latents = load_latents(args.latents)
    try:
        about = json.loads(read_weights(args.latents)[2].get("head_forcing", "{}"))
        video_frames = int(about.get("pictures", video_frames_of(len(latents))))
        restarts = tuple(map(int, about.get("restart_frames", ())))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise HeadForcingError(f"{args.latents} does not say what its latents are of; write them again") from error
    with claimed(args.out):
        codec = load_codec(args.vae, pick_device(args.device), DTYPES[args.dtype], bool(restarts), args.decoder)
        info = write_video(
            args.out,
            latents.split(3),
            codec.decoder(restarts),
            fps=VIDEO_FPS,
            video_frames=video_frames,
            partial=partial_path(args.out),
        )
    found = {"video": str(args.out), "frames": info.video_frames, "seconds": info.seconds}
    return {"text": f"{info.video_frames} frames, {info.seconds:.2f} s, in {args.out}", "json": found}
