"""How fast latent frames are decoded here and by diffusers, in turns: `python tests/benchmarks/vae.py --help`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from headforcing.headforcing_core.video.wan_decoder import Features, WanDecoder, held_bytes, peak_bytes
from headforcing.headforcing_core.video.wan_encoder import WanEncoder
from headforcing.tests.benchmarks.environment import environment
from headforcing.tests.benchmarks.stopwatch import Stopwatch, in_turns
from torch import Tensor


def networks(base: int, device: torch.device, dtype: torch.dtype) -> tuple[Any, WanDecoder]:
    """The VAE of diffusers with random weights, and the decoder of this pack with the same ones."""
    from diffusers import AutoencoderKLWan
    from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers

    torch.manual_seed(0)
    ours, encoder = WanDecoder(base), WanEncoder(base)
    weights = {
        name: torch.ones_like(weight) if "gamma" in name else weight.clone()
        for name, weight in (ours.state_dict() | encoder.state_dict()).items()
    }
    ours.load_state_dict({name: weights[name].to(device, dtype) for name in ours.state_dict()}, assign=True)
    library = AutoencoderKLWan(base_dim=base)
    library.load_state_dict(convert_wan_vae_to_diffusers(weights))
    return library.requires_grad_(False).eval().to(device, dtype), ours.prepare()


def measure(base: int, size: tuple[int, int], frames: int, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Seconds for each latent frame after the first, and how far the two are apart; latents of `(h, w)`."""
    library, ours = networks(base, device, dtype)
    z = torch.randn(frames, *size, 16, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    cache: list[Any] = [None] * sum(isinstance(module, torch.nn.Conv3d) for module in library.decoder.modules())
    features = Features()

    def theirs(frame: Tensor, first: bool) -> Tensor:
        x = library.post_quant_conv(frame.permute(2, 0, 1)[None, :, None])
        return library.decoder(x, feat_cache=cache, feat_idx=[0], first_chunk=first)[0].permute(1, 2, 3, 0)

    taken, apart = [], 0.0
    with torch.no_grad():
        for index, frame in enumerate(z):
            calls = {
                "diffusers": partial(theirs, frame, not index),
                "headforcing": partial(ours, frame, features, not index),
            }
            seconds, made = in_turns(device, calls, index)
            taken.append(seconds)
            apart = max(apart, float((made["diffusers"] - made["headforcing"]).float().abs().max()) / 2)
    later = {name: [seconds[name] for seconds in taken[2:]] for name in taken[0]}  # the first two warm up
    return {
        "seconds_per_latent_frame": later,
        "median": {name: median(times) for name, times in later.items()},
        "diffusers_over_headforcing": median(a / b for a, b in zip(*later.values(), strict=True)),
        "largest_difference_of_video_frames_in_0_1": apart,
        "held_bytes": held_bytes(size, dtype, base),
        "peak_bytes": peak_bytes(size, dtype, base),
    }


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure and write the result to the file of `--out`, if one is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="128x96", help="WIDTHxHEIGHT in pixels (128x96)")
    parser.add_argument("--frames", type=int, default=10, help="latent frames, of which the first two warm up (10)")
    parser.add_argument("--base", type=int, default=96, help="base width; 96 in Wan 2.1 (96)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", help="float32, bfloat16 or float16 (float32)")
    parser.add_argument("--out", type=Path, help="JSON file")
    args = parser.parse_args(arguments)
    device, dtype = torch.device(args.device), getattr(torch, args.dtype)
    if device.type == "cpu":
        torch.set_num_threads(1)
        Stopwatch.clock = time.process_time
    width, height = map(int, args.size.split("x"))
    found = {
        "environment": environment(device, dtype),
        "case": {"width": width, "height": height, "latent_frames": args.frames, "base": args.base},
        **measure(args.base, (height // 8, width // 8), args.frames, device, dtype),
    }
    if args.out is not None:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(), indent=1) + "\n")
