"""The commands that describe and convert models, and those that do a part of a render: `encode`,
`decode`.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace

import torch
from torch import Tensor

from ..headforcing_core.demo import assets
from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.files import Fields, claimed, partial_path
from ..headforcing_core.head_profiles.profile import HeadProfile, bundled_profiles, load_profile
from ..headforcing_core.methods.head_forcing import PRESETS
from ..headforcing_core.methods.options import options_of
from ..headforcing_core.methods.registry import (
    ALIASES,
    METHODS,
    list_methods,
    method_named,
    method_names,
)
from ..headforcing_core.plan.describe import describe, format_bytes, markdown_table
from ..headforcing_core.plan.family import with_family
from ..headforcing_core.plan.options import RenderOptions
from ..headforcing_core.plan.plan import RenderPlan
from ..headforcing_core.plan.request import file_tags, story_begins
from ..headforcing_core.plan.resources import Needs
from ..headforcing_core.render.sinks import read_latents
from ..headforcing_core.rollout.schedule import AUTO_FAMILY
from ..headforcing_core.runs.stored import find_stored
from ..headforcing_core.timeline.clock import VIDEO_FPS
from ..headforcing_core.timeline.timeline import parse_timeline
from ..headforcing_core.video.restarts import needs_encoder
from ..headforcing_core.video.stream import write_video
from ..headforcing_core.video.writer import VideoSettings
from ..headforcing_core.weights.checkpoint import convert as convert_checkpoint
from ..headforcing_core.weights.checkpoint import convert_lora, holds_lora, inspect_checkpoint
from .arguments import Result
from .cards import MODELS, TEXT_ENCODERS, Card, Fit, card, paper_heads, released_needs
from .texts import read_text, translated
from .values import (
    DTYPES,
    EmbeddedModel,
    ModelFiles,
    chosen_sound,
    encode_texts,
    parse_size,
    pick_device,
    progress_bar,
)

MAX_CARD_GIB = 100_000
CHUNK_FRAMES = 3  # of latents that are decoded at a time


def inspect(args: Namespace) -> Result:
    """Describe a head profile, or a checkpoint and the cache of a minute."""
    file = args.file
    if file.name == "config.json":  # which lies beside a model's files
        file = file.parent
    # an index names a model's files
    elif file.suffix == ".json" and not file.name.endswith(".index.json"):
        return _inspect_profile(load_profile(file))
    info = inspect_checkpoint(file, num_heads=args.num_heads)
    options, family = with_family(RenderOptions(model_family=AUTO_FAMILY), file)
    lines = [info.summary()]
    found = {"family": info.family, "parameters": info.parameters, "layout": info.layout}
    try:
        if info.config.is_driven:
            width, height = parse_size(None, options.model_family)
            options = replace(options, method_name="livetalk", width=width, height=height)
        plan = RenderPlan.of(info.config, options, parse_timeline("a minute", 60.0))
        size = plan.size_text
        lines += [family, f"a minute at {size}:", describe(plan, torch.bfloat16)]
        found[f"cache_bytes_{size}"] = plan.shape.bytes(torch.bfloat16)
        found["model_family"] = options.model_family
    except HeadForcingError as error:
        lines.append(str(error))
    found["fingerprint"] = info.fingerprint
    return Result(lines, found)


def _inspect_profile(profile: HeadProfile) -> Result:
    size = f"{profile.num_layers} layers x {profile.num_heads} heads"
    lines = [
        f"head profile {profile.name!r}: {size}, {profile.counted}",
        json.dumps(profile.provenance, indent=1),
    ]
    found = {
        "name": profile.name,
        "num_layers": profile.num_layers,
        "num_heads": profile.num_heads,
        "provenance": profile.provenance,
        "counts": profile.counts(),
    }
    return Result(lines, found)


def methods(args: Namespace) -> Result:
    """Every method, ablation and alias with its options."""
    options = {}
    for name in method_names():
        if name not in ALIASES:
            options[name] = {
                option: default for option, (default, _) in options_of(method_named(name)).items()
            }
    aliases = {
        name: {"method": method, "options": text} for name, (method, text) in ALIASES.items()
    }
    return Result(list_methods(), {"options": options, "aliases": aliases})


def budget(args: Namespace) -> Result:
    """KV cache of a released model by method and length."""
    width, height = parse_size(args.size)
    config = MODELS[args.model_family]
    paper = paper_heads(config)
    heads = paper
    of_paper = [(f"Head Forcing, {paper.name}", "head_forcing", paper)]
    if args.model_family == "self_forcing":
        heads = load_profile(bundled_profiles()["forcing_kv_self_forcing"])
        of_paper.insert(0, ("Head Forcing, imported two-way list", "head_forcing", heads))
    caches = [
        ("every frame in every head", "self_forcing", heads),
        ("window of 21 frames", "self_forcing_window_21", heads),
        *of_paper,
        *(
            (name, name, heads)
            for name, row in METHODS.items()
            if row.method not in PRESETS.values()
        ),
    ]
    found = []
    cells = []
    for seconds in args.seconds:
        timeline = parse_timeline("a video", seconds)
        for name, method, profile in caches:
            try:
                options = RenderOptions(
                    method_name=method, width=width, height=height, model_family=args.model_family
                )
                shape = RenderPlan.of(config, options, timeline, profile=profile).shape
            except HeadForcingError:
                if method in PRESETS:
                    raise
                continue  # another paper's method makes no video that short, or has another sampler
            size = shape.bytes(torch.bfloat16)
            found.append(
                {"seconds": seconds, "cache": name, "frame_slots": shape.frame_slots, "bytes": size}
            )
            cells.append([f"{seconds:g}", name, f"{shape.frame_slots:,}", format_bytes(size)])
    return Result([markdown_table(["seconds", "cache", "frame-slots", "bf16"], cells)], found)


def memory(args: Namespace) -> Result:
    """Estimate a minute of a released model on cards; sizes with the same answers share a table."""
    for gib in args.cards:
        if not 0 < gib <= MAX_CARD_GIB:
            raise HeadForcingError(
                f"--cards must be above 0 and at most {MAX_CARD_GIB} GiB, got {gib:g}"
            )
    tables: dict[str, list[str]] = {}
    found = []
    for size in args.sizes:
        width, height = parse_size(size)
        _, needs = released_needs(width, height, args.model_family)
        cards = [card(gib, width, height, args.model_family) for gib in args.cards]
        answers = [{**asdict(one), "reserved": one.reserved} for one in cards]
        found.append({"size": size, "needs": asdict(needs), "cards": answers})
        table = f"{_parts_table(needs)}\n\n{_cards_table(cards)}"
        tables.setdefault(table, []).append(size)
    lines = []
    for table, sizes in tables.items():
        lines += [f"{' and '.join(sizes)}:", "", table, ""]
    return Result(lines[:-1], found)


def _parts_table(needs: Needs) -> str:
    parts = {
        "weights of the model": needs.weights,
        "KV cache": needs.cache,
        "prompt's keys and values": needs.prompt,
        "weights of the VAE's decoder": needs.vae,
        "while sampling: activations": needs.activations,
        "while sampling: what the VAE keeps between blocks": needs.held,
        "while decoding: VAE, what it keeps included": needs.decode,
        "the most at any time": needs.rendering,
    }
    for file, size in TEXT_ENCODERS.items():
        parts[f"before that, alone: umT5-xxl in {file}"] = size
    rows = [[name, format_bytes(size)] for name, size in parts.items()]
    return markdown_table(["of a minute, in bf16", "memory"], rows)


def _cards_table(cards: Sequence[Card]) -> str:
    rows = []
    for one in cards:
        streamed = f"{format_bytes(one.comfyui.resident)} of the weights stay on the card"
        places = ", ".join(f"{file}: {place}" for file, place in one.text_encoder.items())
        fits = [
            _describe_fit(one.command_line),
            format_bytes(one.reserved),
            f"{_describe_fit(one.comfyui)}; {streamed}",
        ]
        rows.append([f"{one.size:g} GB", format_bytes(one.room), *fits, places])
    columns = ["card", "room", "command line", "reserved then", "ComfyUI"]
    return markdown_table([*columns, "umT5 on the command line"], rows)


def _describe_fit(fit: Fit) -> str:
    if fit.how is None:
        return "does not fit"
    return f"{fit.how or 'fits as it is'} ({format_bytes(fit.bytes)})"


def convert(args: Namespace) -> Result:
    """Write a copy of a checkpoint; a LoRA is only renamed, since its strength is set where it is
    used.
    """
    found: Fields = {"out": str(args.out)}
    dtype = DTYPES[args.dtype]
    if holds_lora(args.file):
        if args.lora is not None:
            raise HeadForcingError(
                f"{args.file.name} is a LoRA itself: give the base model first to merge one into it"
            )
        with claimed(args.out):
            found["tensors"] = convert_lora(args.file, args.out, dtype)
        summary = f"LoRA of {found['tensors']} tensors, named as ComfyUI's LoRA loaders expect"
    else:
        with (
            claimed(args.out),
            progress_bar("convert", args.json, unit="B", unit_scale=True) as on_progress,
        ):
            info = convert_checkpoint(
                args.file,
                args.out,
                weights=args.weights,
                dtype=dtype,
                lora=args.lora,
                lora_strength=args.lora_strength,
                num_heads=args.num_heads,
                frames_per_block=args.frames_per_block,
                model_family=args.model_family,
                on_progress=on_progress,
            )
        summary = info.summary()
        found["fingerprint"] = info.fingerprint
    found["bytes"] = args.out.stat().st_size
    return Result([summary, f"wrote {args.out}, {format_bytes(found['bytes'])}"], found)


# -------------------------------------------------------------------------------- parts of a render


def encode(args: Namespace) -> Result:
    """Encode every prompt once."""
    from ..headforcing_core.weights.umt5 import save_embeddings

    if args.out.suffix != ".safetensors":
        raise HeadForcingError(
            f"the file of embeddings must end in .safetensors, got {args.out.name!r}"
        )
    options = RenderOptions(model_family=args.model_family)
    arguments = options.timeline_arguments
    timelines = [
        translated(read_text(value), value, arguments["clock"]).timeline(**arguments)
        for value in args.prompts
    ]
    texts = list(dict.fromkeys(text for timeline in timelines for text in timeline.texts))
    with claimed(args.out):
        embeds = encode_texts(args.text_encoder, texts, pick_device(args.device))
        save_embeddings(args.out, dict(zip(texts, embeds, strict=True)))
    found = {"out": str(args.out), "prompts": texts, "tokens": [len(embed) for embed in embeds]}
    return Result([f"{len(texts)} prompts in {args.out}"], found)


def decode(args: Namespace) -> Result:
    """Decode latents block by block, with the VAE alone in memory."""
    tags = {}
    problems: Sequence[str] = []  # of a stored video; more come while its blocks are read
    if args.latents.is_file():
        about, latents = read_latents(args.latents)
        blocks: Iterable[Tensor] = [latents]
    else:
        video = find_stored(args.latents)
        about = video.about
        tags = file_tags(about)
        blocks = video.blocks()  # are read one at a time
        problems = video.reader.problems
    soundtrack = chosen_sound(args)
    with claimed(args.out):
        device = pick_device(args.device)
        files: ModelFiles = EmbeddedModel(assets.model_path())
        if not args.demo:
            files = ModelFiles(args.latents, vae=args.vae, decoder=args.decoder)
        codec = files.codec(device, DTYPES[args.dtype], needs_encoder(about))
        assert codec is not None
        fps = about.get("fps", VIDEO_FPS)
        info = write_video(
            VideoSettings(args.out, fps, tags, scale=args.scale, partial=partial_path(args.out)),
            (chunk for block in blocks for chunk in torch.split(block, CHUNK_FRAMES)),
            codec.decoder(about),
            about["video_frames"],
            sound=None if soundtrack is None else soundtrack.from_second(-story_begins(about)),
        )
    made = f"{info.video_frames} frames, {info.seconds:.2f} s, in {args.out}"
    found = {
        "video": str(args.out),
        "frames": info.video_frames,
        "seconds": info.seconds,
        "problems": problems,
    }
    return Result([made, *(f"damaged  {problem}" for problem in problems)], found)
