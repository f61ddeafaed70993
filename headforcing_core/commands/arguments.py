"""The arguments of all commands; nothing heavy is imported, so that help and mistakes take no seconds."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import names
from ..demo import words
from ..render.settings import DEFAULTS
from ..rollout.schedule import AUTO_FAMILY, SCHEDULES
from ..timeline.switch import SWITCHES
from .help import HELP
from .parser import (
    COMPARED_FILES,
    DEMO_FILES,
    FOLLOWED,
    LATENTS,
    NAMED,
    PROFILE,
    PROFILE_OUT,
    READ,
    STORE,
    TEXT,
    VIDEO,
    WRITTEN,
    Commands,
    PathType,
    built_method,
    folder_read,
    folder_written,
    seed_number,
    speeds,
)

Result = dict[str, Any]  # of a command: {"text": for people, "json": for programs}
Container = argparse._ActionsContainer  # a parser, or a group of its arguments
THEMES = ("dark", "light")


def add(to: Container, name: str, kind: Any = None, default: Any = None, text: str | None = None, **more: Any) -> None:
    """Add an argument, with the text of `HELP` where it has none of its own.

    `kind` is its type, its choices, or `bool` for one that is given or not.
    """
    if kind is bool:
        more["action"] = "store_true"
    else:
        more |= {"type" if callable(kind) else "choices": kind, "default": default}
    to.add_argument(name, help=text or HELP.get(name), **more)


def _add_settings(sub: Container, *fields: str, choices: Any = None) -> None:
    """Add the arguments of fields of `RenderSettings`, with their types and defaults."""
    for field in fields:
        default = vars(DEFAULTS)[field]
        add(sub, f"--{field.replace('_', '-')}", choices or type(default), default)


# --- arguments that several commands have


def add_file_arguments(sub: argparse.ArgumentParser) -> None:
    """Add the arguments that go with `--weights`: LoRA, text encoder, VAE, size and dtype."""
    add(sub, "--lora", READ)
    add(sub, "--size", default=f"{DEFAULTS.width}x{DEFAULTS.height}")
    add(sub, "--text-encoder", READ)
    add(sub, "--embeddings", READ)
    add(sub, "--vae", READ)
    add(sub, "--decoder", names.DECODERS, "auto")
    add(sub, "--park-features", bool)
    add(sub, "--num-heads", int)
    add(sub, "--dtype", names.DTYPES, "bf16")


def add_render_arguments(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of prompt switches, head profile, noise levels, episodic memory, run folder and device."""
    add(sub, "--seed", seed_number, DEFAULTS.seed)
    add(sub, "--switch", SWITCHES, DEFAULTS.switch.kind)
    add(sub, "--blend-blocks", int, DEFAULTS.switch.blend_blocks)
    add(sub, "--re-anchor", bool)
    add(sub, "--profile", PROFILE)
    add(sub, "--rule", names.RULES)
    add(sub, "--found-profiles", STORE)
    add(sub, "--model-family", (AUTO_FAMILY, *SCHEDULES), AUTO_FAMILY)
    _add_settings(sub, "sigmas", "episodic_frames", "recent_frames", "novelty_threshold", "update_interval")
    _add_settings(sub, "sink_gate", "rope_jitter")
    _add_settings(sub, "compression", choices=names.COMPRESSIONS)
    add(sub, "--runs", STORE)
    _add_settings(sub, "state_seconds")
    add(sub, "--device", default="auto")
    add(sub, "--vae-device", metavar="DEVICE")
    add(sub, "--attention", ["auto", *names.BACKENDS], "auto")
    for option in ("--cuda-graph", "--compile", "--fp8-linears"):
        add(sub, option, bool)


