"""What the commands that make videos do. Each takes the parsed arguments and returns its result as text and JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tqdm import tqdm

from ..cache.method import Method
from ..demo import assets, word_hash
from ..demo.autoencoder import ToyStreamingDecoder
from ..errors import HeadForcingError
from ..files import check_writable, replacing
from ..head_profiles.auto import recall, remember
from ..methods.registry import describe_method, method_policy, method_schedule
from ..model.attention import AttentionFunction, attention_function
from ..model.compiled import compiled_forward
from ..model.cuda_graph import GraphedForward
from ..model.wan import WanModel
from ..render.block_keys import finished_blocks, goes_on, setup_hash, video_keys
from ..render.describe import describe
from ..render.plan import RenderPlan
from ..render.provenance import about_video, attention_name, file_tags
from ..render.resources import Needs, check_disk, check_memory, needs_of
from ..render.to_files import RenderResult, load_latents, partial_path, render
from ..render.video_rollout import VideoRollout
from ..rollout.wan_video_model import WanVideoModel
from ..runs.folder import RunFolder, count_blocks
from ..studies.replay import Case
from ..studies.replay import replay as run_case
from ..timeline.timeline import Timeline, parse_timeline
from ..video.restarts import FrameCodec
from ..video.stream import contact_sheet
from ..weights.checkpoint import CheckpointInfo, inspect_checkpoint, load_state_dict
from .arguments import (
    DTYPES,
    Result,
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


def demo(args: argparse.Namespace) -> Result:
    info, device = inspect_checkpoint(assets.model_path()), pick_device(args.device)
    attention = attention_function(args.attention, device, torch.float32, info.config.head_dim)
    timeline = demo_timeline(args)
    make = planner(args, info, timeline, assets.LATENT_WIDTH * 8, assets.LATENT_HEIGHT * 8)
    plan = make(profile=choose_profile(args.profile))
    texts = [segment.text for segment in timeline.segments]
    note_unknown_words(texts)
    state_dict, _ = load_state_dict(assets.model_path())
    model = WanModel.from_state_dict(info.config, state_dict, torch.float32, device)
    codec = toy_codec(device)
    embeds = plan.embeddings([word_hash.encode(text) for text in texts])
    plan = with_kept_roles(args, make, plan, info, embeds, torch.float32)
    video, sheet = args.out / "demo.mp4", args.out / "demo.png"
    needs = checked_needs(args, plan, torch.float32, device, info, video, args.scale)
    result = render_one(args, plan, info, model, embeds, torch.float32, device, attention, video, codec, args.scale)
    starts = [(timeline.clock.start_seconds(segment.start_block), segment.text) for segment in timeline.segments]
    labels = [(start, text) for start, text in starts if start * timeline.clock.fps < plan.video_frames]
    contact_sheet(video, sheet, labels=labels)
    about = [*describe_method(args.method), describe(plan, torch.float32), "", needs.describe(), "", result.describe()]
    return {
        "text": "\n".join([*about, f"sheet    {sheet}"]),
        "json": {**result.report(), "needs": asdict(needs), "contact_sheet": str(sheet)},
    }


def generate(args: argparse.Namespace) -> Result:
    if args.out is None and args.latents is None:
        raise HeadForcingError("nothing to write: give --out VIDEO.mp4, --latents FILE.safetensors or both")
    if args.out is not None and args.vae is None:
        raise HeadForcingError("--out needs --vae, the Wan 2.1 VAE; or write --latents and decode them in ComfyUI")
    check_writable(args.out)
    check_writable(args.latents)
    width, height = parse_size(args.size)
    timeline = parse_timeline(read_text(args.prompts), args.seconds or None, switch=chosen_switch(args))
    info = inspect_weights(args)
    start = None if args.start_latents is None else load_latents(args.start_latents, (width, height))
    device, dtype = pick_device(args.device), DTYPES[args.dtype]
    attention = attention_function(args.attention, device, dtype, info.config.head_dim)
    make = planner(args, info, timeline, width, height, start)
    plan = make(profile=choose_profile(args.profile))
    plan.check_encoder(args.vae is not None, "give --vae, the Wan 2.1 VAE")
    texts = [segment.text for segment in timeline.segments]
    embeds = plan.embeddings(embeddings(args, texts, device))
    check_text_width(embeds[0], info.config.text_dim)
    plan = with_kept_roles(args, make, plan, info, embeds, dtype, start)
    codec, decode, encodes = None, 0, bool(plan.restart_frames)
    if args.out is not None or encodes:
        from ..video.wan_vae import decode_bytes, load_codec

        decode = decode_bytes(args.vae, (height, width), dtype)
    needs = checked_needs(args, plan, dtype, device, info, args.out, decode=decode)
    if args.out is not None or encodes:
        codec = load_codec(args.vae, device, dtype, encodes)
    state_dict, _ = load_state_dict(args.weights, num_heads=args.num_heads, lora=args.lora)
    model = WanModel.from_state_dict(info.config, state_dict, dtype, device)
    del state_dict
    files: dict[str, Any] = {"latents": args.latents, "start": start, "latent_format": "Wan21"}
    result = render_one(args, plan, info, model, embeds, dtype, device, attention, args.out, codec, **files)
    about = [*describe_method(args.method), describe(plan, dtype), "", needs.describe(), "", result.describe()]
    return {
        "text": "\n".join([info.summary(), *about]),
        "json": {**result.report(), "needs": asdict(needs)},
    }


def replay(args: argparse.Namespace) -> Result:
    check_writable(args.out)
    check_writable(args.events)
    done = run_case(Case.open(args.case), args.run_name, args.device, args.attention)
    with replacing(args.out) as temporary:
        save_file({"latents": done.latents.contiguous()}, temporary)
    if args.events is not None:
        events = {"memory_events": done.memory_events, "final_episodic_sources": done.final_episodic_sources}
        with replacing(args.events) as temporary:
            temporary.write_text(json.dumps(events, indent=1), encoding="utf-8")
    summary = {"latents": str(args.out), "frames": len(done.latents), "memory_events": done.memory_events}
    return {"text": f"{len(done.latents)} latent frames in {args.out}", "json": summary}


def demo_timeline(args: argparse.Namespace) -> Timeline:
    """The timeline of `--prompts`, or the embedded story."""
    switch = chosen_switch(args)
    if args.prompts:
        return parse_timeline(read_text(args.prompts), args.seconds or None, switch=switch)
    # cut, or held, by the plan when another length is asked for
    return parse_timeline(assets.DEMO_STORY, assets.DEMO_SECONDS, switch=switch)


def toy_codec(device: torch.device) -> FrameCodec:
    """The embedded model's VAE."""
    network = assets.load_autoencoder(device)
    return FrameCodec(partial(ToyStreamingDecoder, network), network, lambda picture: network.encode(picture[None]))


