"""Common arguments of the commands, and their values: texts, sizes, devices, profiles, weights, text embeddings."""

from __future__ import annotations

import argparse
import re
from copy import copy
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from ..cache.guards import COMPRESSIONS
from ..cache.policy import ROLE_ARRANGEMENTS
from ..errors import HeadForcingError
from ..files import cache_folder, check_regular
from ..head_profiles.auto import AutoProfile
from ..head_profiles.profile import HeadProfile, bundled_profiles, load_profile
from ..head_profiles.rules import RULES, with_rule
from ..methods.registry import NOT_BUILT, method_names
from ..model.attention import ATTENTION_HELP, BACKENDS
from ..render.options import DEFAULTS, RenderOptions
from ..rollout.schedule import AUTO_FAMILY, SCHEDULES
from ..timeline.switch import SWITCHES, Switch
from ..timeline.timeline import MAX_TEXT_BYTES
from ..video.codec import DECODERS
from .paths import PROFILE, READ, STORE

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

MAX_SCALE = 64

Result = dict[str, Any]  # of a command: {"text": for people, "json": for programs}


def find_profile(name: str) -> HeadProfile:
    """A bundled profile by name, or a file."""
    return load_profile(bundled_profiles().get(name, Path(name)))


def choose_profile(name: str | None, rule: str | None = None) -> HeadProfile | AutoProfile | None:
    """The value of `--profile`: `auto`, a bundled profile or a file; None if it is not given. `rule` is `--rule`'s."""
    if name is None:
        if rule is not None:
            raise HeadForcingError(
                "--rule makes roles of a profile's shares; name it with --profile, or --profile auto"
            )
        return None
    if name == "auto":
        return AutoProfile(rule=rule or "quota")
    return find_profile(name) if rule is None else with_rule(find_profile(name), rule)


def render_options(args: argparse.Namespace, size: tuple[int, int] | None = None) -> RenderOptions:
    """The options from the arguments of `add_render_arguments`; `size` replaces `--size`."""
    check_scale(args)
    given = vars(args)
    width, height = size or parse_size(args.size)
    named = {part.name: given[part.name] for part in fields(RenderOptions) if part.name in given}
    settings = {
        "width": width,
        "height": height,
        "profile": choose_profile(args.profile, args.rule),
        "switch": Switch(args.switch, args.blend_blocks, args.re_anchor),
        "method_options": ", ".join(given.get("set", ())),
    }
    return RenderOptions(**named | settings)


def read_text(value: str) -> str:
    """The argument itself, or the contents of @FILE, a regular file of at most 1 MB."""
    if not value.startswith("@"):
        return value
    path = Path(value[1:])
    check_regular(path)
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_TEXT_BYTES + 1)
        if len(data) > MAX_TEXT_BYTES:
            raise HeadForcingError(f"the prompts file {value[1:]!r} is larger than 1 MB; split it into several videos")
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8 text ({error.reason}); save it as UTF-8"
        raise HeadForcingError(f"the prompts file {value[1:]!r} {reason}") from error
    except OSError as error:
        raise HeadForcingError(f"the prompts file {value[1:]!r} cannot be read: {error.strerror}") from error


def seed_number(text: str) -> int:
    """The type of `--seed`: what a random number generator takes, 0 to 2^64 - 1."""
    if not re.fullmatch("[0-9]{1,20}", text) or int(text) >= 1 << 64:
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to 2^64 - 1, got {text!r}")
    return int(text)


def built_method(text: str) -> str:
    """The type of `--method`: a method that is known and not built gets its own sentence."""
    if text in NOT_BUILT:
        raise argparse.ArgumentTypeError(NOT_BUILT[text])
    return text


def found_profiles_folder(given: Path | None) -> Path | None:
    """The folder of `--found-profiles`; by default the user's cache, None without one, which keeps none."""
    cache = cache_folder()
    return given or (cache and cache / "profiles")


def check_scale(args: argparse.Namespace) -> None:
    """Refuse a value of `--scale` that is out of range, if the command has this argument."""
    if not 1 <= (scale := vars(args).get("scale", 1)) <= MAX_SCALE:
        raise HeadForcingError(f"--scale must be from 1 to {MAX_SCALE}, got {scale}")


def parse_size(text: str) -> tuple[int, int]:
    """Width and height of `832x480`."""
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    if match is None:
        raise HeadForcingError(f"--size must look like 832x480, got {text!r}")
    return int(match[1]), int(match[2])


