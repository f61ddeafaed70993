"""The rows that describe arguments, and the options that mean the same in every command that has
them.
"""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..headforcing_core import names
from ..headforcing_core.files import Fields
from ..headforcing_core.methods.registry import method_names
from ..headforcing_core.plan.settings import DEFAULT_SETTINGS
from ..headforcing_core.rollout.schedule import AUTO_FAMILY, SCHEDULES
from ..headforcing_core.timeline.references import MAX_REFERENCES
from ..headforcing_core.timeline.switch import SWITCHES
from .parser import (
    FOLLOWED,
    NAMED,
    PROFILE,
    READ,
    STORE,
    count,
    folder_read,
    option_pairs,
    seed_number,
    speeds,
)

THEMES = ("dark", "light")

REQUIRED = {"required": True}
SEVERAL = {"nargs": "+"}
Rows = tuple[Any, ...]
"""Arguments: names of `OPTIONS` without their dashes in a text, tuples of the arguments of `add`,
or `OneOf`."""


@dataclass(frozen=True)
class OneOf:
    """Arguments of which one can be given, or must be."""

    rows: Rows
    required: bool = True


def add_rows(to: argparse._ActionsContainer, rows: Rows) -> None:
    """Add arguments to a parser, or to a group of its arguments."""
    for row in rows:
        if isinstance(row, OneOf):
            add_rows(to.add_mutually_exclusive_group(required=row.required), row.rows)
        elif isinstance(row, str):
            for name in row.split():
                add(to, f"--{name}", *OPTIONS[f"--{name}"])
        else:
            add(to, *row)


def asks_for_several_gpus(args: Namespace) -> bool:
    """Whether an option of one video on several GPUs is given."""
    return bool(
        args.gpus != 1 or args.shard_weights or args.gpu_speeds or args.rank_timeout is not None
    )


