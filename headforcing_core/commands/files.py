"""The commands that describe and convert models, and those that do a part of a render: `encode`, `decode`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from ..cache.options import options_of
from ..cache.policy import PRESETS
from ..errors import HeadForcingError
from ..files import claimed
from ..head_profiles.profile import bundled_profiles, load_profile
from ..methods.registry import ALIASES, METHODS, list_methods, method_names, method_policy
from ..model.latents import latent_format
from ..render.cards import MODELS, TEXT_ENCODERS, Card, Fit, card, paper_heads, released_needs
from ..render.describe import describe, format_bytes, markdown_table
from ..render.family import with_family
from ..render.options import RenderOptions
from ..render.request import file_tags
from ..render.resources import Needs
from ..render.sinks import load_latents, partial_path
from ..rollout.schedule import AUTO_FAMILY
from ..runs.stored import StoredVideo, find_stored
from ..timeline.clock import VIDEO_FPS, video_frames_of
from ..timeline.timeline import parse_timeline
from ..video.stream import write_video
from ..video.writer import VideoSettings
from ..weights.checkpoint import convert as convert_checkpoint
from ..weights.checkpoint import convert_lora, holds_lora, inspect_checkpoint
from ..weights.containers import read_weights
from .arguments import Result
from .source import toy_codec
from .values import DTYPES, encode_texts, parse_size, pick_device, read_text

MAX_CARD_GIB = 100_000
CHUNK_FRAMES = 3  # of latents that are decoded at a time


def inspect(args: argparse.Namespace) -> Result:
    """Describe a head profile, or a checkpoint and the cache of a minute."""
    if args.file.suffix == ".json" and not args.file.name.endswith(".index.json"):  # which names a model's files
        profile = load_profile(args.file)
        found = {name: vars(profile)[name] for name in ("name", "num_layers", "num_heads", "provenance")}
        roles = ", ".join(f"{count} {role}" for role, count in profile.counts().items())
        size = f"{profile.num_layers} layers x {profile.num_heads} heads"
        text = f"head profile {profile.name!r}: {size}, {roles}\n{json.dumps(profile.provenance, indent=1)}"
        return {"text": text, "json": {**found, "counts": profile.counts()}}
    info = inspect_checkpoint(args.file, num_heads=args.num_heads)
    options, family = with_family(RenderOptions(model_family=AUTO_FAMILY), args.file)
    lines, found = [info.summary()], {name: vars(info)[name] for name in ("family", "parameters", "layout")}
    try:
        minute = parse_timeline("a minute", 60.0)
        plan = options.plan(info.config, minute)
        lines += [family, "a minute at 832x480:", describe(plan, torch.bfloat16)]
        found["cache_bytes_832x480"] = plan.shape.bytes(torch.bfloat16)
        found["model_family"] = options.model_family
    except HeadForcingError as error:
        lines.append(str(error))
    return {"text": "\n".join(lines), "json": {**found, "fingerprint": info.fingerprint}}


def methods(args: argparse.Namespace) -> Result:
    """Every method, ablation and alias with its options."""
    names = (name for name in method_names() if name not in ALIASES)
    options = {name: {key: value for key, (value, _) in options_of(method_policy(name)).items()} for name in names}
    aliases = {name: {"method": method, "options": text} for name, (method, text) in ALIASES.items()}
    return {"text": "\n".join(list_methods()), "json": {"options": options, "aliases": aliases}}


def budget(args: argparse.Namespace) -> Result:
    """KV cache of a released model by method and length."""
    width, height = parse_size(args.size)
    config, family = MODELS[args.model_family], args.model_family
    paper = paper_heads(config)
    bundled = load_profile(bundled_profiles()["self_forcing"]) if family == "self_forcing" else paper
    rows = []
    for seconds in args.seconds:
        timeline = parse_timeline("a video", seconds)
        for name, method, roles in (
            ("every frame in every head", "self_forcing", bundled),
            ("window of 21 frames", "self_forcing_window_21", bundled),
            *([("Head Forcing, bundled two-way profile", "head_forcing", bundled)] if bundled is not paper else []),
            (f"Head Forcing, {paper.name}", "head_forcing", paper),
            *((name, name, bundled) for name, row in METHODS.items() if row.policy not in PRESETS.values()),
        ):
            try:
                options = RenderOptions(method=method, width=width, height=height, model_family=family)
                plan = options.plan(config, timeline, profile=roles)
            except HeadForcingError:
                if method in PRESETS:
                    raise
                continue  # another paper's method makes no video that short, or has another sampler
            shape = plan.shape
            rows.append((seconds, name, shape.frame_slots, shape.bytes(torch.bfloat16)))
    cells = [[f"{seconds:g}", name, f"{slots:,}", format_bytes(size)] for seconds, name, slots, size in rows]
    found = [{"seconds": s, "cache": n, "frame_slots": slots, "bytes": size} for s, n, slots, size in rows]
    return {"text": markdown_table(["seconds", "cache", "frame-slots", "bf16"], cells), "json": found}


def memory(args: argparse.Namespace) -> Result:
    """Estimate a minute of a released model on cards; sizes with the same answers share a table."""
    if bad := [gib for gib in args.cards if not 0 < gib <= MAX_CARD_GIB]:
        raise HeadForcingError(f"--cards must be above 0 and at most {MAX_CARD_GIB} GiB, got {bad[0]:g}")
    tables: dict[str, list[str]] = {}
    found = []
    for size in args.sizes:
        width, height = parse_size(size)
        _, needs = released_needs(width, height, args.model_family)
        cards = [card(gib, width, height, args.model_family) for gib in args.cards]
        found.append({"size": size, "needs": asdict(needs), "cards": [asdict(one) for one in cards]})
        tables.setdefault(f"{_parts_table(needs)}\n\n{_cards_table(cards)}", []).append(size)
    text = "\n\n".join(f"{' and '.join(sizes)}:\n\n{table}" for table, sizes in tables.items())
    return {"text": text, "json": found}


def _parts_table(needs: Needs) -> str:
    rows = [
        ("weights of the model", needs.weights),
        ("KV cache", needs.cache),
        ("prompt's keys and values", needs.prompt),
        ("weights of the VAE's decoder", needs.vae),
        ("while sampling: activations", needs.activations),
        ("while sampling: what the VAE keeps between blocks", needs.held),
        ("while decoding: VAE, what it keeps included", needs.decode),
        ("the most at any time", needs.rendering),
        *((f"before that, alone: umT5-xxl in {file}", size) for file, size in TEXT_ENCODERS.items()),
    ]
    return markdown_table(["of a minute, in bf16", "memory"], [[name, format_bytes(size)] for name, size in rows])


def _cards_table(cards: Sequence[Card]) -> str:
    def told(fit: Fit) -> str:
        return "does not fit" if fit.how is None else f"{fit.how or 'fits as it is'} ({format_bytes(fit.bytes)})"

    rows = []
    for one in cards:
        streamed = f"; {format_bytes(one.comfyui.resident)} of the weights stay on the card"
        fits = told(one.command_line), told(one.comfyui) + streamed
        places = ", ".join(f"{file}: {place}" for file, place in one.text_encoder.items())
        rows.append([f"{one.size:g} GB", format_bytes(one.room), *fits, places])
    return markdown_table(["card", "room", "command line", "ComfyUI", "umT5 on the command line"], rows)


def convert(args: argparse.Namespace) -> Result:
    """Write a copy of a checkpoint; a LoRA is only renamed, since its strength is set where it is used."""
    if holds_lora(args.file):
        if args.lora is not None:
            raise HeadForcingError(f"{args.file.name} is a LoRA itself: give the base model first to merge one into it")
        with claimed(args.out):
            tensors = convert_lora(args.file, args.out, DTYPES[args.dtype])
        summary = f"LoRA of {tensors} tensors, named as ComfyUI's LoRA loaders expect"
        told: dict[str, Any] = {"tensors": tensors}
    else:
        same = ("weights", "lora", "lora_strength", "num_heads", "frames_per_block", "model_family")
        given = {name: vars(args)[name] for name in same}
        with claimed(args.out), tqdm(unit="B", unit_scale=True, desc="convert", disable=args.json, delay=1e-3) as bar:

            def on_progress(written: int, total: int) -> None:
                bar.total = total
                bar.update(written - bar.n)

            info = convert_checkpoint(args.file, args.out, dtype=DTYPES[args.dtype], on_progress=on_progress, **given)
        summary, told = info.summary(), {"fingerprint": info.fingerprint}
    size = args.out.stat().st_size
    found = {"out": str(args.out), "bytes": size, **told}
    return {"text": f"{summary}\nwrote {args.out}, {format_bytes(size)}", "json": found}


# ------------------------------------------------------------------------------------- parts of a render


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
    video = _of_file(args.latents) if run is None else _of_run(run)
    with claimed(args.out):
        device = pick_device(args.device)
        if args.demo:
            codec = toy_codec(device)
        else:
            codec = load_codec(args.vae, device, DTYPES[args.dtype], bool(video.restarts), args.decoder)
        settings = VideoSettings(args.out, video.fps, video.tags, scale=args.scale, partial=partial_path(args.out))
        info = write_video(settings, video.blocks, codec.decoder(video.restarts), video.video_frames)
    problems = [] if run is None else run.run.problems
    found = {"video": str(args.out), "frames": info.video_frames, "seconds": info.seconds, "problems": problems}
    made = f"{info.video_frames} frames, {info.seconds:.2f} s, in {args.out}"
    return {"text": "\n".join([made, *(f"damaged  {one}" for one in problems)]), "json": found}


@dataclass(frozen=True)
class _Latents:
    """The latents of a video, in chunks for the decoder; `restarts` are as for `RestartingDecoder`."""

    blocks: Iterable[Tensor]
    video_frames: int
    fps: float
    restarts: tuple[int, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)


def _of_file(path: Path) -> _Latents:
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
    return _Latents(latents.split(CHUNK_FRAMES), video_frames, fps, restarts)


def _of_run(video: StoredVideo) -> _Latents:
    """The finished blocks of a stored video, which are read one at a time."""
    about = video.about
    chunks = (chunk for block in video.blocks() for chunk in block.split(CHUNK_FRAMES))
    restarts = tuple(about.get("restart_frames", ()))
    return _Latents(chunks, about["video_frames"], about.get("fps", VIDEO_FPS), restarts, file_tags(about))
