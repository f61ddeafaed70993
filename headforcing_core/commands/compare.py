"""The command that renders one timeline with several methods and shows them side by side."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..demo import assets, word_hash
from ..errors import HeadForcingError
from ..files import check_writable, replacing
from ..model.attention import AttentionFunction, attention_function
from ..model.wan import WanModel
from ..render.plan import RenderPlan
from ..render.resources import check_disk, in_turn
from ..studies.comparison import NOTE, Compared, Entry, entries_of, grid, measured, method_notes, table
from ..timeline.timeline import Timeline, parse_timeline
from ..versions import versions
from ..video.restarts import FrameCodec
from ..weights.checkpoint import CheckpointInfo, inspect_checkpoint, load_state_dict
from .arguments import (
    DTYPES,
    Result,
    add_file_arguments,
    add_render_arguments,
    check_numbers,
    check_text_width,
    choose_profile,
    chosen_switch,
    embeddings,
    inspect_weights,
    parse_size,
    pick_device,
    read_text,
)
from .render import checked_needs, demo_timeline, note_unknown_words, planner, render_one, toy_codec, with_kept_roles

DEFAULT_METHODS = ("head_forcing", "self_forcing_window_21", "infinity_rope")


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `compare` to the command line."""
    sub = command("compare", compare, "One timeline and seed through several methods: videos side by side, one table.")
    sub.add_argument(
        "--methods", nargs="+", default=DEFAULT_METHODS, help=f"names, as of --method ({' '.join(DEFAULT_METHODS)})"
    )
    add_source_arguments(sub)


def add_source_arguments(sub: argparse.ArgumentParser, required: bool = True) -> None:
    """The model, the timeline and the folder of a comparison."""
    source = sub.add_mutually_exclusive_group(required=required)
    source.add_argument("--demo", action="store_true", help="the embedded toy model")
    source.add_argument("--weights", type=Path, help="checkpoint, .safetensors or .pt; needs --prompts and --vae")
    sub.add_argument("--prompts", help="a timeline or one prompt, or @FILE; default with --demo: its story")
    sub.add_argument("--seconds", type=float, default=0.0, help="length; default: the timeline's")
    sub.add_argument("--out", type=Path, default=Path("output/compare"), help="folder (output/compare)")
    sub.add_argument("--scale", type=int, default=6, help="with --demo: every pixel becomes a square of this side (6)")
    add_file_arguments(sub)
    add_render_arguments(sub)


def compare(args: argparse.Namespace) -> Result:
    """Render, measure, and write `grid.mp4`, `comparison.md` and `comparison.json` beside the videos."""
    rows, about = run_entries(args, entries_of(",".join(args.methods)), [args.seed])
    made = grid(args.out / "grid.mp4", rows, metadata=grid_tags(rows, about))
    notes = method_notes(rows)
    found = {
        "about": about,
        "grid": {"video": str(made.path), "pictures": made.video_frames, "width": made.width, "height": made.height},
        "rows": [row.to_dict() for row in rows],
        "notes": notes,
    }
    text = "\n".join([table(rows), "", NOTE, "", *notes])
    return written(args.out, "comparison", text, found, [f"grid     {made.path}"])


def grid_tags(rows: Sequence[Compared], about: dict[str, Any]) -> dict[str, str]:
    """What the file of a grid says about itself, in the form of other videos' tags."""
    labels, shared = [row.entry.label for row in rows if row.seed == rows[0].seed], dict(about)
    del shared["seeds"]
    return {"head_forcing": json.dumps({"methods": labels, "seed": rows[0].seed, **shared})}


def written(folder: Path, name: str, text: str, found: dict[str, Any], files: Sequence[str] = ()) -> Result:
    """A result that also stands in a folder, as Markdown and JSON."""
    paths = [folder / f"{name}.md", folder / f"{name}.json"]
    for path, content in zip(paths, (text + "\n", json.dumps(found, indent=1)), strict=True):
        with replacing(path) as temporary:
            temporary.write_text(content, encoding="utf-8")
    return {"text": "\n".join([text, "", *files, *(f"table    {path}" for path in paths)]), "json": found}


def run_entries(
    args: argparse.Namespace, entries: Sequence[Entry], seeds: Sequence[int]
) -> tuple[list[Compared], dict[str, Any]]:
    """Render every entry with every seed, one after another, and say what they have in common.

    What cannot be rendered is refused before the first.
    """
    source = Source.inspect(args)
    check_writable(args.out / "probe")
    todo = [(entry, seed, own_arguments(args, entry, seed)) for entry in entries for seed in seeds]
    planned = [source.planned(entry, own) for entry, _, own in todo]
    plans = [make(profile=choose_profile(args.profile)) for make in planned]
    one_of = source.dtype, source.device, source.info
    options: dict[str, Any] = {"scale": source.scale, "decode": source.decode, "disk": False}
    needs = [
        checked_needs(own, plan, *one_of, own.video, **options) for (*_, own), plan in zip(todo, plans, strict=True)
    ]
    check_disk(in_turn(needs), args.runs, args.out)
    loaded = source.load(encodes=any(plan.restart_frames for plan in plans))
    rows = [loaded.render(entry, seed, own, make) for (entry, seed, own), make in zip(todo, planned, strict=True)]
    return rows, {"seeds": list(seeds), **source.about(plans[0])}


