"""The commands `encode` and `decode`, the first and the last stage of a render on their own, where memory is short; and
`replay`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from safetensors.torch import save

from ..errors import HeadForcingError
from ..files import claimed, replacing
from ..model.latents import latent_format
from ..recorded.replay import Case, replay
from ..render.job import file_tags
from ..render.options import RenderOptions
from ..render.sinks import load_latents, partial_path
from ..runs.stored import StoredVideo, find_stored
from ..timeline.clock import VIDEO_FPS, video_frames_of
from ..video.stream import write_video
from ..weights.containers import read_weights
from .arguments import Result
from .source import toy_codec
from .values import DTYPES, encode_texts, pick_device, read_text

CHUNK_FRAMES = 3


def encode(args: argparse.Namespace) -> Result:
    """Encode every prompt once."""
    from ..weights.umt5 import save_embeddings

    if args.out.suffix != ".safetensors":
        raise HeadForcingError(f"the file of embeddings must end in .safetensors, got {args.out.name!r}")
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

    run = None if args.latents.is_file() else find_stored(args.latents)
    restarts, video = _of_file(args.latents) if run is None else _of_run(run)
    with claimed(args.out):
        device = pick_device(args.device)
        if args.demo:
            codec = toy_codec(device)
        else:
            codec = load_codec(args.vae, device, DTYPES[args.dtype], bool(restarts), args.decoder)
        decoder = codec.decoder(restarts)
        info = write_video(args.out, decoder=decoder, scale=args.scale, partial=partial_path(args.out), **video)
    problems = [] if run is None else run.run.problems
    found = {"video": str(args.out), "frames": info.video_frames, "seconds": info.seconds, "problems": problems}
    made = f"{info.video_frames} frames, {info.seconds:.2f} s, in {args.out}"
    return {"text": "\n".join([made, *(f"damaged  {one}" for one in problems)]), "json": found}


def replay_case(args: argparse.Namespace) -> Result:
    """Write the latents of a recorded run, and its memory events."""
    with claimed(args.out, args.events):
        done = replay(Case.open(args.case), args.run_name, args.device, args.attention)
        with replacing(args.out) as temporary:
            temporary.write_bytes(save({"latents": done.latents.contiguous()}))
        if args.events is not None:
            events = {"memory_events": done.memory_events, "final_episodic_sources": done.final_episodic_sources}
            with replacing(args.events) as temporary:
                temporary.write_text(json.dumps(events, indent=1), encoding="utf-8")
    summary = {"latents": str(args.out), "frames": len(done.latents), "memory_events": done.memory_events}
    return {"text": f"{len(done.latents)} latent frames in {args.out}", "json": summary}


_Video = tuple[tuple[int, ...], dict[str, Any]]
"""The first latent frames of a video's rollouts, see `RestartingDecoder`, and arguments of `write_video`."""


def _of_file(path: Path) -> _Video:
    """The latents of `generate --latents`."""
    latents = load_latents(path)
    most = video_frames_of(len(latents))
    try:
        about = json.loads(read_weights(path)[1].get("head_forcing", "{}"))
        video_frames = int(about.get("video_frames", most))
        restarts = tuple(map(int, about.get("restart_frames", ())))
        if not 1 <= video_frames <= most or not all(0 <= frame < len(latents) for frame in restarts):
            raise ValueError("of another video")
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise HeadForcingError(f"{path} does not say what its latents are of; write them again") from error
    fps = latent_format(latents.shape[1]).fps
    return restarts, {"blocks": latents.split(CHUNK_FRAMES), "video_frames": video_frames, "fps": fps}


def _of_run(video: StoredVideo) -> _Video:
    """The finished blocks of a stored video, which are read one at a time."""
    about = video.about
    chunks = (chunk for block in video.blocks() for chunk in block.split(CHUNK_FRAMES))
    options = {"video_frames": about["video_frames"], "fps": about.get("fps", VIDEO_FPS), "metadata": file_tags(about)}
    return tuple(about.get("restart_frames", ())), {"blocks": chunks, **options}
