"""The arguments of all commands; nothing heavy is imported, so that help and mistakes take no
seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import names
from ..demo import words
from ..plan.settings import DEFAULTS
from ..rollout.schedule import SCHEDULES
from .options import OPTIONS
from .parser import (
    COMPARED_FILES,
    DEMO_FILES,
    LATENTS,
    PROFILE,
    PROFILE_OUT,
    READ,
    STORED,
    TEXT,
    VIDEO,
    WRITTEN,
    PathType,
    count,
    folder_written,
    scale,
    subcommands,
)

Container = argparse._ActionsContainer  # a parser, or a group of its arguments
Result = dict[str, Any]  # of a command: {"text": for people, "json": for programs}


def add(
    to: Container,
    name: str,
    kind: Any = None,
    *,
    default: Any = None,
    text: str | None = None,
    **more: Any,
) -> None:
    """Add an argument; what is not given is as in `OPTIONS`.

    `kind` is its type, its choices, or `bool` for one that is given or not.
    """
    if name in OPTIONS:
        known_kind, known_default, known_text, *known_more = OPTIONS[name]
        kind = known_kind if kind is None else kind
        default = known_default if default is None else default
        text = text or known_text
        for settings in known_more:
            more = {**settings, **more}
    if kind is bool:
        more["action"] = "store_true"
    else:
        more |= {"type" if callable(kind) else "choices": kind, "default": default}
    to.add_argument(name, help=text, **more)


def add_known(to: Container, options: str) -> None:
    """Add options of `OPTIONS`, named without their dashes."""
    for name in options.split():
        add(to, f"--{name}")


# --- arguments that several commands have


def add_file_arguments(sub: Container) -> None:
    """Add the arguments that go with `--weights`: LoRA, text encoder, VAE, size and dtype."""
    add_known(sub, "lora size text-encoder embeddings vae decoder park-features num-heads dtype")


def add_render_arguments(sub: Container) -> None:
    """Add the arguments of prompt switches, head profile, noise levels, episodic memory, run folder
    and device.
    """
    add_known(
        sub,
        "seed switch blend-blocks re-anchor profile rule alpha tau-local found-profiles "
        "model-family sigmas episodic-frames",
    )
    add_known(sub, "recent-frames novelty-threshold update-interval runs")
    add_known(sub, "state-seconds device vae-device attention compile fp8-linears")
    sub.set_defaults(peers=None)  # set in a rank


def add_farm_arguments(sub: Container) -> None:
    """Add the arguments of a farm."""
    add_known(sub, "farm farm-gpus farm-workers")


def _add_one_video_arguments(
    sub: argparse.ArgumentParser, story: str, length: str, required: bool
) -> Container:
    """Add what only commands that render one video have: story and length, start and pictures,
    method, several GPUs; returns the group of starts, of which only one can be given."""
    prompts = sub.add_mutually_exclusive_group(required=required)
    add(prompts, "--prompts", TEXT, text=story)
    add(prompts, "--follow")
    add(sub, "--seconds", float, default=0.0, text=f"length; default: {length}")
    start = sub.add_mutually_exclusive_group()
    add_known(start, "start-image start-video")
    add_known(sub, "start-part start-seconds reference audio audio-offset audio-gain")
    add_render_arguments(sub)
    add_known(sub, "method set roles shuffle gpus shard-weights gpu-speeds rank-timeout")
    return start


# --- the commands


def _demo(sub: argparse.ArgumentParser) -> None:
    add(
        sub,
        "--out",
        folder_written(*DEMO_FILES),
        default=Path("output"),
        text="folder for demo.mp4 and demo.png (output)",
    )
    add(
        sub,
        "--scale",
        scale,
        default=6,
        text="every pixel becomes a square of this side (6: 384x384)",
    )
    add(sub, "--latents", WRITTEN, text="latents to write, too (.safetensors)")
    story = f"a timeline in the toy world's words, or @FILE; {words.HELP}"
    _add_one_video_arguments(sub, story, "the story's 60", required=False)


def _generate(sub: argparse.ArgumentParser) -> None:
    add(sub, "--weights", required=True)
    add_file_arguments(sub)
    add(sub, "--out", VIDEO, text="MP4 to write")
    add(sub, "--latents", WRITTEN, text="latents to write (.safetensors)")
    start = _add_one_video_arguments(
        sub, "a timeline or one prompt, or @FILE", "the timeline's", required=True
    )
    add(start, "--start-latents", READ, text="latents of a video to continue")


def _encode(sub: argparse.ArgumentParser) -> None:
    add(sub, "out", WRITTEN, text="safetensors file to write")
    add(sub, "--text-encoder", required=True)
    prompts = "timelines or single prompts, as text or @FILE"
    add(sub, "--prompts", TEXT, text=prompts, nargs="+", required=True)
    add(sub, "--device", text="auto, cpu, cuda, mps (auto); the CPU where it does not fit")
    models = "of the model; longlive2 has texts of its own where a shot begins"
    add(sub, "--model-family", SCHEDULES, default=DEFAULTS.model_family, text=models)


def _decode(sub: argparse.ArgumentParser) -> None:
    text = (
        "safetensors file of generate --latents; or a run folder, or FOLDER/VIDEO in one as `runs "
        "list` names it"
    )
    add(sub, "latents", LATENTS, text=text, metavar="RUN")
    add(sub, "out", VIDEO, text="MP4 to write")
    vae = sub.add_mutually_exclusive_group(required=True)
    add(vae, "--vae", text="VAE of Wan 2.1 or 2.2, or a tiny decoder")
    add(vae, "--demo", bool, text="the embedded model's VAE")
    add(sub, "--scale", scale, default=1, text="every pixel becomes a square of this side (1)")
    add(sub, "--decoder", text="what the file of --vae is (auto)")
    add(sub, "--audio", text="sound of the video, of a sound or video file")
    add_known(sub, "audio-offset audio-gain dtype device")


def _batch(sub: argparse.ArgumentParser) -> None:
    text = (
        "a line is a JSON object with the options of `generate`, or of `demo` with "
        '"demo": true, and a "name"'
    )
    add(sub, "jobs", READ, text=text, metavar="JOBS.jsonl")
    add(sub, "--out", PathType(), text="folder for the videos and their run folders", required=True)
    add(
        sub,
        "--shard",
        default="1/1",
        text="the share of one task of an array: 2/4 is the second of four",
    )
    add_farm_arguments(sub)


def _inspect(sub: argparse.ArgumentParser) -> None:
    add(sub, "file", READ)
    add_known(sub, "num-heads")


def _budget(sub: argparse.ArgumentParser) -> None:
    add_known(sub, "size")
    add(sub, "--seconds", float, default=[60.0, 300.0], nargs="+")
    add(
        sub,
        "--model-family",
        names.LISTED_FAMILIES,
        default="self_forcing",
        text="1.3B or LongLive 2.0 5B",
    )


def _memory(sub: argparse.ArgumentParser) -> None:
    add(sub, "--cards", float, default=list(names.CARDS), text="memory of cards in GiB", nargs="+")
    add(sub, "--sizes", default=["832x480", "480x832"], text="WIDTHxHEIGHT in pixels", nargs="+")
    add(
        sub,
        "--model-family",
        names.LISTED_FAMILIES,
        default="self_forcing",
        text="1.3B or LongLive 2.0 5B",
    )


def _convert(sub: argparse.ArgumentParser) -> None:
    add(sub, "file", READ)
    add(sub, "out", WRITTEN, text="new .safetensors file")
    sub.add_argument(
        "--weights", default="auto", help="which copy: auto, generator_ema, generator (auto)"
    )
    add(sub, "--lora", text="LoRA to merge")
    add(sub, "--lora-strength", float, default=1.0)
    add_known(sub, "num-heads dtype")
    add(sub, "--frames-per-block", int, text="recorded in the file: 3 chunkwise, 1 framewise")
    sub.add_argument(
        "--model-family", choices=SCHEDULES, help="recorded in the file, for --model-family auto"
    )


def _profile(sub: argparse.ArgumentParser) -> None:
    add(
        sub,
        "out",
        PROFILE_OUT,
        text="head profile to write (.json); the measured shares go beside it",
    )
    source = sub.add_mutually_exclusive_group(required=True)
    add(source, "--weights")
    add(source, "--demo", bool, text="the embedded toy model")
    add(
        sub,
        "--demo-weights",
        READ,
        text="with --demo: another model of the toy world, .safetensors",
    )
    add(sub, "--lora", text="LoRA to merge")
    add_known(sub, "num-heads text-encoder embeddings")
    add(
        sub,
        "--prompts",
        TEXT,
        text="one prompt per line, or @FILE; default: twenty that come with the pack",
    )
    add(
        sub,
        "--preset",
        names.BUDGETS,
        default="full",
        text="full: 20 prompts x 30 s; quick: 4 x 30 s",
    )
    add_known(sub, "rule")
    told = "measure return stories, too: which heads look up an earlier visit of a scene (off)"
    add(sub, "--returns", bool, text=told)
    add(
        sub,
        "--rope",
        ["absolute", "contiguous"],
        default="absolute",
        text="absolute: frames keep their index in the video; the paper does not say",
    )
    add(
        sub,
        "--model-family",
        SCHEDULES,
        default="self_forcing",
        text="noise levels and block of the model (self_forcing)",
    )
    add(
        sub,
        "--shard",
        default="1/1",
        text="the share of one machine of a farm: 2/4 is the second of four",
    )
    add_known(sub, "size seed device dtype")
    add_farm_arguments(sub)


def _profiles(parser: argparse.ArgumentParser) -> None:
    command = subcommands(parser)
    sub = command(
        "merge", "profiles.merge", "Add up measurements of the same setup from several machines."
    )
    add(sub, "measured", READ, text="measured shares (.safetensors)", nargs="+")
    add(sub, "--out", PROFILE_OUT, text="head profile to write (.json)", required=True)
    sub = command("compare", "profiles.compare", "Compare two head profiles.")
    add(sub, "profiles", PROFILE, text="files, or names of bundled profiles", nargs=2)
    text = "Where a head profile is from, its roles, and the heads its sources dispute."
    sub = command("show", "profiles.show", text)
    add(sub, "profile", PROFILE, text="file, or name of a bundled profile")
    sub = command("plot", "profiles.plot", "Plot a head profile.")
    add(sub, "profile", PROFILE, text="file, or name of a bundled profile")
    add(sub, "out", WRITTEN, text="PNG to write")
    add(sub, "--measured", READ, text="measured shares: adds stability")
    add_known(sub, "theme")


def _report(sub: argparse.ArgumentParser) -> None:
    add(sub, "video", READ)
    add(sub, "--plot", WRITTEN, text="PNG to write: the metrics as a plot")
    add_known(sub, "theme")
    add(sub, "--frames-per-block", count, text="latent frames; default: read from the file, else 3")
    add(
        sub,
        "--prompts",
        TEXT,
        text="the timeline it was made with, or @FILE; default: read from the file",
    )


def _compare(sub: argparse.ArgumentParser) -> None:
    published = (
        f"{names.ALL}: every published one that the weights allow "
        f"({' '.join(names.COMPARED_METHODS)})"
    )
    add(sub, "--methods", text=f"names, as of --method; {published}", nargs="+")
    source = sub.add_mutually_exclusive_group(required=True)
    add(source, "--demo", bool, text="the embedded toy model")
    add(source, "--weights", text="checkpoint, .safetensors or .pt; needs --prompts and --vae")
    add(
        sub,
        "--prompts",
        TEXT,
        text="a timeline or one prompt, or @FILE; default with --demo: its story",
    )
    add(sub, "--seconds", float, default=0.0, text="seconds; default: the timeline's length")
    add(
        sub,
        "--out",
        folder_written(*COMPARED_FILES),
        default=Path("output/compare"),
        text="folder (output/compare)",
    )
    add(
        sub,
        "--scale",
        scale,
        default=6,
        text="with --demo: every pixel becomes a square of this side (6)",
    )
    add_file_arguments(sub)
    add_render_arguments(sub)
    add_farm_arguments(sub)


def _runs(parser: argparse.ArgumentParser) -> None:
    command = subcommands(parser)
    sub = command(
        "list",
        "report.list_runs",
        "List stored videos: finished blocks, size of the folder, prompt.",
    )
    add(sub, "folder", STORED, text="the folder given to --runs; ComfyUI's is output/head_forcing")
    sub = command(
        "takes",
        "report.list_run_takes",
        "List stored videos as a table: take, date, length, size, prompts.",
    )
    add(
        sub,
        "folder",
        STORED,
        text="as for `runs list`; default: the current folder",
        nargs="?",
        default=Path(),
    )
    text = "Report drift of a stored video's latents, and decisions of episodic memory."
    sub = command("show", "report.show_run", text)
    add(sub, "folder", STORED)
    add(sub, "name", text="as listed, FOLDER/VIDEO; default: the newest", nargs="?")
    add(sub, "--plot", WRITTEN, text="PNG to write: the report as a plot")
    add_known(sub, "theme")
    sub = command(
        "prune",
        "report.prune_runs",
        "Remove the oldest run folders until the others fit into a size.",
    )
    add(sub, "folder", STORED)
    add(
        sub,
        "--keep-gb",
        float,
        text="gigabytes to keep; 0 removes all that are unused",
        required=True,
    )


COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None], str]] = {
    "demo": (
        "render.demo",
        _demo,
        "Render a one-minute, six-prompt video with the embedded toy model; no download.",
    ),
    "generate": (
        "render.generate",
        _generate,
        "Render a video from Self Forcing weights (or a relative) and prompts.",
    ),
    "encode": (
        "files.encode",
        _encode,
        "Write the embeddings of prompts, which `generate --embeddings` reads.",
    ),
    "decode": (
        "files.decode",
        _decode,
        "Decode a stored run, finished or not, or latents of `generate --latents`, to an MP4.",
    ),
    "batch": (
        "batch.batch",
        _batch,
        "Render many videos, named in a file; the same command goes on where it stopped.",
    ),
    "inspect": (
        "files.inspect",
        _inspect,
        "Describe a checkpoint or head profile, and the cache it needs.",
    ),
    "methods": (
        "files.methods",
        lambda sub: None,
        "All methods, with their options and defaults for --set.",
    ),
    "budget": ("files.budget", _budget, "Size of the 1.3B model's KV cache by method and length."),
    "memory": (
        "files.memory",
        _memory,
        "What a minute of the 1.3B model takes, how it fits on a card; by estimate.",
    ),
    "convert": (
        "files.convert",
        _convert,
        "Write one bf16 copy of a checkpoint as .safetensors with metadata.",
    ),
    "profile": (
        "profiles.profile",
        _profile,
        "Measure what every attention head attends to and save a head profile.",
    ),
    "profiles": ("", _profiles, "Merge, compare, describe and plot head profiles."),
    "report": (
        "report.report",
        _report,
        "Measure flicker, seams, drift, freezes and repetition of a video; not VBench.",
    ),
    "compare": (
        "compare.compare",
        _compare,
        "Render one timeline with several methods: videos side by side, one table.",
    ),
    "runs": ("", _runs, "List, show and prune run folders."),
}
"""For each command, in the order of the help: its function, what adds its arguments, and its
help.
"""