def pick_device(name: str, option: str = "--device") -> torch.device:
    """The device of that name, with its number, after a test that it works; `auto` takes the fastest kind there is."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        probe = torch.zeros(1, device=torch.device(name))
        probe.cpu()  # "meta" holds no numbers
        return probe.device
    except (RuntimeError, AssertionError) as error:
        raise HeadForcingError(f"{option} {name!r} cannot be used here: {str(error).splitlines()[0]}") from error


def add_file_arguments(sub: argparse.ArgumentParser) -> None:
    """Add the arguments that go with `--weights`: LoRA, text encoder, VAE, size and dtype."""
    sub.add_argument("--lora", type=READ, help="LoRA to merge, such as LongLive's")
    sub.add_argument("--size", default=f"{DEFAULTS.width}x{DEFAULTS.height}", help="WIDTHxHEIGHT in pixels (832x480)")
    sub.add_argument("--text-encoder", type=READ, help="umT5-xxl encoder, ComfyUI's or the original file")
    sub.add_argument("--embeddings", type=READ, help="precomputed prompt embeddings instead of a text encoder")
    sub.add_argument("--vae", type=READ, help="Wan 2.1 VAE, or a tiny decoder for a fast draft; needed for a video")
    sub.add_argument(
        "--decoder",
        choices=DECODERS,
        default="auto",
        help="what the file of --vae is: wan, or one of the tiny decoders; auto goes by its tensors (auto)",
    )
    sub.add_argument(
        "--park-features",
        action="store_true",
        help="on a GPU: what the VAE keeps of earlier frames waits in the host's memory while blocks are sampled (off)",
    )
    sub.add_argument("--num-heads", type=int, help="only for models whose heads are not 128 wide")
    sub.add_argument("--dtype", choices=DTYPES, default="bf16", help="compute dtype (bf16)")


def changed(args: argparse.Namespace, **values: Any) -> argparse.Namespace:
    """A copy of arguments with other values."""
    given = copy(args)
    vars(given).update(values)
    return given


def portable(args: argparse.Namespace) -> argparse.Namespace:
    """A copy that means the same in another process: absolute paths, and the text of a file of prompts."""
    values: dict[str, Any] = {name: value.absolute() for name, value in vars(args).items() if isinstance(value, Path)}
    profile, prompts = vars(args).get("profile"), vars(args).get("prompts")
    if isinstance(profile, str) and profile not in ("auto", *bundled_profiles()):
        values["profile"] = str(Path(profile).absolute())
    if prompts is not None:
        text = read_text(prompts)
        values["prompts"] = f"\n{text}" if text.startswith("@") else text  # which would be taken for a file
    return changed(args, **values)


def add_gpus_arguments(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of one video on several GPUs."""
    sub.add_argument(
        "--gpus",
        type=int,
        default=1,
        help="GPUs of this machine that make the video together, with the heads and their caches divided among them; "
        "not yet tried on GPUs (1)",
    )
    sub.add_argument(
        "--shard-weights",
        action="store_true",
        help="with --gpus: the weights, too, in equal shares on all GPUs, for models that do not fit on one (off)",
    )
    sub.add_argument(
        "--gpu-speeds",
        type=_speeds,
        metavar="A,B,...",
        help="with --gpus: how fast the GPUs are relative to each other, as 2,1; work is divided in proportion (equal)",
    )
    sub.add_argument(
        "--rank-timeout",
        type=float,
        metavar="SECONDS",
        help="with --gpus: a rank that does not answer the others for so long counts as dead, and all are started "
        "again (600)",
    )
    sub.set_defaults(peers=None)


def asks_for_several(args: argparse.Namespace) -> bool:
    """Whether any argument of `add_gpus_arguments` is given."""
    return args.gpus != 1 or args.shard_weights or (args.gpu_speeds, args.rank_timeout) != (None, None)


def _speeds(text: str) -> tuple[float, ...]:
    try:
        speeds = tuple(float(part) for part in text.split(","))
    except ValueError:
        speeds = ()
    if not speeds or not all(0.001 <= speed <= 1000 for speed in speeds):
        raise argparse.ArgumentTypeError(
            f"expected numbers from 0.001 to 1000 with commas between them, as 2,1, got {text!r}"
        )
    return speeds


def add_method_arguments(sub: argparse.ArgumentParser) -> None:
    """Add `--method`, `--set`, `--roles` and `--shuffle`."""
    sub.add_argument("--method", type=built_method, choices=method_names(), default=DEFAULTS.method)
    sub.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the method, such as window_frames=12; may be given several times; `headforcing methods` "
        "lists all of them",
    )
    _add_option(sub, "roles", choices=ROLE_ARRANGEMENTS)
    _add_option(sub, "shuffle", help="with --roles shuffled: which shuffle (0)")