def note_unknown_words(texts: Sequence[str]) -> None:
    """Say on stderr which words the embedded model has never seen."""
    for unknown in (word_hash.check_prompt(text) for text in texts):
        if unknown:
            sys.stderr.write(f"note: the toy world does not know {', '.join(unknown)}. {word_hash.HELP}\n")


def planner(
    args: argparse.Namespace,
    info: CheckpointInfo,
    timeline: Timeline,
    width: int,
    height: int,
    start: torch.Tensor | None = None,
    policy: Method | None = None,
) -> Callable[..., RenderPlan]:
    """What makes the plan of a render once its `profile` is given; `policy` stands in for that of `args.method`."""
    check_numbers(args)
    memory = (args.episodic_frames, args.recent_frames, args.novelty_threshold, args.update_interval)
    policy = policy or method_policy(args.method)
    return partial(
        RenderPlan.make,
        info.config,
        policy.with_memory(*memory),
        method_schedule(policy, args.model_family, args.sigmas),
        timeline,
        width,
        height,
        args.seconds,
        start_frames=0 if start is None else len(start),
        roles=args.roles,
        seed=args.seed,
        family=args.model_family,
    )


def with_kept_roles(
    args: argparse.Namespace,
    make: Callable[..., RenderPlan],
    plan: RenderPlan,
    info: CheckpointInfo,
    embeds: Sequence[torch.Tensor],
    dtype: torch.dtype,
    start: torch.Tensor | None = None,
) -> RenderPlan:
    """The plan with the roles that were found for this model; but a video that began by finding them goes on so."""
    if plan.auto is None:
        return plan
    if args.runs is not None:
        setup = setup_hash(plan, info.fingerprint, args.seed, 0, dtype, start)
        if finished_blocks(args.runs, setup, video_keys(plan, setup, embeds)):
            return plan
    return make(profile=recall(args.found_profiles, info.fingerprint, plan.auto) or plan.auto)