def own_arguments(args: argparse.Namespace, entry: Entry, seed: int) -> argparse.Namespace:
    """The arguments as one entry's render takes them."""
    video = args.out / f"{entry.key}-seed{seed}.mp4"
    return argparse.Namespace(
        **vars(args) | {"method": entry.method, "roles": entry.roles, "seed": seed, "video": video}
    )


@dataclass(frozen=True)
class Source:
    """What all entries share, before anything heavy is loaded."""

    args: argparse.Namespace
    info: CheckpointInfo
    timeline: Timeline
    size: tuple[int, int]
    device: torch.device
    dtype: torch.dtype
    decode: int

    @classmethod
    def inspect(cls, args: argparse.Namespace) -> Source:
        """From `--demo`, or from `--weights` and what goes with them."""
        check_numbers(args)
        device = pick_device(args.device)
        if args.demo:
            timeline = demo_timeline(args)
            note_unknown_words([segment.text for segment in timeline.segments])
            size = (assets.LATENT_WIDTH * 8, assets.LATENT_HEIGHT * 8)
            return cls(args, inspect_checkpoint(assets.model_path()), timeline, size, device, torch.float32, 0)
        if args.prompts is None or args.vae is None:
            raise HeadForcingError("--weights needs --prompts, and --vae, the Wan 2.1 VAE, to make videos")
        from ..video.wan_vae import decode_bytes

        width, height = parse_size(args.size)
        timeline = parse_timeline(read_text(args.prompts), args.seconds or None, switch=chosen_switch(args))
        dtype = DTYPES[args.dtype]
        decode = decode_bytes(args.vae, (height, width), dtype)
        return cls(args, inspect_weights(args), timeline, (width, height), device, dtype, decode)

    @property
    def scale(self) -> int:
        return self.args.scale if self.args.demo else 1

    def planned(self, entry: Entry, own: argparse.Namespace) -> Callable[..., RenderPlan]:
        """What makes an entry's plan from a head profile; names the entry in what it refuses."""
        make = planner(own, self.info, self.timeline, *self.size, policy=entry.policy)

        def named(**profile: Any) -> RenderPlan:
            try:
                return make(**profile)
            except HeadForcingError as error:
                raise HeadForcingError(f"{entry.label}: {error}") from error

        return named

    @property
    def texts(self) -> list[str]:
        return [segment.text for segment in self.timeline.segments]

    def about(self, plan: RenderPlan) -> dict[str, Any]:
        """What all videos of a comparison are made from; `plan` is one of theirs."""
        clock, args = plan.timeline.clock, self.args
        return {
            "prompts": [segment.text for segment in plan.timeline.segments],
            "starts_seconds": [picture / clock.fps for picture in plan.start_video_frames],
            "seconds": plan.video_frames / clock.fps,
            "frames_per_block": clock.frames_per_block,
            "size": f"{plan.width}x{plan.height}",
            "weights": self.info.path.name,
            "fingerprint": self.info.fingerprint,
            "lora": None if args.lora is None else args.lora.name,
            "model_family": args.model_family,
            "profile": str(args.profile or "bundled"),
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            "versions": versions(),
        }

    def load(self, encodes: bool, embeds: list[Tensor] | None = None) -> Loaded:
        """Text first, so that the text encoder is gone before the weights come; `embeds` where it is encoded before.

        `encodes` if a method needs the VAE for that, too.
        """
        args = self.args
        attention = attention_function(args.attention, self.device, self.dtype, self.info.config.head_dim)
        if args.demo:
            embeds = embeds or [word_hash.encode(text) for text in self.texts]
            codec = toy_codec(self.device)
            state_dict, _ = load_state_dict(assets.model_path())
        else:
            from ..video.wan_vae import load_codec

            embeds = embeds or embeddings(args, self.texts, self.device)
            check_text_width(embeds[0], self.info.config.text_dim)
            codec = load_codec(args.vae, self.device, self.dtype, encodes)
            state_dict, _ = load_state_dict(args.weights, num_heads=args.num_heads, lora=args.lora)
        backbone = WanModel.from_state_dict(self.info.config, state_dict, self.dtype, self.device)
        return Loaded(self, attention, embeds, codec, backbone)


@dataclass(frozen=True)
class Loaded:
    """A source with its model, texts and decoder in memory."""

    source: Source
    attention: AttentionFunction
    embeds: list[Tensor]
    codec: FrameCodec
    backbone: WanModel

    def render(self, entry: Entry, seed: int, own: argparse.Namespace, make: Callable[..., RenderPlan]) -> Compared:
        """Make and measure one entry's video; with `--runs` its finished blocks are reused."""
        source = self.source
        plan = make(profile=choose_profile(own.profile))
        embeds = plan.embeddings(self.embeds)
        plan = with_kept_roles(own, make, plan, source.info, embeds, source.dtype)
        result = render_one(
            own,
            plan,
            source.info,
            self.backbone,
            embeds,
            source.dtype,
            source.device,
            self.attention,
            own.video,
            self.codec,
            source.scale,
            latent_format=None if own.demo else "Wan21",
        )
        assert result.run is not None  # a render always tells
        took, reused = result.seconds_per_block, result.reused_blocks
        return measured(entry, seed, plan, source.dtype, own.video, result.run, took, reused)