def add_render_arguments(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of prompt switches, head profile, noise levels, episodic memory, run folder and device."""
    sub.add_argument("--seed", type=seed_number, default=DEFAULTS.seed)
    sub.add_argument(
        "--switch",
        choices=SWITCHES,
        default=DEFAULTS.switch.kind,
        help="what a new prompt does to the caches: reset nothing, recache writes the last blocks again under the new "
        "prompt, flush keeps only the first and the last two latent frames; a tag before a prompt, such as [flush], "
        "sets it for that prompt (reset)",
    )
    sub.add_argument(
        "--blend-blocks",
        type=int,
        default=DEFAULTS.switch.blend_blocks,
        help="blocks over which the text embedding is interpolated at a new prompt; tag: [blend 3]",
    )
    sub.add_argument(
        "--re-anchor",
        action="store_true",
        help="scene cut: a new prompt's first frames replace the anchor heads' first frames; tag: [re-anchor]",
    )
    sub.add_argument(
        "--profile",
        type=PROFILE,
        help=f"head profile: a file, {', '.join(bundled_profiles())}, or auto, which finds the roles in the first "
        "seconds and stores them for later runs; default: the bundled one that fits the model, else auto",
    )
    sub.add_argument(
        "--rule",
        choices=RULES,
        help="roles from the profile's shares: quota (the paper's), function (memory heads are those that look at the "
        "middle most), auto (function where the quota misnames a head); default: as in the profile",
    )
    sub.add_argument("--found-profiles", type=STORE, help="folder for found profiles; default: in the user's cache")
    sub.add_argument(
        "--model-family",
        choices=(AUTO_FAMILY, *SCHEDULES),
        default=AUTO_FAMILY,
        help="noise levels, block, profile; auto goes by what the weights file states, or by its name (auto)",
    )
    _add_option(sub, "sigmas", help="noise levels, such as '1, 0.9375, 0.8333, 0.625'")
    _add_cache_arguments(sub)
    sub.add_argument("--runs", type=STORE, help="folder for finished blocks; the same command resumes from them")
    _add_option(sub, "state_seconds", help="seconds between two stored states of the cache in --runs; 0: never")
    sub.add_argument("--device", default="auto", help="auto, cpu, cuda, mps (auto)")
    sub.add_argument(
        "--vae-device",
        metavar="DEVICE",
        help="decode on this device, such as cuda:1, while the next block is sampled; default: on --device, in turn",
    )
    sub.add_argument("--attention", default="auto", choices=["auto", *BACKENDS], help=ATTENTION_HELP)
    _add_speed_arguments(sub)


def _add_cache_arguments(sub: argparse.ArgumentParser) -> None:
    for name in ("episodic_frames", "recent_frames", "novelty_threshold", "update_interval"):
        _add_option(sub, name)
    gate = (
        "leave a sink or episodic frame out of a pass where more than this share of heads prefers it to recent frames"
    )
    _add_option(sub, "sink_gate", help=f"{gate}, such as 0.8 (0: off)")
    jitter = "change the rotary base of every head by up to this fraction, such as 0.8 (0: off)"
    _add_option(sub, "rope_jitter", help=jitter)
    _add_option(
        sub,
        "compression",
        choices=COMPRESSIONS,
        help="how episodic memory chooses the tokens of a merge: by the prompt, or trigonometric, by the query "
        "statistics of a measured head profile (prompt)",
    )


def _add_option(sub: argparse.ArgumentParser, field: str, **more: Any) -> None:
    """Add the argument of a field of `RenderOptions`, with its type and default."""
    default = vars(DEFAULTS)[field]
    sub.add_argument(f"--{field.replace('_', '-')}", type=type(default), default=default, **more)


def _add_speed_arguments(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--cuda-graph",
        action="store_true",
        help="on CUDA: replay denoising passes as a CUDA graph while the cache's layout is the same; needs the memory "
        "of one more pass; not yet tried on a GPU (off)",
    )
    sub.add_argument(
        "--compile",
        action="store_true",
        help="compile the parts of layers that do not use the cache with torch.compile, in place of the fused kernels: "
        "compiles first and needs a C compiler; not yet tried on a GPU (off)",
    )
    sub.add_argument(
        "--fp8-linears",
        action="store_true",
        help="inexact: linear layers of all blocks in 8-bit floating point, which halves their memory; meant for "
        "GPUs that multiply it, not yet tried on one (off)",
    )
