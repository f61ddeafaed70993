"""A whole video through the engine's own job: sampled, decoded and encoded as on the command line, random weights."""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from headforcing.headforcing_core.head_profiles.profile import HeadProfile
from headforcing.headforcing_core.model.attention import attention_function
from headforcing.headforcing_core.render.plan import RenderPlan
from headforcing.headforcing_core.render.resources import needs_of
from headforcing.headforcing_core.rollout.loop import rollout
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from headforcing.headforcing_core.video.memory import DecoderMemory
from headforcing.headforcing_core.video.wan_decoder import held_bytes
from headforcing.headforcing_core.video.wan_decoder import peak_bytes as peak_bytes_of
from torch import nn

from .case import HEAD_DIM, SCHEDULE, Case, random_model
from .decoder import random_decoder
from .rows import HEAD_FORCING
from .stopwatch import peak_bytes, reset_peak, synchronize

SHARE_OF_STEADY = 0.5  # of a video's blocks, its last ones: their contexts are full


def video(case: Case, seconds: float, encoded: bool) -> dict[str, Any]:
    """Seconds of a whole video and of its blocks, and the memory it takes beside the estimate.

    Args:
        seconds: length of the video.
        encoded: to an MP4; otherwise video frames are decoded and dropped, and without a decoder only sampled.
    """
    if encoded and not (importlib.util.find_spec("av") and importlib.util.find_spec("PIL")):
        return {"not_available": "encoding needs the packages av and pillow"}
    decoder, which = random_decoder(case)
    if encoded and decoder is None:
        return {"not_available": which}
    plan, model = _plan(case, seconds), random_model(case.config, case.dtype, case.device, case.seed)
    attention = attention_function("auto", case.device, case.dtype, HEAD_DIM, plan.shape.layer_sizes)
    cache = plan.make_cache(case.dtype, case.device, attention)
    blocks = rollout(model, cache, SCHEDULE, case.noise(), [0] * plan.new_blocks)
    ends: list[float] = []
    reset_peak(case.device)
    synchronize(case.device)
    begun = time.perf_counter()
    with ExitStack() as stack, torch.no_grad():
        sink = None
        if encoded:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            sink = stack.enter_context(_mp4(folder / "video.mp4", plan, decoder))
        for block in blocks:
            if sink is not None:
                sink.add(block.latents)
            elif decoder is not None:
                decoder.decode(block.latents)
            ends.append(time.perf_counter() - begun)
        if sink is not None:
            sink.finish()
        synchronize(case.device)
        whole = time.perf_counter() - begun
    weights = sum(x.nbytes for x in (*model.backbone.parameters(), *_weights(decoder)))
    half = len(ends) - round(len(ends) * SHARE_OF_STEADY)
    steady = (ends[-1] - ends[half - 1]) / (len(ends) - half) if half else ends[-1] / len(ends)
    return {
        "decoder": which,
        "encoded": encoded,
        "video_frames": plan.video_frames,
        "seconds": whole,
        "fps": plan.video_frames / whole,
        "steady_fps": 12 / steady,
        "peak_bytes": peak_bytes(case.device),
        "estimated_bytes": needs_of(plan, case.dtype, weights, decoder=_decoder_memory(case)).memory,
    }


def waits(case: Case) -> dict[str, Any]:
    """Calls that wait for the device while blocks are made in a full cache, by where they are; CUDA only."""
    if case.device.type != "cuda":
        return {"not_available": "only CUDA tells when something waits for it"}
    plan, model = _plan(case, 20.0), random_model(case.config, case.dtype, case.device, case.seed)
    attention = attention_function("auto", case.device, case.dtype, HEAD_DIM, plan.shape.layer_sizes)
    cache = plan.make_cache(case.dtype, case.device, attention)
    blocks = rollout(model, cache, SCHEDULE, case.noise(), [0] * plan.new_blocks)
    watched = 6
    for _ in range(plan.new_blocks - watched):
        next(blocks)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for _ in range(watched):
                next(blocks)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    places = Counter(f"{Path(warning.filename).name}:{warning.lineno}" for warning in told)
    return {"blocks": watched, "waits": dict(places.most_common())}


def vae(case: Case, latent_frames: int = 9) -> dict[str, Any]:
    """Milliseconds of the decoder alone, per block of three latent frames, and the memory it takes."""
    decoder, which = random_decoder(case)
    if decoder is None:
        return {"not_available": which}
    latents = torch.randn(3, 16, case.height // 8, case.width // 8, device=case.device)
    times = []
    for index in range(2 + latent_frames // 3):
        if index == 2:  # the first frame of a video is another computation, and the second block still allocates
            reset_peak(case.device)
        synchronize(case.device)
        begun = time.perf_counter()
        decoder.decode(latents)
        synchronize(case.device)
        times.append(1000 * (time.perf_counter() - begun))
    return {"decoder": which, "ms_per_block": min(times[2:]), "peak_bytes": peak_bytes(case.device)}


def _plan(case: Case, seconds: float) -> RenderPlan:
    roles = tuple(map(tuple, case.roles))
    profile = HeadProfile("random", case.layers, case.config.num_heads, roles, None, None, None)
    timeline = parse_timeline("a red ball", seconds)
    return RenderPlan.make(case.config, HEAD_FORCING, SCHEDULE, timeline, case.width, case.height, profile=profile)


def _mp4(path: Path, plan: RenderPlan, decoder: Any) -> Any:
    from headforcing.headforcing_core.render.sinks import Mp4File

    return Mp4File(path, plan, decoder, 1, {})


def _decoder_memory(case: Case) -> DecoderMemory:
    """Of the decoder of `random_decoder`, without its weights."""
    sizes = (case.height // 8, case.width // 8), case.dtype, case.vae_dim
    return DecoderMemory(held=held_bytes(*sizes), peak=peak_bytes_of(*sizes)) if case.vae_dim else DecoderMemory()


def _weights(decoder: Any) -> list[torch.Tensor]:
    modules = [value for value in vars(decoder).values() if isinstance(value, nn.Module)] if decoder else []
    return [x for module in modules for x in module.parameters()]