def add_farm_arguments(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of a farm."""
    add(sub, "--farm")
    add(sub, "--farm-gpus", float)
    add(sub, "--farm-workers", int)


def add_metric_arguments(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of metrics that have models of their own."""
    add(sub, "--metric-models", folder_read("*", "*/*"), metavar="FOLDER")
    add(sub, "--metrics", names.METRICS, (), nargs="+", metavar="METRIC")
    add(sub, "--aesthetic-head", READ, metavar="FILE")
    add(sub, "--metric-device", default="auto")


def add_source_arguments(sub: argparse.ArgumentParser, out: PathType, required: bool = True, demo: bool = True) -> None:
    """The model, the timeline and the folder `out` of a comparison; without `demo` the embedded model is no choice."""
    hidden = None if demo else argparse.SUPPRESS  # the option is read and refused with a sentence
    source = sub.add_mutually_exclusive_group(required=required)
    add(source, "--demo", bool, text=hidden or "the embedded toy model")
    add(source, "--weights", READ, text=f"{HELP['--weights']}; needs --prompts and --vae")
    default = "; default with --demo: its story" if demo else ""
    add(sub, "--prompts", TEXT, text=f"a timeline or one prompt, or @FILE{default}")
    add(sub, "--seconds", float, 0.0, "seconds; default: the timeline's length")
    add(sub, "--out", out, Path("output/compare"), "folder (output/compare)")
    add(sub, "--scale", int, 6, hidden or "with --demo: every pixel becomes a square of this side (6)")
    add_file_arguments(sub)
    add_render_arguments(sub)
    add_farm_arguments(sub)


def _add_start_arguments(sub: argparse.ArgumentParser) -> Container:
    """Add what a video can begin with; returns the group of which only one can be given."""
    start = sub.add_mutually_exclusive_group()
    add(start, "--start-image", READ, metavar="FILE")
    add(start, "--start-video", READ, metavar="FILE")
    add(sub, "--start-part", names.PARTS)
    add(sub, "--start-seconds", float)
    return start


def _add_one_video_arguments(sub: argparse.ArgumentParser) -> None:
    """Add what only commands that render one video have: method, and several GPUs."""
    add_render_arguments(sub)
    add(sub, "--method", built_method, DEFAULTS.method, metavar=f"{{{','.join(names.METHODS)}}}")
    add(sub, "--set", action="append", default=[], metavar="NAME=VALUE")
    _add_settings(sub, "roles", choices=names.ROLE_ARRANGEMENTS)
    _add_settings(sub, "shuffle")
    add(sub, "--gpus", int, 1)
    add(sub, "--shard-weights", bool)
    add(sub, "--gpu-speeds", speeds, metavar="A,B,...")
    add(sub, "--rank-timeout", float, metavar="SECONDS")
    sub.set_defaults(peers=None)


# --- the commands


def _demo(sub: argparse.ArgumentParser) -> None:
    add(sub, "--out", folder_written(*DEMO_FILES), Path("output"), "folder for demo.mp4 and demo.png (output)")
    prompts = sub.add_mutually_exclusive_group()
    add(prompts, "--prompts", TEXT, text=f"a timeline in the toy world's words, or @FILE; {words.HELP}")
    add(prompts, "--follow", FOLLOWED, metavar="FILE")
    add(sub, "--seconds", float, 0.0, "length; default: the story's 60")
    add(sub, "--scale", int, 6, "every pixel becomes a square of this side (6: 384x384)")
    _add_start_arguments(sub)
    add(sub, "--reference", NAMED, [], action="append", metavar="NAME=FILE")
    add(sub, "--latents", WRITTEN, text="latents to write, too (.safetensors)")
    _add_one_video_arguments(sub)


def _generate(sub: argparse.ArgumentParser) -> None:
    add(sub, "--weights", READ, required=True)
    prompts = sub.add_mutually_exclusive_group(required=True)
    add(prompts, "--prompts", TEXT, text="a timeline or one prompt, or @FILE")
    add(prompts, "--follow", FOLLOWED, metavar="FILE")
    add(sub, "--seconds", float, 0.0, "length; default: the timeline's")
    add_file_arguments(sub)
    add(sub, "--out", VIDEO, text="MP4 to write")
    add(sub, "--latents", WRITTEN, text="latents to write (.safetensors)")
    add(_add_start_arguments(sub), "--start-latents", READ)
    add(sub, "--reference", NAMED, [], action="append", metavar="NAME=FILE")
    _add_one_video_arguments(sub)


def _encode(sub: argparse.ArgumentParser) -> None:
    add(sub, "out", WRITTEN, text="safetensors file to write")
    add(sub, "--text-encoder", READ, required=True)
    prompts = "timelines or single prompts, as text or @FILE"
    add(sub, "--prompts", TEXT, text=prompts, nargs="+", required=True)
    add(sub, "--device", default="auto", text="auto, cpu, cuda, mps (auto); the CPU where it does not fit")
    models = "of the model; longlive2 has texts of its own where a shot begins"
    add(sub, "--model-family", SCHEDULES, DEFAULTS.model_family, models)


def _decode(sub: argparse.ArgumentParser) -> None:
    text = "safetensors file of generate --latents; or a run folder, or FOLDER/VIDEO in one as `runs list` names it"
    add(sub, "latents", LATENTS, text=text, metavar="RUN")
    add(sub, "out", VIDEO, text="MP4 to write")
    vae = sub.add_mutually_exclusive_group(required=True)
    add(vae, "--vae", READ, text="VAE of Wan 2.1 or 2.2, or a tiny decoder")
    add(vae, "--demo", bool, text="the embedded model's VAE")
    add(sub, "--scale", int, 1, "every pixel becomes a square of this side (1)")
    add(sub, "--decoder", names.DECODERS, "auto", "what the file of --vae is (auto)")
    add(sub, "--dtype", names.DTYPES, "bf16")
    add(sub, "--device", default="auto")


def _batch(sub: argparse.ArgumentParser) -> None:
    text = 'a line is a JSON object with the options of `generate`, or of `demo` with "demo": true, and a "name"'
    add(sub, "jobs", READ, text=text, metavar="JOBS.jsonl")
    add(sub, "--out", PathType(), text="folder for the videos and their run folders", required=True)
    add(sub, "--shard", default="1/1", text="the share of one task of an array: 2/4 is the second of four")
    add_farm_arguments(sub)


def _inspect(sub: argparse.ArgumentParser) -> None:
    add(sub, "file", READ)
    add(sub, "--num-heads", int)


def _budget(sub: argparse.ArgumentParser) -> None:
    add(sub, "--size", default="832x480")
    add(sub, "--seconds", float, [60.0, 300.0], nargs="+")
    add(sub, "--model-family", names.LISTED_FAMILIES, "self_forcing", "1.3B or LongLive 2.0 5B")


def _memory(sub: argparse.ArgumentParser) -> None:
    add(sub, "--cards", float, list(names.CARDS), "memory of cards in GiB", nargs="+")
    add(sub, "--sizes", default=["832x480", "480x832"], text="WIDTHxHEIGHT in pixels", nargs="+")
    add(sub, "--model-family", names.LISTED_FAMILIES, "self_forcing", "1.3B or LongLive 2.0 5B")


def _convert(sub: argparse.ArgumentParser) -> None:
    add(sub, "file", READ)
    add(sub, "out", WRITTEN, text="new .safetensors file")
    add(sub, "--weights", default="auto", text="which copy: auto, generator_ema, generator (auto)")
    add(sub, "--lora", READ, text="LoRA to merge")
    add(sub, "--lora-strength", float, 1.0)
    add(sub, "--num-heads", int)
    add(sub, "--frames-per-block", int, text="recorded in the file: 3 chunkwise, 1 framewise")
    add(sub, "--model-family", SCHEDULES, text="recorded in the file, for --model-family auto")
    add(sub, "--dtype", names.DTYPES, "bf16")


def _profile(sub: argparse.ArgumentParser) -> None:
    add(sub, "out", PROFILE_OUT, text="head profile to write (.json); the measured shares go beside it")
    source = sub.add_mutually_exclusive_group(required=True)
    add(source, "--weights", READ)
    add(source, "--demo", bool, text="the embedded toy model")
    add(sub, "--demo-weights", READ, text="with --demo: another model of the toy world, .safetensors")
    add(sub, "--lora", READ, text="LoRA to merge")
    add(sub, "--num-heads", int)
    add(sub, "--text-encoder", READ)
    add(sub, "--embeddings", READ)
    add(sub, "--prompts", TEXT, text="one prompt per line, or @FILE; default: twenty that come with the pack")
    add(sub, "--preset", names.BUDGETS, "full", "full: 20 prompts x 30 s; quick: 4 x 10 s")
    add(sub, "--rule", names.RULES, "quota", "of the roles; the shares stay the same (quota)")
    told = "measure return stories, too: which heads look up an earlier visit of a scene (off)"
    add(sub, "--returns", bool, text=told)
    add(sub, "--rope", ["absolute", "contiguous"], "absolute", "absolute: as in the paper")
    add(sub, "--size", default="832x480")
    sub.add_argument("--model-family", choices=SCHEDULES, default="self_forcing")
    add(sub, "--shard", default="1/1", text="the share of one machine of a farm: 2/4 is the second of four")
    add(sub, "--seed", seed_number, 0)
    add(sub, "--device", default="auto")
    add(sub, "--dtype", names.DTYPES, "bf16")
    add_farm_arguments(sub)


def _profiles(parser: argparse.ArgumentParser) -> None:
    command = Commands(parser.add_subparsers(required=True, metavar="COMMAND"))
    sub = command("merge", "profiles.merge", "Add up measurements of the same setup from several machines.")
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
    add(sub, "--theme", THEMES, "light")


def _report(sub: argparse.ArgumentParser) -> None:
    add(sub, "video", READ)
    add(sub, "--plot", WRITTEN, text="PNG to write: the metrics as a plot")
    add(sub, "--theme", THEMES, "light")
    add(sub, "--frames-per-block", int, text="latent frames; default: read from the file, else 3")
    add(sub, "--prompts", TEXT, text="the timeline it was made with, or @FILE; default: read from the file")
    add_metric_arguments(sub)


def _compare(sub: argparse.ArgumentParser) -> None:
    add(sub, "--methods", nargs="+")
    add_source_arguments(sub, folder_written(*COMPARED_FILES))


def _runs(parser: argparse.ArgumentParser) -> None:
    command = Commands(parser.add_subparsers(required=True, metavar="COMMAND"))
    sub = command("list", "runs.list_runs", "List stored videos: finished blocks, size of the folder, prompt.")
    add(sub, "folder", STORE, text="the folder given to --runs; ComfyUI's is output/head_forcing")
    sub = command("takes", "runs.list_run_takes", "List stored videos as a table: take, date, length, size, prompts.")
    add(sub, "folder", STORE, text="as for `runs list`; default: the current folder", nargs="?")
    text = "Report drift of a stored video's latents, and decisions of episodic memory."
    sub = command("show", "runs.show_run", text)
    add(sub, "folder", STORE)
    add(sub, "name", text="as listed, FOLDER/VIDEO; default: the newest", nargs="?")
    add(sub, "--plot", WRITTEN, text="PNG to write: the report as a plot")
    add(sub, "--theme", THEMES, "light")
    sub = command("prune", "runs.prune_runs", "Remove the oldest run folders until the others fit into a size.")
    add(sub, "folder", STORE)
    add(sub, "--keep-gb", float, text="gigabytes to keep; 0 removes all that are unused", required=True)


def _replay(sub: argparse.ArgumentParser) -> None:
    add(sub, "case", folder_read("*.json", "*.safetensors"), text="folder with config.json")
    add(sub, "--run", text="name of the run in config.json", dest="run_name", required=True)
    add(sub, "--out", WRITTEN, text="safetensors file to write, tensor `latents`", required=True)
    add(sub, "--events", WRITTEN, text="JSON file for the memory events")
    sub.add_argument("--device", default="cpu")
    add(sub, "--attention", ["auto", *names.BACKENDS, "reference"], "auto")


ARGUMENTS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "demo": ("render.demo", _demo),
    "generate": ("render.generate", _generate),
    "encode": ("stages.encode", _encode),
    "decode": ("stages.decode", _decode),
    "batch": ("batch.batch", _batch),
    "inspect": ("files.inspect", _inspect),
    "methods": ("files.methods", lambda sub: None),
    "budget": ("files.budget", _budget),
    "memory": ("files.memory", _memory),
    "convert": ("files.convert", _convert),
    "profile": ("profiles.profile", _profile),
    "profiles": ("", _profiles),
    "report": ("report.report", _report),
    "compare": ("compare.compare", _compare),
    "runs": ("", _runs),
    "replay": ("replay.replay_case", _replay),
}
"""For each command, in the order of the help, its function and what adds its arguments."""
