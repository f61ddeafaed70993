"""What the arguments of the commands stand for: texts, sizes, devices, profiles, weights and text embeddings."""

from __future__ import annotations

import argparse
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .auto_profile import AutoProfile
from .checkpoint import CheckpointInfo, inspect_checkpoint
from .errors import HeadForcingError
from .profile import HeadProfile, bundled_profiles, load_profile
from .run import digest, file_hash
from .switching import Switch

if TYPE_CHECKING:
    from .text import TextEncoder

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

MAX_SCALE = 64

FOUND_PROFILES = Path.home() / ".cache" / "headforcing" / "profiles"

Result = dict[str, Any]  # of a command: {"text": for people, "json": for programs}


def embeddings(args: argparse.Namespace, texts: list[str], device: torch.device) -> list[torch.Tensor]:
    """Text embeddings from `--embeddings` or `--text-encoder`, one per text."""
    from .text import load_embeddings, load_text_encoder

    if (args.text_encoder is None) == (args.embeddings is None):
        raise HeadForcingError("give either --text-encoder (a umT5-xxl file) or --embeddings (precomputed)")
    if args.embeddings is not None:
        stored = load_embeddings(args.embeddings)
        return [stored[text] for text in texts]
    encoder: TextEncoder = load_text_encoder(args.text_encoder, device)
    return encoder.encode(texts)


def check_text_width(embeds: torch.Tensor, expected: int) -> None:
    if embeds.shape[-1] != expected:
        raise HeadForcingError(f"the model reads text embeddings of width {expected}, got {embeds.shape[-1]}")


def inspect_weights(args: argparse.Namespace) -> CheckpointInfo:
    """What `--weights` is; the fingerprint names the weights as they are used, with `--lora` where it is given."""
    info = inspect_checkpoint(args.weights, num_heads=args.num_heads)
    if args.lora is None:
        return info
    return replace(info, fingerprint=digest(info.fingerprint, file_hash(args.lora))[:16])


def find_profile(name: str) -> HeadProfile:
    """A bundled profile by name, or a file."""
    return load_profile(bundled_profiles().get(name, Path(name)))


def choose_profile(name: str | None) -> HeadProfile | AutoProfile | None:
    """What `--profile` names: `auto`, a bundled profile or a file; None when it is not given."""
    if name is None:
        return None
    return AutoProfile() if name == "auto" else find_profile(name)


def chosen_switch(args: argparse.Namespace) -> Switch:
    """How prompts without a tag take over."""
    return Switch(args.switch, args.blend_blocks, args.re_anchor)


def read_text(value: str) -> str:
    """The argument itself, or the contents of @FILE."""
    if not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise HeadForcingError(f"the prompts file {value[1:]!r} cannot be read as UTF-8 text: {error}") from error


def check_numbers(args: argparse.Namespace) -> None:
    """Refuse a `--scale` or `--state-seconds`, where the command has it, that no video can be made with."""
    scale, state_seconds = vars(args).get("scale", 1), vars(args).get("state_seconds", 0.0)
    if not 1 <= scale <= MAX_SCALE:
        raise HeadForcingError(f"--scale must be from 1 to {MAX_SCALE}, got {scale}")
    if not (math.isfinite(state_seconds) and state_seconds >= 0):
        raise HeadForcingError(f"--state-seconds must be 0 (never) or more, got {state_seconds}")


def parse_size(text: str) -> tuple[int, int]:
    """Width and height of `832x480`."""
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    if match is None:
        raise HeadForcingError(f"--size must look like 832x480, got {text!r}")
    return int(match[1]), int(match[2])


def pick_device(name: str) -> torch.device:
    """The device of that name, tried; `auto` is the best there is."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise HeadForcingError(f"--device {name!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return device
