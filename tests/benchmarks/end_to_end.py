"""A whole video through the engine's own job: sampled, decoded and encoded as on the command line,
random weights.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from headforcing.headforcing_core.head_profiles.profile import HeadProfile
from headforcing.headforcing_core.model.attention import AttentionFunction, attention_function
from headforcing.headforcing_core.plan.options import DEFAULTS, RenderOptions
from headforcing.headforcing_core.plan.plan import RenderPlan
from headforcing.headforcing_core.plan.request import RenderRequest
from headforcing.headforcing_core.plan.resources import needs_of
from headforcing.headforcing_core.queue_thread import HostCopy, QueueThread, arrived, to_host
from headforcing.headforcing_core.render.render import Listener, Place, make_video
from headforcing.headforcing_core.rollout.loop import Block, RolloutInputs, rollout
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from headforcing.headforcing_core.video.memory import DecoderMemory
from headforcing.headforcing_core.video.wan_decoder import WanDecoder

from .apart import not_available
from .case import HEAD_DIM, PROMPT, VIDEO_FRAMES, Case
from .decoder import enlarged_images, padded_outputs, random_decoder, tiny_random_decoder
from .rows import HEAD_FORCING
from .stopwatch import fastest, peak_bytes, reset_peak, synchronize


class Ends(Listener):
    """Decodes every block without keeping it, if there is a decoder, and notes when each is
    done.
    """

    def __init__(self, decoder: Any = None):
        self.decoder = decoder
        self.times = list[float]()

    def add(self, block: Block) -> None:
        if self.decoder:
            self.decoder.decode(block.latents)
        self.times.append(time.perf_counter())


class EndsBeside(Listener):
    """Decodes in a thread and a CUDA stream of its own, beside the sampling of the next block."""

    def __init__(self, decoder: Any, device: torch.device):
        self.times = list[float]()
        self._decoder = decoder
        self._stream: Any = nullcontext()
        if device.type == "cuda":
            stream = torch.cuda.Stream(device)
            stream.wait_stream(torch.cuda.current_stream(device))
            self._stream = torch.cuda.stream(stream)
        self._thread = QueueThread("video", length=4)  # blocks that wait, as in `VideoStream`

    @contextmanager
    def running(self) -> Iterator[None]:
        """The thread, until it has decoded every block."""
        with self._thread:
            yield
            self._thread.settle()

    def add(self, block: Block) -> None:
        self._thread.put(partial(self._decode, to_host(block.latents)))

    def _decode(self, copy: HostCopy) -> None:
        with torch.inference_mode(), self._stream:
            self._decoder.decode(arrived(copy)).sum().item()  # waits until the stream is done
            self.times.append(time.perf_counter())


def beside(case: Case, seconds: float) -> dict[str, Any]:
    """A video whose blocks are decoded on the same device while the next one is sampled."""
    plan, attention = random_plan(case, seconds)
    request = RenderRequest(
        plan.config, DEFAULTS, plan.timeline, case.embeds, weights="random", dtype=case.dtype
    )
    ends = EndsBeside(random_decoder(case), case.device)
    model = case.model()
    begun = time.perf_counter()
    with torch.no_grad(), ends.running():
        make_video(request.job(plan), model, Place(case.device, attention), [ends])
    whole = time.perf_counter() - begun
    return {
        "seconds": whole,
        "fps": plan.video_frames / whole,
        "steady_fps": steady_fps(ends.times),
    }


def steady_fps(times: list[float]) -> float:
    """Video frames a second in the second half of a video, where contexts are full, from when each
    block was done.
    """
    late = times[(len(times) - 1) // 2 :]
    return VIDEO_FRAMES * (len(late) - 1) / (late[-1] - late[0])


def allocator(device: torch.device) -> dict[str, int]:
    """What the driver shows as taken, and how often PyTorch freed its cache to go on; nothing
    without CUDA.
    """
    if device.type != "cuda":
        return {}
    stats = torch.cuda.memory_stats(device)
    return {
        "reserved_bytes": stats["reserved_bytes.all.peak"],
        "alloc_retries": stats["num_alloc_retries"],
    }


def video(
    case: Case,
    seconds: float,
    encoded: bool = False,
    tiny: bool = False,
    fp8: bool = False,
    stored: bool = False,
) -> dict[str, Any]:
    """Seconds of a whole video and of its blocks, and the memory it takes beside the estimate.

    Args:
        seconds: length of the video.
        encoded: to an MP4; otherwise video frames are decoded and dropped, and without a decoder
            only sampled.
        tiny: with a tiny decoder; the memory beside the estimate means nothing then, nor with
            `fp8`.
        fp8: with linear layers in fp8.
        stored: with a run folder.
    """
    if encoded and not all(map(find_spec, ("av", "PIL", "tqdm"))):
        return not_available("encoding needs the packages av, PIL and tqdm")
    decoder: Any = None
    if case.vae_dim:
        decoder = tiny_random_decoder(case) if tiny else random_decoder(case)
    plan, attention = random_plan(case, seconds)
    model = case.model(fp8=fp8)
    if case.device.type == "cuda":
        torch.cuda.empty_cache()  # what making the weights took is not memory of the video
    reset_peak(case.device)
    synchronize(case.device)
    begun = time.perf_counter()
    with TemporaryDirectory() as folder, torch.no_grad():
        runs = Path(folder) / "runs" if stored else None
        request = RenderRequest(
            plan.config,
            DEFAULTS,
            plan.timeline,
            case.embeds,
            weights="random",
            dtype=case.dtype,
            runs=runs,
        )
        job = request.job(plan)
        listeners: list[Any] = [ends := Ends(None if encoded else decoder)]
        if encoded:
            from headforcing.headforcing_core.render.sinks import FileTarget, VideoFile

            target = FileTarget.at(Path(folder) / "video.mp4", lambda plan: decoder)
            listeners.insert(0, VideoFile(target))
        make_video(job, model, Place(case.device, attention), listeners)
        synchronize(case.device)
        whole = time.perf_counter() - begun
    networks = [model.backbone, *([decoder._network] if decoder else [])]
    parameters = chain(*(network.parameters() for network in networks))
    weights = sum(parameter.nbytes for parameter in parameters)
    memory = DecoderMemory()  # of the decoder of `random_decoder`, without its weights
    if decoder:
        memory = DecoderMemory(
            0, *WanDecoder(case.vae_dim).memory((case.height // 8, case.width // 8), case.dtype)
        )
    return {
        "video_frames": plan.video_frames,
        "seconds": whole,
        "fps": plan.video_frames / whole,
        "steady_fps": steady_fps(ends.times),
        "first_block_seconds": ends.times[0] - begun,
        "peak_bytes": peak_bytes(case.device),
        **allocator(case.device),
        "estimated_bytes": needs_of(plan, case.dtype, weights, decoder=memory).memory,
    }


def waits(case: Case) -> dict[str, Any]:
    """Calls that wait for the device while blocks are made in a full cache, by where they are; CUDA
    only.
    """
    if case.device.type != "cuda":
        return not_available("only CUDA tells when something waits for it")
    plan, attention = random_plan(case, 20.0)
    cache = plan.make_cache(case.dtype, case.device, attention)
    blocks = rollout(case.model(), cache, RolloutInputs(case.script(plan.new_blocks), case.noise()))
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


@torch.no_grad()
def vae(
    case: Case, searched: bool = False, enlarged: bool = False, outputs_in: int = 0
) -> dict[str, Any]:
    """Milliseconds of the decoder alone, per block of three latent frames, and the memory it takes.

    Args:
        searched: whether cuDNN times its plans for every shape, instead of taking the first that it
            proposes.
        enlarged: whether images are enlarged and convolved, instead of by one transposed
            convolution.
        outputs_in: a multiple to which the outputs of convolutions are padded; 0 leaves them.
    """
    with padded_outputs(outputs_in) if outputs_in else nullcontext():
        decoder = random_decoder(case)
    latents = torch.randn(3, 16, case.height // 8, case.width // 8, device=case.device)
    with (
        torch.backends.cudnn.flags(benchmark=searched),
        enlarged_images() if enlarged else nullcontext(),
    ):
        # the first frame of a video is another computation, and the second block still allocates
        for _ in range(2):
            decoder.decode(latents)
        reset_peak(case.device)
        ms = fastest(case.device, lambda: decoder.decode(latents), repetitions=3, warm_up=0)
    return {"ms_per_block": ms, "peak_bytes": peak_bytes(case.device)}


def random_plan(case: Case, seconds: float) -> tuple[RenderPlan, AttentionFunction]:
    """The plan of a video, and its attention."""
    roles = tuple(map(tuple, case.roles))
    profile = HeadProfile("random", case.layers, case.config.num_heads, roles, None, None, None)
    timeline = parse_timeline(PROMPT, seconds)
    options = RenderOptions(
        width=case.width, height=case.height, profile=profile, given_method=HEAD_FORCING
    )
    plan = RenderPlan.of(case.config, options, timeline)
    return plan, attention_function(
        "auto", case.device, case.dtype, HEAD_DIM, plan.shape.layer_sizes
    )
