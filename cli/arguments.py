"""The arguments of all commands; nothing heavy is imported, so that help and mistakes take no
seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..headforcing_core import names
from ..headforcing_core.demo import words
from ..headforcing_core.plan.settings import DEFAULT_SETTINGS
from ..headforcing_core.rollout.schedule import SCHEDULES
from .options import (
    FARM_OPTIONS,
    FILE_OPTIONS,
    GPU_OPTIONS,
    RENDER_OPTIONS,
    REQUIRED,
    SEVERAL,
    OneOf,
    Rows,
)
from .parser import (
    COMPARED_FILES,
    DEMO_FILES,
    LATENTS,
    LIVE_VIDEO,
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
)


@dataclass(frozen=True)
class Result:
    """The result of a command: lines for people, and a value as JSON for programs."""

    lines: Sequence[str]
    json: Any
    code: int = 0  # the exit code

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


# --- rows that several commands have

DEMO_MODEL = ("--demo", bool, None, "the embedded toy model")
LORA = ("--lora", READ, None, "LoRA to merge")
PLOTTED = ("profile", PROFILE, None, "file, or name of a bundled profile")
RELEASED = ("--model-family", names.LISTED_FAMILIES, "self_forcing", "1.3B or LongLive 2.0 5B")


def one_video(story: str, length: str, required: bool, *starts: Any) -> Rows:
    """The arguments of commands that render one video: story and length, start and pictures,
    method, several GPUs.
    """
    return (
        OneOf((("--prompts", TEXT, None, story), "follow"), required),
        ("--seconds", float, 0.0, f"length; default: {length}"),
        OneOf(("start-image start-video", *starts), required=False),
        "start-part start-seconds reference audio audio-offset audio-gain",
        RENDER_OPTIONS,
        "method set roles shuffle",
        GPU_OPTIONS,
    )


# --- the commands

DEMO = (
    (
        "--out",
        folder_written(*DEMO_FILES),
        Path("output"),
        "folder for demo.mp4 and demo.png (output)",
    ),
    ("--scale", scale, 1, "every pixel becomes a square of this side (1: 256x256)"),
    ("--latents", WRITTEN, None, "latents to write, too (.safetensors)"),
    *one_video(
        f"a timeline in the toy world's words, or @FILE; {words.HELP}",
        "the story's 60",
        required=False,
    ),
)
GENERATE = (
    ("--weights", READ, None, "checkpoint, .safetensors or .pt", REQUIRED),
    FILE_OPTIONS,
    "live-decoder",
    ("--out", VIDEO, None, "MP4 to write"),
    ("--latents", WRITTEN, None, "latents to write (.safetensors)"),
    *one_video(
        "a timeline or one prompt, or @FILE",
        "the timeline's",
        True,
        ("--start-latents", READ, None, "latents of a video to continue"),
    ),
    "speech speech-encoder speech-scale speech-segment",
)
LIVE = (
    (
        "--prompts",
        TEXT,
        None,
        "the first prompt, or a timeline with what is planned; or @FILE",
        REQUIRED,
    ),
    ("--out", LIVE_VIDEO, Path("output/live.mp4"), "MP4 to write (output/live.mp4)"),
    (
        "--lead",
        float,
        1.5,
        "seconds that the render is ahead of the player at least; slow machines need more (1.5)",
    ),
    ("--weights", READ, None, "checkpoint, .safetensors or .pt; default: the embedded model"),
    FILE_OPTIONS,
    ("--scale", scale, 1, "without --weights: every pixel becomes a square of this side (1)"),
    ("--seconds", float, 0.0, "length of the planned story; the video goes on"),
    OneOf(("start-image start-video",), required=False),
    "start-part start-seconds reference audio audio-offset audio-gain",
    RENDER_OPTIONS,
    "method set roles shuffle",
)
ENCODE = (
    ("out", WRITTEN, None, "safetensors file to write"),
    ("--text-encoder", READ, None, "umT5-xxl encoder, ComfyUI's or the original file", REQUIRED),
    (
        "--prompts",
        TEXT,
        None,
        "timelines or single prompts, as text or @FILE",
        SEVERAL | REQUIRED,
    ),
    ("--device", None, "auto", "auto, cpu, cuda, mps (auto); the CPU where it does not fit"),
    (
        "--model-family",
        SCHEDULES,
        DEFAULT_SETTINGS.model_family,
        "of the model; longlive2 has texts of its own where a shot begins",
    ),
)
DECODE = (
    (
        "latents",
        LATENTS,
        None,
        "safetensors file of generate --latents; or a run folder, or FOLDER/VIDEO in one as `runs "
        "list` names it",
        {"metavar": "RUN"},
    ),
    ("out", VIDEO, None, "MP4 to write"),
    OneOf(
        (
            ("--vae", READ, None, "VAE of Wan 2.1 or 2.2, or a tiny decoder"),
            ("--demo", bool, None, "the embedded model's VAE"),
        )
    ),
    ("--scale", scale, 1, "every pixel becomes a square of this side (1)"),
    ("--decoder", names.DECODERS, "auto", "what the file of --vae is (auto)"),
    ("--audio", READ, None, "sound of the video, of a sound or video file", {"metavar": "FILE"}),
    "audio-offset audio-gain dtype device",
)
STORY = (
    ("file", READ, None, "text file: subtitles, JSON, a list, a schedule, or a story"),
    ("--seconds", float, 0.0, "length of the video, for a schedule in parts of it"),
    (
        "--model-family",
        SCHEDULES,
        DEFAULT_SETTINGS.model_family,
        "of the model, for a schedule that counts frames",
    ),
)
EXPORT = (
    (
        "latents",
        LATENTS,
        None,
        "run folder, or FOLDER/VIDEO in one as `runs list` names it; more are other takes, on "
        "tracks of their own in .otio and .xml",
        {"metavar": "RUN", "nargs": "+"},
    ),
    ("out", WRITTEN, None, "file to write: .srt, .vtt, .csv, .otio, .xml (FCP 7) or .edl"),
    (
        "--video",
        READ,
        None,
        "MP4 of each RUN, which the clips of a timeline show",
        {"nargs": "+"},
    ),
    ("--audio", READ, None, "sound of the video, for a track of the timeline"),
)
BATCH = (
    (
        "jobs",
        READ,
        None,
        "a line is a JSON object with the options of `generate`, or of `demo` with "
        '"demo": true, and a "name"',
        {"metavar": "JOBS.jsonl"},
    ),
    ("--out", PathType(), None, "folder for the videos and their run folders", REQUIRED),
    ("--shard", None, "1/1", "the share of one task of an array: 2/4 is the second of four"),
    FARM_OPTIONS,
)
INSPECT = (("file", READ, None, None), "num-heads")
BUDGET = ("size", ("--seconds", float, [60.0, 300.0], None, SEVERAL), RELEASED)
MEMORY = (
    ("--cards", float, list(names.CARDS), "memory of cards in GiB", SEVERAL),
    ("--sizes", None, ["832x480", "480x832"], "WIDTHxHEIGHT in pixels", SEVERAL),
    RELEASED,
)
CONVERT = (
    ("file", READ, None, None),
    ("out", WRITTEN, None, "new .safetensors file"),
    ("--weights", None, "auto", "which copy: auto, generator_ema, generator (auto)"),
    LORA,
    ("--lora-strength", float, 1.0, None),
    "num-heads dtype",
    ("--frames-per-block", count, None, "recorded in the file: 3 chunkwise, 1 framewise"),
    ("--model-family", SCHEDULES, None, "recorded in the file, for --model-family auto"),
)
PROFILE_HEADS = (
    ("out", PROFILE_OUT, None, "head profile to write (.json); the measured shares go beside it"),
    OneOf(("weights", DEMO_MODEL)),
    (
        "--demo-weights",
        READ,
        None,
        "with --demo: another model of the toy world, .safetensors",
    ),
    LORA,
    "num-heads text-encoder embeddings",
    (
        "--prompts",
        TEXT,
        None,
        "one prompt per line, or @FILE; default: twenty that come with the pack",
    ),
    (
        "--preset",
        names.BUDGETS,
        "full",
        "full: 20 prompts, 21 latent frames each; quick: 4; paper: 20 prompts, 30 s each",
    ),
    "rule",
    (
        "--returns",
        bool,
        None,
        "measure return stories, too: which heads look up an earlier visit of a scene (off)",
    ),
    (
        "--rope",
        ["absolute", "contiguous"],
        "absolute",
        "absolute: frames keep their index in the video; the paper does not say",
    ),
    (
        "--model-family",
        SCHEDULES,
        "self_forcing",
        "noise levels and block of the model (self_forcing)",
    ),
    ("--shard", None, "1/1", "the share of one machine of a farm: 2/4 is the second of four"),
    "size seed device dtype",
    FARM_OPTIONS,
)
PROFILES = {
    "merge": (
        "profiles.merge",
        (
            ("measured", READ, None, "measured shares (.safetensors)", SEVERAL),
            ("--out", PROFILE_OUT, None, "head profile to write (.json)", REQUIRED),
            "rule",
        ),
        "Add up measurements of the same setup from several machines.",
    ),
    "compare": (
        "profiles.compare",
        (("profiles", PROFILE, None, "files, or names of bundled profiles", {"nargs": 2}),),
        "Compare two head profiles.",
    ),
    "show": (
        "profiles.show",
        (PLOTTED,),
        "Where a head profile is from, its roles, and the heads its sources dispute.",
    ),
    "plot": (
        "profiles.plot",
        (
            PLOTTED,
            ("out", WRITTEN, None, "PNG to write"),
            "theme",
        ),
        "Plot a head profile.",
    ),
}
REPORT = (
    ("video", READ, None, None),
    ("--plot", WRITTEN, None, "PNG to write: the metrics as a plot"),
    "theme",
    ("--frames-per-block", count, None, "latent frames; default: read from the file, else 3"),
    (
        "--prompts",
        TEXT,
        None,
        "the timeline it was made with, or @FILE; default: read from the file",
    ),
)
COMPARE = (
    (
        "--methods",
        None,
        None,
        f"names, as of --method; {names.ALL}: every published one that the weights allow "
        f"({' '.join(names.COMPARED_METHODS)})",
        SEVERAL,
    ),
    OneOf(
        (
            DEMO_MODEL,
            ("--weights", READ, None, "checkpoint, .safetensors or .pt; needs --prompts and --vae"),
        )
    ),
    (
        "--prompts",
        TEXT,
        None,
        "a timeline or one prompt, or @FILE; default with --demo: its story",
    ),
    ("--seconds", float, 0.0, "seconds; default: the timeline's length"),
    (
        "--out",
        folder_written(*COMPARED_FILES),
        Path("output/compare"),
        "folder (output/compare)",
    ),
    ("--scale", scale, 1, "with --demo: every pixel becomes a square of this side (1)"),
    FILE_OPTIONS,
    "live-decoder",
    RENDER_OPTIONS,
    FARM_OPTIONS,
)
RUNS = {
    "list": (
        "report.list_runs",
        (
            (
                "folder",
                STORED,
                None,
                "the folder given to --runs; ComfyUI's is output/head_forcing",
            ),
        ),
        "List stored videos: finished blocks, size of the folder, prompt.",
    ),
    "takes": (
        "report.list_run_takes",
        (
            (
                "folder",
                STORED,
                Path(),
                "as for `runs list`; default: the current folder",
                {"nargs": "?"},
            ),
        ),
        "List stored videos as a table: take, date, length, size, prompts.",
    ),
    "show": (
        "report.show_run",
        (
            ("folder", STORED, None, None),
            ("name", None, None, "as listed, FOLDER/VIDEO; default: the newest", {"nargs": "?"}),
            ("--plot", WRITTEN, None, "PNG to write: the report as a plot"),
            "theme",
        ),
        "Report drift of a stored video's latents, and decisions of episodic memory.",
    ),
    "prune": (
        "report.prune_runs",
        (
            ("folder", STORED, None, None),
            (
                "--keep-gb",
                float,
                None,
                "gigabytes to keep; 0 removes all that are unused",
                REQUIRED,
            ),
        ),
        "Remove the oldest run folders until the others fit into a size.",
    ),
}

COMMANDS: dict[str, tuple[str, Any, str]] = {
    "demo": (
        "render.demo",
        DEMO,
        "Render a one-minute, six-prompt video with the embedded toy model; no download.",
    ),
    "generate": (
        "render.generate",
        GENERATE,
        "Render a video from Self Forcing weights (or a relative) and prompts.",
    ),
    "live": (
        "live.live",
        LIVE,
        "Render a video that goes on while one types what happens next.",
    ),
    "story": (
        "story.story",
        STORY,
        "Print a text in any form as the story that is rendered.",
    ),
    "export": (
        "story.export",
        EXPORT,
        "Write the story of a stored video as subtitles, a table, or a timeline for video editors.",
    ),
    "encode": (
        "files.encode",
        ENCODE,
        "Write the embeddings of prompts, which `generate --embeddings` reads.",
    ),
    "decode": (
        "files.decode",
        DECODE,
        "Decode a stored run, finished or not, or latents of `generate --latents`, to an MP4.",
    ),
    "batch": (
        "batch.batch",
        BATCH,
        "Render many videos, named in a file; the same command goes on where it stopped.",
    ),
    "inspect": (
        "files.inspect",
        INSPECT,
        "Describe a checkpoint or head profile, and the cache it needs.",
    ),
    "methods": ("files.methods", (), "All methods, with their options and defaults for --set."),
    "budget": ("files.budget", BUDGET, "Size of the 1.3B model's KV cache by method and length."),
    "memory": (
        "files.memory",
        MEMORY,
        "What a minute of the 1.3B model takes, how it fits on a card; by estimate.",
    ),
    "convert": (
        "files.convert",
        CONVERT,
        "Write one bf16 copy of a checkpoint as .safetensors with metadata.",
    ),
    "profile": (
        "profiles.profile",
        PROFILE_HEADS,
        "Measure what every attention head attends to and save a head profile.",
    ),
    "profiles": ("", PROFILES, "Merge, compare, describe and plot head profiles."),
    "report": (
        "report.report",
        REPORT,
        "Measure flicker, seams, drift, freezes and repetition of a video; not VBench.",
    ),
    "compare": (
        "compare.compare",
        COMPARE,
        "Render one timeline with several methods: videos side by side, one table.",
    ),
    "runs": ("", RUNS, "List, show and prune run folders."),
}
"""For each command, in the order of the help: its function, its arguments (see `options.add_rows`)
or, of a group, its commands, and its help.
"""
