"""The command line: `headforcing demo | generate | replay | inspect | convert`."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from tqdm import tqdm

from .attention import BACKENDS
from .checkpoint import convert, inspect_checkpoint, load_state_dict
from .demo import assets, word_hash
from .demo.autoencoder import ToyStreamingDecoder
from .errors import HeadForcingError
from .files import replacing
from .plan import RenderPlan, format_bytes
from .policy import PRESETS, ROLE_ARRANGEMENTS, CachePolicy, preset
from .profile import HeadProfile, bundled_profiles, load_profile
from .render import RenderResult, load_latents, render
from .replay import Case, replay
from .schedule import SCHEDULES, schedule
from .timeline import Timeline, parse_timeline
from .video import contact_sheet
from .wan import WanModel

if TYPE_CHECKING:
    from .text import TextEncoder

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit codes: 0 done, 1 failed, 2 wrong input (one sentence on stderr), 130 interrupted."""
    args = _parser().parse_args(argv)
    try:
        result = args.run(args)
    except HeadForcingError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    if args.json:
        sys.stdout.write(json.dumps(result["json"]) + "\n")
    else:
        sys.stdout.write(result["text"] + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headforcing", description="Minute-long video from five-second models.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        sub.add_argument("--json", action="store_true", help="print one JSON object, for programs")
        return sub

    sub = command("demo", _demo, "A one-minute, three-prompt video with the embedded toy model; no download.")
    sub.add_argument("--out", type=Path, default=Path("output"), help="folder for demo.mp4 and demo.png (output)")
    sub.add_argument("--prompts", help="a timeline in the toy world's words, or @FILE; " + word_hash.HELP)
    sub.add_argument("--seconds", type=float, default=0.0, help="length; default: the story's 60")
    sub.add_argument("--scale", type=int, default=6, help="every pixel becomes a square of this side (6: 384x384)")
    _add_common(sub)

    sub = command("generate", _generate, "A video from Self Forcing weights (or a relative) and prompts.")
    sub.add_argument("--weights", type=Path, required=True, help="checkpoint, .safetensors or .pt")
    sub.add_argument("--lora", type=Path, help="LoRA to merge, such as LongLive's")
    sub.add_argument("--prompts", required=True, help="a timeline or one prompt, or @FILE")
    sub.add_argument("--seconds", type=float, default=0.0, help="length; default: the timeline's")
    sub.add_argument("--size", default="832x480", help="WIDTHxHEIGHT in pixels (832x480)")
    sub.add_argument("--text-encoder", type=Path, help="umT5-xxl encoder, ComfyUI's or the original file")
    sub.add_argument("--embeddings", type=Path, help="precomputed prompt embeddings instead of a text encoder")
    sub.add_argument("--vae", type=Path, help="Wan 2.1 VAE; needed for --out")
    sub.add_argument("--out", type=Path, help="MP4 to write")
    sub.add_argument("--latents", type=Path, help="latents to write (.safetensors)")
    sub.add_argument("--start-latents", type=Path, help="latents of a video to go on from")
    sub.add_argument("--num-heads", type=int, help="only for models whose heads are not 128 wide")
    sub.add_argument("--dtype", choices=DTYPES, default="bf16", help="compute dtype (bf16)")
    _add_common(sub)

    sub = command("replay", _replay, "Run a recorded case again and write its latents: parity checks, bug reports.")
    sub.add_argument("case", type=Path, help="folder with config.json")
    sub.add_argument("--run", dest="run_name", required=True, help="name of the run in config.json")
    sub.add_argument("--out", type=Path, required=True, help="safetensors file to write, tensor `latents`")
    sub.add_argument("--events", type=Path, help="JSON file for the memory events")
    sub.add_argument("--device", default="cpu")
    sub.add_argument("--attention", default="auto", choices=["auto", *BACKENDS, "reference"])

    sub = command("inspect", _inspect, "Say what a checkpoint or head profile is, and what a minute with it needs.")
    sub.add_argument("file", type=Path)
    sub.add_argument("--num-heads", type=int)

    sub = command(
        "convert", _convert, "One bf16 copy of a checkpoint as .safetensors with metadata (2.84 GB for 1.3B)."
    )
    sub.add_argument("file", type=Path)
    sub.add_argument("out", type=Path, help="new .safetensors file")
    sub.add_argument("--weights", default="auto", help="which copy: auto, generator_ema, generator (auto)")
    sub.add_argument("--lora", type=Path, help="LoRA to merge")
    sub.add_argument("--lora-strength", type=float, default=1.0)
    sub.add_argument("--num-heads", type=int)
    sub.add_argument("--frames-per-block", type=int, help="recorded in the file: 3 chunkwise, 1 framewise")
    sub.add_argument("--dtype", choices=DTYPES, default="bf16")
    return parser


def _add_common(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--seed", type=int, default=0)
    sub.add_argument("--profile", help=f"head profile: a file, or {', '.join(bundled_profiles())}")
    sub.add_argument("--method", choices=PRESETS, default="head_forcing")
    sub.add_argument("--roles", choices=ROLE_ARRANGEMENTS, default="profile")
    sub.add_argument("--schedule", choices=SCHEDULES, default="self_forcing")
    sub.add_argument("--sigmas", default="", help="other noise levels, '1, 0.9375, 0.8333, 0.625'")
    sub.add_argument("--episodic-frames", type=int, default=5)
    sub.add_argument("--recent-frames", type=int, default=3)
    sub.add_argument("--novelty-threshold", type=float, default=0.95)
    sub.add_argument("--update-interval", type=int, default=3)
    sub.add_argument("--device", default="auto", help="auto, cpu, cuda, mps (auto)")
    sub.add_argument("--attention", default="auto", choices=["auto", *BACKENDS])


# --- commands --------------------------------------------------------------------------------------------------------


def _demo(args: argparse.Namespace) -> dict[str, Any]:
    config, device = assets.TOY_CONFIG, _device(args.device)
    timeline = parse_timeline(_text(args.prompts) if args.prompts else assets.DEMO_STORY, args.seconds or None)
    if not args.prompts:
        timeline = parse_timeline(assets.DEMO_STORY, assets.DEMO_SECONDS)
    plan = _plan(args, config, timeline, assets.LATENT_WIDTH * 8, assets.LATENT_HEIGHT * 8)
    texts = [segment.text for segment in timeline.segments]
    for unknown in (word_hash.check_prompt(text) for text in texts):
        if unknown:
            sys.stderr.write(f"note: the toy world does not know {', '.join(unknown)}. {word_hash.HELP}\n")
    state_dict, _ = load_state_dict(assets.model_path(), num_heads=config.num_heads)
    model = WanModel.from_state_dict(config, state_dict, torch.float32, device)
    decoder = ToyStreamingDecoder(assets.load_autoencoder(device))
    embeds = [word_hash.encode(text) for text in texts]
    video, sheet = args.out / "demo.mp4", args.out / "demo.png"
    result = _render(args, plan, model, embeds, torch.float32, device, (video, decoder), None, scale=args.scale)
    labels = [(timeline.clock.start_seconds(s.start_block), s.text) for s in timeline.segments]
    contact_sheet(video, sheet, labels=labels)
    return {
        "text": f"{plan.describe(torch.float32)}\n\n{result.describe()}\nsheet    {sheet}",
        "json": {**result.report(), "contact_sheet": str(sheet)},
    }


def _generate(args: argparse.Namespace) -> dict[str, Any]:
    if args.out is None and args.latents is None:
        raise HeadForcingError("nothing to write: give --out VIDEO.mp4, --latents FILE.safetensors or both")
    if args.out is not None and args.vae is None:
        raise HeadForcingError("--out needs --vae, the Wan 2.1 VAE; or write --latents and decode them in ComfyUI")
    width, height = _size(args.size)
    timeline = parse_timeline(_text(args.prompts), args.seconds or None)
    info = inspect_checkpoint(args.weights, num_heads=args.num_heads)
    start = None if args.start_latents is None else load_latents(args.start_latents, (width, height))
    plan = _plan(args, info.config, timeline, width, height, 0 if start is None else len(start))
    device, dtype = _device(args.device), DTYPES[args.dtype]
    texts = [segment.text for segment in timeline.segments]
    embeds = _embeddings(args, texts, device)
    _check_text_width(embeds[0], info.config.text_dim)
    decoder = None
    if args.out is not None:
        from .wan_vae import load_streaming_decoder

        decoder = (args.out, load_streaming_decoder(args.vae, device, dtype))
    state_dict, _ = load_state_dict(args.weights, num_heads=args.num_heads, lora=args.lora)
    model = WanModel.from_state_dict(info.config, state_dict, dtype, device)
    del state_dict
    result = _render(args, plan, model, embeds, dtype, device, decoder, args.latents, start=start)
    return {"text": f"{info.summary()}\n{plan.describe(dtype)}\n\n{result.describe()}", "json": result.report()}


def _replay(args: argparse.Namespace) -> dict[str, Any]:
    done = replay(Case.open(args.case), args.run_name, args.device, args.attention)
    with replacing(args.out) as temporary:
        save_file({"latents": done.latents.contiguous()}, temporary)
    if args.events is not None:
        events = {"memory_events": done.memory_events, "final_episodic_sources": done.final_episodic_sources}
        with replacing(args.events) as temporary:
            temporary.write_text(json.dumps(events, indent=1), encoding="utf-8")
    summary = {"latents": str(args.out), "frames": len(done.latents), "memory_events": done.memory_events}
    return {"text": f"{len(done.latents)} latent frames in {args.out}", "json": summary}


def _inspect(args: argparse.Namespace) -> dict[str, Any]:
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
    lines, found = [info.summary()], {"family": info.family, "parameters": info.parameters, "layout": info.layout}
    try:
        minute = parse_timeline("a minute", 60.0)
        plan = RenderPlan.make(info.config, CachePolicy(), schedule("self_forcing"), minute, 832, 480)
        lines += ["a minute at 832x480:", plan.describe(torch.bfloat16)]
        found["cache_bytes_832x480"] = plan.shape.bytes(torch.bfloat16)
    except HeadForcingError as error:
        lines.append(str(error))
    return {"text": "\n".join(lines), "json": {**found, "fingerprint": info.fingerprint}}


def _convert(args: argparse.Namespace) -> dict[str, Any]:
    with tqdm(unit="B", unit_scale=True, desc="convert", disable=args.json) as bar:

        def on_progress(written: int, total: int) -> None:
            bar.total = total
            bar.update(written - bar.n)

        info = convert(
            args.file,
            args.out,
            weights=args.weights,
            dtype=DTYPES[args.dtype],
            lora=args.lora,
            lora_strength=args.lora_strength,
            num_heads=args.num_heads,
            frames_per_block=args.frames_per_block,
            on_progress=on_progress,
        )
    size = args.out.stat().st_size
    found = {"out": str(args.out), "bytes": size, "fingerprint": info.fingerprint}
    return {"text": f"{info.summary()}\nwrote {args.out}, {format_bytes(size)}", "json": found}


# --- shared ----------------------------------------------------------------------------------------------------------


def _plan(
    args: argparse.Namespace, config: Any, timeline: Timeline, width: int, height: int, start_frames: int = 0
) -> RenderPlan:
    memory = (args.episodic_frames, args.recent_frames, args.novelty_threshold, args.update_interval)
    return RenderPlan.make(
        config,
        preset(args.method).with_memory(*memory),
        schedule(args.schedule, args.sigmas),
        timeline,
        width,
        height,
        args.seconds,
        _profile(args.profile),
        start_frames,
        args.roles,
        args.seed,
    )


def _render(
    args: argparse.Namespace,
    plan: RenderPlan,
    model: WanModel,
    embeds: list[torch.Tensor],
    dtype: torch.dtype,
    device: torch.device,
    video: Any,
    latents: Path | None,
    start: torch.Tensor | None = None,
    scale: int = 1,
) -> RenderResult:
    tags = {"seed": args.seed, "method": args.method, "prompts": [s.text for s in plan.timeline.segments]}
    with tqdm(total=plan.steps, unit="step", desc="sampling", disable=args.json) as bar:
        return render(
            model,
            embeds,
            plan,
            args.seed,
            dtype=dtype,
            device=device,
            attention=args.attention,
            start_latents=start,
            video=video,
            latents=latents,
            scale=scale,
            metadata={"head_forcing": json.dumps(tags)},
            on_step=lambda block, step, clean: bar.update(clean is not None),
        )


def _embeddings(args: argparse.Namespace, texts: list[str], device: torch.device) -> list[torch.Tensor]:
    from .text import load_embeddings, load_text_encoder

    if (args.text_encoder is None) == (args.embeddings is None):
        raise HeadForcingError("give either --text-encoder (a umT5-xxl file) or --embeddings (precomputed)")
    if args.embeddings is not None:
        stored = load_embeddings(args.embeddings)
        return [stored[text] for text in texts]
    encoder: TextEncoder = load_text_encoder(args.text_encoder, device)
    return encoder.encode(texts)


def _check_text_width(embeds: torch.Tensor, expected: int) -> None:
    if embeds.shape[-1] != expected:
        raise HeadForcingError(f"the model reads text embeddings of width {expected}, got {embeds.shape[-1]}")


def _profile(name: str | None) -> HeadProfile | None:
    if name is None:
        return None
    return load_profile(bundled_profiles().get(name, Path(name)))


def _text(value: str) -> str:
    if not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise HeadForcingError(f"the prompts file {value[1:]!r} cannot be read as UTF-8 text: {error}") from error


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    if match is None:
        raise HeadForcingError(f"--size must look like 832x480, got {text!r}")
    return int(match[1]), int(match[2])


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise HeadForcingError(f"--device {name!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return device
