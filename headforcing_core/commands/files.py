"""The commands `inspect`, `convert`, `methods`, `budget` and `memory`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

import torch
from tqdm import tqdm

from ..cache.options import options_of
from ..cache.policy import PRESETS, CachePolicy
from ..errors import HeadForcingError
from ..files import claimed
from ..head_profiles.profile import bundled_profiles, load_profile
from ..methods.registry import ALIASES, METHODS, list_methods, method_names, method_policy, method_schedule
from ..render.cards import CARDS, MODELS, Card, Fit, card, paper_heads, released_needs, text_encoders
from ..render.describe import describe, format_bytes, markdown_table
from ..render.family import with_family
from ..render.options import RenderOptions
from ..render.plan import RenderPlan
from ..render.resources import Needs
from ..rollout.schedule import AUTO_FAMILY, SCHEDULES
from ..timeline.timeline import parse_timeline
from ..weights.checkpoint import convert as convert_checkpoint
from ..weights.checkpoint import convert_lora, holds_lora, inspect_checkpoint
from .arguments import DTYPES, Result, parse_size
from .parser import Commands
from .paths import READ, WRITTEN


def add_parsers(command: Commands) -> None:
    """Add `inspect`, `methods`, `budget`, `memory` and `convert` to the command line."""
    sub = command("inspect", inspect)
    sub.add_argument("file", type=READ)
    sub.add_argument("--num-heads", type=int)

    command("methods", methods)

    sub = command("budget", budget)
    sub.add_argument("--size", default="832x480", help="WIDTHxHEIGHT in pixels (832x480)")
    sub.add_argument("--seconds", type=float, nargs="+", default=[60.0, 300.0])
    sub.add_argument("--model-family", choices=MODELS, default="self_forcing", help="1.3B or LongLive 2.0 5B")

    sub = command("memory", memory)
    sub.add_argument("--cards", type=float, nargs="+", default=list(CARDS), help="memory of cards in GiB")
    sub.add_argument("--sizes", nargs="+", default=["832x480", "480x832"], help="WIDTHxHEIGHT in pixels")
    sub.add_argument("--model-family", choices=MODELS, default="self_forcing", help="1.3B or LongLive 2.0 5B")

    sub = command("convert", convert)
    sub.add_argument("file", type=READ)
    sub.add_argument("out", type=WRITTEN, help="new .safetensors file")
    sub.add_argument("--weights", default="auto", help="which copy: auto, generator_ema, generator (auto)")
    sub.add_argument("--lora", type=READ, help="LoRA to merge")
    sub.add_argument("--lora-strength", type=float, default=1.0)
    sub.add_argument("--num-heads", type=int)
    sub.add_argument("--frames-per-block", type=int, help="recorded in the file: 3 chunkwise, 1 framewise")
    sub.add_argument("--model-family", choices=SCHEDULES, help="recorded in the file, for --model-family auto")
    sub.add_argument("--dtype", choices=DTYPES, default="bf16")


MAX_CARD_GIB = 100_000


def inspect(args: argparse.Namespace) -> Result:
    if args.file.suffix == ".json":
        profile = load_profile(args.file)
        counts = profile.counts()
        found = {"name": profile.name, "num_layers": profile.num_layers, "num_heads": profile.num_heads}
        text = (
            f"head profile {profile.name!r}: {profile.num_layers} layers x {profile.num_heads} heads, "
            + ", ".join(f"{count} {role}" for role, count in counts.items())
            + f"\n{json.dumps(profile.provenance, indent=1)}"
        )
        return {"text": text, "json": {**found, "counts": counts, "provenance": profile.provenance}}
    info = inspect_checkpoint(args.file, num_heads=args.num_heads)
    options, family = with_family(RenderOptions(model_family=AUTO_FAMILY), args.file)
    lines, found = [info.summary()], {"family": info.family, "parameters": info.parameters, "layout": info.layout}
    try:
        minute = parse_timeline("a minute", 60.0)
        plan = RenderPlan.make(info.config, CachePolicy(), options.schedule, minute, 832, 480)
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
            policy = method_policy(method)
            try:
                steps = method_schedule(policy, family)
                plan = RenderPlan.make(config, policy, steps, timeline, width, height, profile=roles)
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
    for gib in args.cards:
        if not 0 < gib <= MAX_CARD_GIB:
            raise HeadForcingError(f"--cards must be above 0 and at most {MAX_CARD_GIB} GiB, got {gib:g}")
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
        *((f"before that, alone: umT5-xxl in {file}", size) for file, size in text_encoders().items()),
    ]
    return markdown_table(["of a minute, in bf16", "memory"], [[name, format_bytes(size)] for name, size in rows])


def _cards_table(cards: Sequence[Card]) -> str:
    rows = []
    for one in cards:
        streamed = f"; {format_bytes(one.comfyui.resident)} of the weights stay on the card"
        rows.append(
            [
                f"{one.size:g} GB",
                format_bytes(one.room),
                _fit_text(one.command_line),
                _fit_text(one.comfyui) + streamed,
                ", ".join(f"{file}: {place}" for file, place in one.text_encoder.items()),
            ]
        )
    return markdown_table(["card", "room", "command line", "ComfyUI", "umT5 on the command line"], rows)


def _fit_text(fit: Fit) -> str:
    if fit.how is None:
        return "does not fit"
    return f"{fit.how or 'fits as it is'} ({format_bytes(fit.bytes)})"


def convert(args: argparse.Namespace) -> Result:
    if holds_lora(args.file):
        return _convert_lora(args)
    with claimed(args.out), tqdm(unit="B", unit_scale=True, desc="convert", disable=args.json, delay=1e-3) as bar:

        def on_progress(written: int, total: int) -> None:
            bar.total = total
            bar.update(written - bar.n)

        info = convert_checkpoint(
            args.file,
            args.out,
            weights=args.weights,
            dtype=DTYPES[args.dtype],
            lora=args.lora,
            lora_strength=args.lora_strength,
            num_heads=args.num_heads,
            frames_per_block=args.frames_per_block,
            model_family=args.model_family,
            on_progress=on_progress,
        )
    size = args.out.stat().st_size
    found = {"out": str(args.out), "bytes": size, "fingerprint": info.fingerprint}
    return {"text": f"{info.summary()}\nwrote {args.out}, {format_bytes(size)}", "json": found}


def _convert_lora(args: argparse.Namespace) -> Result:
    """A LoRA is only renamed; its strength is set where it is used."""
    if args.lora is not None:
        raise HeadForcingError(f"{args.file.name} is a LoRA itself: give the base model first to merge one into it")
    with claimed(args.out):
        tensors = convert_lora(args.file, args.out, DTYPES[args.dtype])
    size = args.out.stat().st_size
    text = f"LoRA of {tensors} tensors, named as ComfyUI's LoRA loaders expect\nwrote {args.out}, {format_bytes(size)}"
    return {"text": text, "json": {"out": str(args.out), "bytes": size, "tensors": tensors}}