def add(
    to: argparse._ActionsContainer,
    name: str,
    kind: Any,
    default: Any,
    text: str | None,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Add an argument: `kind` is its type, its choices, or `bool` for one that is given or not;
    `more` is what else argparse is given."""
    if kind is bool:
        form: Fields = {"action": "store_true"}
    else:
        form = {"type" if callable(kind) else "choices": kind, "default": default}
    to.add_argument(name, help=text, **{**form, **more})


# what goes with `--weights`: LoRA, text encoder, VAE, size and dtype
FILE_OPTIONS = "lora size text-encoder embeddings vae decoder park-features num-heads dtype"
# prompt switches, head profile, noise levels, episodic memory, run folder and device
RENDER_OPTIONS = (
    "seed switch blend-blocks re-anchor profile rule alpha tau-local measure-seconds "
    "found-profiles model-family sigmas episodic-frames recent-frames novelty-threshold "
    "update-interval runs state-seconds device vae-device attention compile fp8-linears"
)
FARM_OPTIONS = "farm farm-gpus farm-workers"
GPU_OPTIONS = "gpus shard-weights gpu-speeds rank-timeout"  # of one video on several GPUs
# Kind, default, help, and what else argparse is given, see `add`.
OPTIONS: Mapping[str, tuple[Any, ...]] = {
    "--weights": (READ, None, "checkpoint, .safetensors or .pt"),
    "--lora": (READ, None, "LoRA to merge, such as LongLive's"),
    "--size": (None, None, "WIDTHxHEIGHT in pixels (832x480; with LiveTalk 512x512)"),
    "--text-encoder": (READ, None, "umT5-xxl encoder, ComfyUI's or the original file"),
    "--embeddings": (READ, None, "precomputed prompt embeddings instead of a text encoder"),
    "--vae": (READ, None, "Wan 2.1 VAE, or a tiny decoder for a fast draft; needed for a video"),
    "--decoder": (
        names.DECODERS,
        "auto",
        "what the file of --vae is: wan, or one of the tiny decoders; auto goes by "
        "its tensors (auto)",
    ),
    "--live-decoder": (
        READ,
        None,
        "a tiny decoder by which the video grows until all blocks are there; then --vae decodes "
        "them into the same file",
        {"metavar": "FILE"},
    ),
    "--park-features": (
        bool,
        None,
        "on a GPU: what the VAE keeps of earlier frames waits in the host's memory while "
        "blocks are sampled (off)",
    ),
    "--num-heads": (int, None, "only for models whose heads are not 128 wide"),
    "--dtype": (names.DTYPES, "bf16", "compute dtype (bf16)"),
    "--seed": (seed_number, DEFAULT_SETTINGS.seed, None),
    "--switch": (
        SWITCHES,
        DEFAULT_SETTINGS.switch.kind,
        "what a new prompt does to the caches: reset nothing, recache writes "
        "the last blocks again under the new prompt, flush keeps only the first and the "
        "last two latent frames; a tag before a prompt, such as [flush], sets it for that "
        "prompt (reset)",
    ),
    "--blend-blocks": (
        int,
        DEFAULT_SETTINGS.switch.blend_blocks,
        "blocks over which the text embedding is interpolated at a new prompt; tag: [blend 3]",
    ),
    "--re-anchor": (
        bool,
        None,
        "scene cut: a new prompt's first frames replace the anchor heads' first frames; tag: "
        "[re-anchor]",
    ),
    "--profile": (
        PROFILE,
        None,
        "head profile: a file, a video that was made with roles, "
        f"{', '.join(names.bundled_profiles())}, or auto, which measures the roles before the "
        "render and stores them for later ones; default: the bundled one that fits the model, "
        "else auto",
    ),
    "--rule": (
        names.RULES,
        None,
        "roles from the profile's shares: quota (the paper's), function (memory heads are "
        "those that look at the middle most), auto (function where the quota misnames a "
        "head); default: as in the profile, for a new one auto",
    ),
    "--alpha": (
        float,
        None,
        "fraction of all heads that are anchors, from the profile's shares (as in it, 0.25)",
    ),
    "--tau-local": (float, None, "fraction of all heads that are local, like --alpha (0.2)"),
    "--measure-seconds": (
        float,
        None,
        "the longest that --profile auto may measure; then a bundled list (60)",
    ),
    "--found-profiles": (STORE, None, "folder for found profiles; default: in the user's cache"),
    "--model-family": (
        (AUTO_FAMILY, *SCHEDULES),
        AUTO_FAMILY,
        "noise levels, block, profile; auto goes by what the "
        "weights file states, or by its name (auto)",
    ),
    "--sigmas": (str, DEFAULT_SETTINGS.sigmas, "noise levels, such as '1, 0.9375, 0.8333, 0.625'"),
    "--episodic-frames": (int, None, "the same as --set memory.episodic_frames=N (5)"),
    "--recent-frames": (int, None, "the same as --set memory.recent_frames=N (3)"),
    "--novelty-threshold": (float, None, "the same as --set episodic.novelty_threshold=X (0.95)"),
    "--update-interval": (int, None, "the same as --set episodic.update_interval=N (3)"),
    "--runs": (STORE, None, "folder for finished blocks; the same command resumes from them"),
    "--state-seconds": (
        float,
        DEFAULT_SETTINGS.state_seconds,
        "seconds between two stored states of the cache in --runs; 0: never",
    ),
    "--device": (None, "auto", "auto, cpu, cuda, mps (auto)"),
    "--vae-device": (
        None,
        None,
        "decode on this device, such as cuda:1, while the next block is sampled; default: on "
        "--device, in turn",
        {"metavar": "DEVICE"},
    ),
    "--attention": (
        ("auto", *names.BACKENDS),
        "auto",
        names.ATTENTION_HELP,
        {"type": names.backend_name},
    ),
    "--compile": (
        bool,
        None,
        "compile the parts of layers that do not use the cache with torch.compile, in place of "
        "the fused kernels: compiles first and needs a C compiler; not yet tried on a "
        "GPU (off)",
    ),
    "--fp8-linears": (
        bool,
        None,
        "inexact: linear layers of all blocks in 8-bit floating point, which halves their "
        "memory; meant for GPUs that multiply it, not yet tried on one (off)",
    ),
    "--farm": (
        None,
        None,
        "make videos at the same time with Ray: local starts it on this machine, auto finds the "
        "cluster that this machine belongs to, ray://HOST:PORT reaches another; all "
        "machines need the same files at the same paths",
    ),
    "--farm-gpus": (
        float,
        None,
        "GPUs for each video, 0.5 for two videos on one; default: 1 if there are any",
    ),
    "--farm-workers": (
        int,
        None,
        "with --farm local: videos at a time; default: one for each GPU, or core",
    ),
    "--start-image": (
        READ,
        None,
        "image that the video begins with, for framewise models, LongLive 2.0, LiveTalk (the "
        "portrait) and Self Gradient Forcing; cropped around the middle and scaled to the size",
        {"metavar": "FILE"},
    ),
    "--start-video": (
        READ,
        None,
        "video of any size and frame rate to go on from, without sound",
        {"metavar": "FILE"},
    ),
    "--start-part": (names.PARTS, None, "which part of --start-video is taken (last)"),
    "--start-seconds": (
        float,
        None,
        f"how much of it is taken at most, in whole blocks ({names.DEFAULT_START_SECONDS:g})",
    ),
    "--reference": (
        NAMED,
        [],
        "picture that scenes keep: hero=hero.png is held while the scene of a prompt with "
        f"@hero lasts; may be given up to {MAX_REFERENCES} times; needs --vae",
        {"action": "append", "metavar": "NAME=FILE"},
    ),
    "--speech": (
        READ,
        None,
        "with LiveTalk: sound that makes the portrait of --start-image speak, and is the sound of "
        "the video; or a safetensors file with its `features`",
        {"metavar": "FILE"},
    ),
    "--speech-encoder": (
        folder_read("config.json", "model.safetensors"),
        None,
        "folder with wav2vec2-base-960h, which encodes the sound of --speech",
        {"metavar": "FOLDER"},
    ),
    "--speech-scale": (
        float,
        1.0,
        "factor of what speech adds to the picture; 1 as the model was trained (1)",
    ),
    "--speech-segment": (
        float,
        0.0,
        "seconds of speech that are encoded by themselves, so that sound that changes later "
        "leaves finished blocks; 0: all at once, as its authors do (0)",
        {"metavar": "SECONDS"},
    ),
    "--audio": (
        READ,
        None,
        "sound of the video, of a sound or video file; without --seconds the story ends with it",
        {"metavar": "FILE"},
    ),
    "--audio-offset": (
        float,
        0.0,
        "second of the story at which the sound begins; below 0 its beginning is left out (0)",
        {"metavar": "SECONDS"},
    ),
    "--audio-gain": (float, 0.0, "how much louder the sound is (0)", {"metavar": "DB"}),
    "--follow": (
        FOLLOWED,
        None,
        "like --prompts @FILE, and reads FILE again when it changes: prompts that have not "
        "begun take the new text; the story that was rendered is written beside the "
        "video, with the ending "
        ".story.txt",
        {"metavar": "FILE"},
    ),
    "--method": (
        None,
        DEFAULT_SETTINGS.method_name,
        None,
        {"metavar": f"{{{','.join(method_names())}}}"},
    ),
    "--set": (
        option_pairs,
        [],
        "an option of the method, such as window_frames=12; may be given several times; "
        "`headforcing methods` lists all of them",
        {"action": "extend", "metavar": "NAME=VALUE"},
    ),
    "--roles": (names.ROLE_ARRANGEMENTS, DEFAULT_SETTINGS.roles, None),
    "--shuffle": (int, DEFAULT_SETTINGS.shuffle, "with --roles shuffled: which shuffle (0)"),
    "--gpus": (
        count,
        1,
        "GPUs of this machine that make the video together, with the heads and their caches "
        "divided among them; not yet tried on GPUs (1)",
    ),
    "--shard-weights": (
        bool,
        None,
        "with --gpus: the weights, too, in equal shares on all GPUs, for models that do "
        "not fit on one (off)",
    ),
    "--gpu-speeds": (
        speeds,
        None,
        "with --gpus: how fast the GPUs are relative to each other, as 2,1; work is divided "
        "in proportion (equal)",
        {"metavar": "A,B,..."},
    ),
    "--rank-timeout": (
        float,
        None,
        "with --gpus: a rank that does not answer the others for so long counts as dead, "
        "and all are started again (600)",
        {"metavar": "SECONDS"},
    ),
    "--theme": (THEMES, "light", "of the plot (light)"),
}
