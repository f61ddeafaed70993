"""Arguments that several commands of the command line share."""

from __future__ import annotations

import argparse
from pathlib import Path

from .arguments import DTYPES, FOUND_PROFILES
from .attention import ATTENTION_HELP, BACKENDS
from .methods.registry import method_names
from .policy import ROLE_ARRANGEMENTS
from .profile import bundled_profiles
from .schedule import SCHEDULES
from .switching import SWITCHES


def add_file_arguments(sub: argparse.ArgumentParser) -> None:
    """What goes with `--weights`: LoRA, text encoder, VAE, and how they are used."""
    sub.add_argument("--lora", type=Path, help="LoRA to merge, such as LongLive's")
    sub.add_argument("--size", default="832x480", help="WIDTHxHEIGHT in pixels (832x480)")
    sub.add_argument("--text-encoder", type=Path, help="umT5-xxl encoder, ComfyUI's or the original file")
    sub.add_argument("--embeddings", type=Path, help="precomputed prompt embeddings instead of a text encoder")
    sub.add_argument("--vae", type=Path, help="Wan 2.1 VAE; needed for a video")
    sub.add_argument("--num-heads", type=int, help="only for models whose heads are not 128 wide")
    sub.add_argument("--dtype", choices=DTYPES, default="bf16", help="compute dtype (bf16)")


def add_method_arguments(sub: argparse.ArgumentParser) -> None:
    """Which method renders the video."""
    sub.add_argument("--method", choices=method_names(), default="head_forcing")
    sub.add_argument("--roles", choices=ROLE_ARRANGEMENTS, default="profile")


def add_render_arguments(sub: argparse.ArgumentParser) -> None:
    """How prompts take over, head profile, noise levels, memory, and where the render runs."""
    sub.add_argument("--seed", type=int, default=0)
    sub.add_argument(
        "--switch",
        choices=SWITCHES,
        default="reset",
        help="how a prompt takes over: reset leaves the past as it is, recache reads the last blocks again under the "
        "new prompt, flush keeps the first and the last two frames; a tag before a prompt, such as [flush], says "
        "otherwise for that one (reset)",
    )
    sub.add_argument("--blend-blocks", type=int, default=0, help="blocks over which the text goes over; tag: [blend 3]")
    sub.add_argument(
        "--re-anchor",
        action="store_true",
        help="a new prompt's first frames take the place of the video's first; tag: [re-anchor]",
    )
    sub.add_argument(
        "--profile",
        help=f"head profile: a file, {', '.join(bundled_profiles())}, or auto, which finds the roles in the first "
        "seconds and keeps them for the next run; default: the bundled one that fits, else auto",
    )
    sub.add_argument("--found-profiles", type=Path, default=FOUND_PROFILES, help="folder for found profiles")
    sub.add_argument("--model-family", choices=SCHEDULES, default="self_forcing", help="noise levels, block, profile")
    sub.add_argument("--sigmas", default="", help="other noise levels, '1, 0.9375, 0.8333, 0.625'")
    sub.add_argument("--episodic-frames", type=int, default=5)
    sub.add_argument("--recent-frames", type=int, default=3)
    sub.add_argument("--novelty-threshold", type=float, default=0.95)
    sub.add_argument("--update-interval", type=int, default=3)
    sub.add_argument("--runs", type=Path, help="folder for finished blocks: the same render goes on where it stopped")
    sub.add_argument("--state-seconds", type=float, default=300.0, help="how often the cache is stored there; 0 never")
    sub.add_argument("--device", default="auto", help="auto, cpu, cuda, mps (auto)")
    sub.add_argument("--attention", default="auto", choices=["auto", *BACKENDS], help=ATTENTION_HELP)
    sub.add_argument(
        "--cuda-graph",
        action="store_true",
        help="on CUDA: replay denoising passes as a CUDA graph while nothing changes; takes the memory of one more "
        "pass; not yet tried on a GPU (off)",
    )
    sub.add_argument(
        "--compile",
        action="store_true",
        help="compile what layers do without a cache with torch.compile, instead of the pack's fused kernels there: a "
        "minute of waiting at the start; needs a C compiler; not yet tried on a GPU (off)",
    )
