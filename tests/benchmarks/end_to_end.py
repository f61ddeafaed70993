"""A whole video through the engine's own job: sampled, decoded and encoded as on the command line, random weights."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from headforcing.headforcing_core.head_profiles.profile import HeadProfile
from headforcing.headforcing_core.model.attention import AttentionFunction, attention_function
from headforcing.headforcing_core.render.options import DEFAULTS
from headforcing.headforcing_core.render.plan import RenderPlan
from headforcing.headforcing_core.render.render import Listener, Place, make_video
from headforcing.headforcing_core.render.request import RenderRequest
from headforcing.headforcing_core.render.resources import needs_of
from headforcing.headforcing_core.render.settings import RenderSettings
from headforcing.headforcing_core.rollout.loop import Block, rollout
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from headforcing.headforcing_core.video.memory import DecoderMemory
from headforcing.headforcing_core.video.wan_decoder import WanDecoder

from .apart import not_available
from .case import HEAD_DIM, PROMPT, SCHEDULE, VIDEO_FRAMES, Case
from .decoder import enlarged_images, random_decoder, tiny_random_decoder
from .rows import HEAD_FORCING
from .stopwatch import fastest, peak_bytes, reset_peak, synchronize


class Ends(Listener):
    """Decodes every block without keeping it, if there is a decoder, and notes when each is done."""

    def __init__(self, decoder: Any = None):
        self.decoder, self.times = decoder, list[float]()

    def add(self, block: Block) -> None:
        if self.decoder:
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
    if encoded and not all(map(find_spec, ("av", "PIL", "tqdm"))):
        return not_available("encoding needs the packages av, PIL and tqdm")
    decoder = (tiny_random_decoder if tiny_fp8 else random_decoder)(case) if case.vae_dim else None
    (plan, attention), model = _plan(case, seconds), case.model(fp8=tiny_fp8)
    reset_peak(case.device)
    synchronize(case.device)
    begun = time.perf_counter()
    with TemporaryDirectory() as folder, torch.no_grad():
        runs = Path(folder) / "runs" if stored else None
        request = RenderRequest(
            plan.config, DEFAULTS, plan.timeline, case.embeds, weights="random", dtype=case.dtype, runs=runs
        )
        job = request.job(plan)
        listeners: list[Any] = [ends := Ends(None if encoded else decoder)]
        if encoded:
            from headforcing.headforcing_core.render.sinks import VideoFile

            listeners.insert(0, VideoFile(Path(folder) / "video.mp4", lambda plan: decoder))
        make_video(job, model, Place(case.device, attention), listeners)
        synchronize(case.device)
        whole = time.perf_counter() - begun
    late = ends.times[(len(ends.times) - 1) // 2 :]  # contexts are full in the second half
    networks = [model.backbone, *([decoder._network] if decoder else [])]
    weights = sum(x.nbytes for network in networks for x in network.parameters())
    memory = DecoderMemory()  # of the decoder of `random_decoder`, without its weights
    if decoder:
        memory = DecoderMemory(0, *WanDecoder(case.vae_dim).memory((case.height // 8, case.width // 8), case.dtype))
    return {
        "video_frames": plan.video_frames,
        "seconds": whole,
        "fps": plan.video_frames / whole,
        "steady_fps": VIDEO_FRAMES * (len(late) - 1) / (late[-1] - late[0]),
        "peak_bytes": peak_bytes(case.device),
        "estimated_bytes": needs_of(plan, case.dtype, weights, decoder=memory).memory,
    }


def waits(case: Case) -> dict[str, Any]:
    """Calls that wait for the device while blocks are made in a full cache, by where they are; CUDA only."""
    if case.device.type != "cuda":
        return not_available("only CUDA tells when something waits for it")
    plan, attention = _plan(case, 20.0)
    cache = plan.make_cache(case.dtype, case.device, attention)
    blocks = rollout(case.model(), cache, case.script(plan.new_blocks), case.noise())
    watched = 6
    for _ in range(plan.new_blocks - watched):
        next(blocks)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            list(blocks)
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


def _plan(case: Case, seconds: float) -> tuple[RenderPlan, AttentionFunction]:
    """The plan of a video, and its attention."""
    roles = tuple(map(tuple, case.roles))
    profile = HeadProfile("random", case.layers, case.config.num_heads, roles, None, None, None)
    timeline, settings = parse_timeline(PROMPT, seconds), RenderSettings(width=case.width, height=case.height)
    plan = RenderPlan.make(case.config, HEAD_FORCING, SCHEDULE, timeline, settings, profile)
    return plan, attention_function("auto", case.device, case.dtype, HEAD_DIM, plan.shape.layer_sizes)
