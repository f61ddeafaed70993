"""A whole video through the engine's own job: sampled, decoded and encoded as on the command line, random weights."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from headforcing.headforcing_core.head_profiles.profile import HeadProfile
from headforcing.headforcing_core.model.attention import attention_function
from headforcing.headforcing_core.render.job import RenderJob
from headforcing.headforcing_core.render.plan import RenderPlan
from headforcing.headforcing_core.render.render import Listener, Place, make_video
from headforcing.headforcing_core.render.resources import needs_of
from headforcing.headforcing_core.render.settings import RenderSettings
from headforcing.headforcing_core.rollout.loop import Block, rollout
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from headforcing.headforcing_core.video.memory import DecoderMemory
from headforcing.headforcing_core.video.wan_decoder import WanDecoder

from .case import HEAD_DIM, PROMPT, SCHEDULE, Case, fp8_model, random_model
from .decoder import enlarged_images, random_decoder, tiny_random_decoder
from .rows import HEAD_FORCING
from .stopwatch import fastest, peak_bytes, reset_peak, synchronize

SHARE_OF_STEADY = 0.5  # of a video's blocks, its last ones: their contexts are full


class Ends(Listener):
    """Decodes every block without keeping it, if there is a decoder, and notes when each is done."""

    def __init__(self, decoder: Any = None):
        self.decoder, self.times = decoder, list[float]()

    def add(self, block: Block) -> None:
        if self.decoder is not None:
            self.decoder.decode(block.latents)
        self.times.append(time.perf_counter())


def video(
    case: Case, seconds: float, encoded: bool = False, tiny_fp8: bool = False, stored: bool = False
) -> dict[str, Any]:
    """Seconds of a whole video and of its blocks, and the memory it takes beside the estimate.

    Args:
        seconds: length of the video.
        encoded: to an MP4; otherwise video frames are decoded and dropped, and without a decoder only sampled.
        tiny_fp8: with linear layers in fp8 and a tiny decoder; the memory beside the estimate means nothing then.
        stored: with a run folder.
    """
    if encoded:
        try:
            import av  # noqa: F401
            import PIL  # noqa: F401
            from headforcing.headforcing_core.render.sinks import VideoFile
        except ImportError as error:
            return {"not_available": f"encoding needs more packages: {error}"}
    decoder = None
    if case.vae_dim:
        decoder = tiny_random_decoder(case) if tiny_fp8 else random_decoder(case)
    made_by = fp8_model if tiny_fp8 else random_model
    plan, model = _plan(case, seconds), made_by(case.config, case.dtype, case.device, case.seed)
    attention = attention_function("auto", case.device, case.dtype, HEAD_DIM, plan.shape.layer_sizes)
    ends = Ends(None if encoded else decoder)
    reset_peak(case.device)
    synchronize(case.device)
    begun = time.perf_counter()
    with TemporaryDirectory() as folder, torch.no_grad():
        job = RenderJob(plan, case.embeds, "random", case.dtype, runs=Path(folder) / "runs" if stored else None)
        listeners: list[Any] = [ends]
        if encoded:
            listeners.insert(0, VideoFile(Path(folder) / "video.mp4", plan, lambda: decoder, {}))
        make_video(job, model, Place(case.device, attention), listeners)
        synchronize(case.device)
        whole = time.perf_counter() - begun
    times = [end - begun for end in ends.times]
    networks = [model.backbone, *([decoder._network] if decoder else [])]
    weights = sum(x.nbytes for network in networks for x in network.parameters())
    half = len(times) - round(len(times) * SHARE_OF_STEADY)
    steady = (times[-1] - times[half - 1]) / (len(times) - half) if half else times[-1] / len(times)
    return {
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
    blocks = rollout(model, cache, case.script(plan.new_blocks), case.noise())
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


def vae(case: Case, searched: bool = False, enlarged: bool = False) -> dict[str, Any]:
    """Milliseconds of the decoder alone, per block of three latent frames, and the memory it takes.

    Args:
        searched: whether cuDNN times its plans for every shape, instead of taking the first that it proposes.
        enlarged: whether images are enlarged and convolved, instead of by one transposed convolution.
    """
    decoder = random_decoder(case)
    latents = torch.randn(3, 16, case.height // 8, case.width // 8, device=case.device)
    with torch.backends.cudnn.flags(benchmark=searched), enlarged_images() if enlarged else nullcontext():
        for _ in range(2):  # the first frame of a video is another computation, and the second block still allocates
            decoder.decode(latents)
        reset_peak(case.device)
        ms = fastest(case.device, lambda: decoder.decode(latents), repetitions=3, warm_up=0)
    return {"ms_per_block": ms, "peak_bytes": peak_bytes(case.device)}


def _plan(case: Case, seconds: float) -> RenderPlan:
    roles = tuple(map(tuple, case.roles))
    profile = HeadProfile("random", case.layers, case.config.num_heads, roles, None, None, None)
    timeline = parse_timeline(PROMPT, seconds)
    settings = RenderSettings(width=case.width, height=case.height)
    return RenderPlan.make(case.config, HEAD_FORCING, SCHEDULE, timeline, settings, profile)


def _decoder_memory(case: Case) -> DecoderMemory:
    """Of the decoder of `random_decoder`, without its weights."""
    if not case.vae_dim:
        return DecoderMemory()
    return DecoderMemory(0, *WanDecoder(case.vae_dim).memory((case.height // 8, case.width // 8), case.dtype))