def checked_needs(
    args: argparse.Namespace,
    plan: RenderPlan,
    dtype: torch.dtype,
    device: torch.device,
    info: CheckpointInfo,
    video: Path | None,
    scale: int = 1,
    decode: int = 0,
    disk: bool = True,
) -> Needs:
    """What the render will take; refuses what cannot be rendered, cannot fit, or cannot be written.

    Without `disk` the room there is not looked at: one of several renders says nothing about all of them.
    """
    plan.check_warm_up()
    if args.cuda_graph and device.type != "cuda":
        raise HeadForcingError(f"--cuda-graph needs a CUDA device, got {device}")
    for folder in (args.runs, video and video.parent):
        check_writable(folder and folder / "probe")
    options: dict[str, Any] = {"kept": args.runs is not None, "state": args.state_seconds > 0, "scale": scale}
    needs = needs_of(
        plan, dtype, info.parameters * dtype.itemsize, decode=decode, writes_video=video is not None, **options
    )
    if device.type == "cuda":
        check_memory(needs, plan, dtype, torch.cuda.mem_get_info(device)[1], streams_weights=False)
    if disk:
        check_disk(needs, args.runs, video and video.parent)
    return needs


def render_one(
    args: argparse.Namespace,
    plan: RenderPlan,
    info: CheckpointInfo,
    backbone: WanModel,
    embeds: Sequence[torch.Tensor],
    dtype: torch.dtype,
    device: torch.device,
    attention: AttentionFunction,
    path: Path | None,
    codec: FrameCodec | None,
    scale: int = 1,
    latents: Path | None = None,
    start: torch.Tensor | None = None,
    latent_format: str | None = None,
) -> RenderResult:
    """Render one video to `path`, in a run folder where one is given, and keep roles that were found.

    `codec` is not needed where nothing is decoded; `latent_format` is ComfyUI's name for the latents' scale, for its
    nodes that load a run.
    """
    model = WanVideoModel(backbone, embeds, dtype, device)
    about = about_video(plan, args.method, args.seed, latent_format)
    about["weights"] = info.path.name
    about["attention"] = attention_name(attention, args.attention, device, dtype, info.config.head_dim)
    if args.compile:
        model.forward = compiled_forward()
    if args.cuda_graph:
        model.forward = GraphedForward(forward=model.forward)
    options: dict[str, Any] = {
        "dtype": dtype,
        "device": device,
        "attention": attention,
        "start_latents": start,
        "reencode": None if codec is None else codec.reencode,
    }
    with ExitStack() as stack:
        if args.runs is not None:
            setup = setup_hash(plan, info.fingerprint, args.seed, 0, dtype, start)
            autoencoder = codec.fingerprint() if codec is not None and plan.restart_frames else ""
            keys = video_keys(plan, setup, embeds, autoencoder)
            run = stack.enter_context(RunFolder(args.runs, setup, about))
            run.save_video(keys, about)
            options |= {"run": run, "keys": keys, "state_seconds": args.state_seconds}
        video = VideoRollout(plan, args.seed, **options)
        bar = stack.enter_context(
            tqdm(total=plan.steps, initial=video.reused_steps, unit="step", desc="sampling", disable=args.json)
        )
        try:
            result = render(
                model,
                video,
                mp4=None if path is None or codec is None else (path, codec.decoder(plan.restart_frames)),
                latents=latents,
                scale=scale,
                metadata=file_tags(about),
                on_step=lambda block, step, clean: bar.update(clean is not None),
            )
        except torch.OutOfMemoryError as error:
            raise HeadForcingError(
                "out of memory: choose a smaller --size, fewer --episodic-frames, or write --latents and decode them "
                f"later; {_what_is_kept(video, path)}"
            ) from error
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(_what_is_kept(video, path)) from stop
    if result.found_profile is not None and result.found_now:
        remember(args.found_profiles, info.fingerprint, result.found_profile)
    return replace(result, attention=about["attention"])


def _what_is_kept(video: VideoRollout, path: Path | None) -> str:
    """What is left of a render that ended early, and how to go on."""
    run, partial = video.run, None if path is None else partial_path(path)
    kept = "without --runs FOLDER no block is kept"
    if run is not None:
        kept = f"{count_blocks(run.folder, video.keys)} of {len(video.keys)} blocks are kept in {run.folder}, "
        kept += "the same command goes on" if goes_on(video.plan) else "but with this method a video begins again"
    if partial is not None and partial.is_file():
        kept += f"; the video so far is {partial}"
    return kept
