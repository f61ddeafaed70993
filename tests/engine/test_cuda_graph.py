"""When denoising passes are recorded, replayed and recorded again, on a CPU: recordings are stood
in for by functions.

A stand-in does what a CUDA graph does: it calls the recorded function on the memory that it was
recorded with, whatever is passed to the model since.
"""

import functools
import logging
import weakref
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.devices import kept_tables
from headforcing.headforcing_core.methods.head_forcing import CachePolicy, preset
from headforcing.headforcing_core.model import cuda_graph
from headforcing.headforcing_core.model.attention import LayerAttention
from headforcing.headforcing_core.model.cuda_graph import GraphedForward
from headforcing.headforcing_core.model.wan import WanModel
from headforcing.headforcing_core.rollout.loop import WanVideoModel, rollout
from headforcing.headforcing_core.rollout.rows import SeededNoise
from headforcing.headforcing_core.rollout.schedule import schedule
from headforcing.headforcing_core.timeline.switch import Switch
from policies import with_memory
from scripts import script_of
from small_engine import embeds, film, latents, measure, new_cache, wan
from torch import Tensor

ROLES = [["memory", "local", "anchor", "local"], ["anchor", "memory", "local", "anchor"]]
SCHEDULE = schedule("self_forcing")
STEPS = len(SCHEDULE.sigmas)
STEADY = preset("no_episodic_memory")
AT = 6  # its contexts have one length from block 3 on; three whole blocks later a pass is recorded
# an admission after every block from the second on, until three frames are remembered; then a merge
# after every block
BUSY = with_memory(CachePolicy(), 3, 3, 2.0, 1)


class Recorder:
    """Stands in for `record_cuda`; `at` holds the block of every recording, which may end with an
    `error`.
    """

    def __init__(self, error: Exception | None = None):
        self.at: list[int] = []
        self.cache: HeadCache | None = None
        self.error = error

    def __call__(self, run: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
        assert device == torch.device("cpu"), "the one that the pass computes on"
        out = run()
        self.at.append(self.cache.block)
        if self.error is not None:
            raise self.error
        return lambda: out.copy_(run())


def make(
    model: WanModel, blocks: int, policy: CachePolicy, recorder: Recorder | None = None, **options
):
    """The latents of a video, and what ran its passes."""
    cache = new_cache(model, ROLES, policy, blocks)
    forward = cuda_graph.forward_block
    if recorder is not None:
        recorder.cache = cache
        forward = GraphedForward(recorder)
    return latents(
        film(model, cache, blocks, schedule=SCHEDULE, forward=forward, **options)
    ), forward


CHANGED = {  # policy, blocks, what changes; the blocks at which a pass is recorded, and how many blocks are replayed
    "memory grows, and then merges in the same places": (BUSY, 16, {}, [7], 9),
    "the prompt": (STEADY, 16, {"prompts": [0] * 8 + [1] * 8}, [AT, 11], 2 + 5),
    "a flush": (STEADY, 14, {"switches": {7: Switch("flush")}}, [AT, 12], 1 + 2),
    "a recache": (STEADY, 14, {"switches": {7: Switch("recache")}}, [AT, 9], 1 + 5),
    "frames numbered from the start of the video": (replace(STEADY, rope="absolute"), 8, {}, [], 0),
}


@pytest.mark.parametrize("change", CHANGED)
def test_passes_are_replayed_while_nothing_changes_and_make_the_same_video(model, caplog, change):
    policy, blocks, options, recorded, replayed = CHANGED[change]
    with caplog.at_level(logging.INFO):
        found, forward = make(model, blocks, policy, recorder := Recorder(), **options)
    assert torch.equal(found, make(model, blocks, policy, **options)[0])
    assert recorder.at == recorded and forward.replays == replayed * STEPS
    dropped = "dropped after a change of prompt, cache or shapes"
    assert sum(dropped in line for line in caplog.messages) == max(0, len(recorded) - 1)


def graphed(model: WanModel) -> tuple[WanVideoModel, Recorder]:
    """A model whose passes are recorded at once."""
    video = WanVideoModel(
        model, torch.float32, forward=GraphedForward(recorder := Recorder(), steady_blocks=0)
    )
    video.use_prompt(torch.ones(4, 10))
    return video, recorder


def test_another_cache_and_other_shapes_are_not_given_to_a_recording(model):
    video, recorder = graphed(model)
    caches = [new_cache(model, ROLES, STEADY, 10) for _ in range(2)]
    for cache in caches:
        cache.begin_block()
    pairs = (caches[0], (4, 6)), (caches[1], (4, 6)), (caches[1], (6, 4))  # frames of 6 tokens
    for earlier, (recorder.cache, size) in enumerate(pairs):
        x = torch.randn(3, 16, *size)
        found = video.flow(x, 0.5, recorder.cache)
        assert len(recorder.at) == earlier + 1
        plain = WanVideoModel(model, torch.float32)
        plain.prompt = video.prompt
        assert torch.equal(found, plain.flow(x, 0.5, recorder.cache))


def test_a_recording_that_fails_is_one_line_in_the_log_and_the_video_is_made(model, caplog):
    recorder = Recorder(
        RuntimeError("operation not permitted when stream is capturing\nand a long list")
    )
    with caplog.at_level(logging.INFO):
        found, forward = make(model, 10, STEADY, recorder)
    assert torch.equal(found, make(model, 10, STEADY)[0])
    assert recorder.at == [AT] and not forward.replays
    assert [line for line in caplog.messages if "graph" in line] == [
        "Head Forcing: continues without a CUDA graph: operation not permitted when stream is "
        "capturing"
    ]


def test_measured_passes_are_never_recorded(model):
    cache = new_cache(model, ROLES, STEADY, 10)
    cache.begin_block()
    assert cache.layout == ((3, 0, 1, 2),) * len(cache.groups)
    measure(cache)
    assert cache.layout is None


def test_a_replay_sends_timesteps_through_pinned_memory_and_keeps_the_result_before(
    model, monkeypatch
):
    """A copy from other memory of the host waits for all work that the GPU was given."""
    sent = []
    upload = cuda_graph.upload
    monkeypatch.setattr(
        cuda_graph, "upload", lambda x, device: [sent.append(x.shape), upload(x, device)][1]
    )
    video, recorder = graphed(model)
    recorder.cache = cache = new_cache(model, ROLES, STEADY, 10)
    cache.begin_block()
    x = torch.randn(3, 16, 4, 6)
    first = video.flow(x, 1.0, cache)
    kept = first.clone()
    second = video.flow(x + 1, 0.5, cache)
    assert (
        video.forward.replays == 2 and torch.equal(first, kept) and not torch.equal(first, second)
    )
    assert sent == [(3, model.config.freq_dim)] * 3


class Gpu:
    """Stands in for `torch.cuda` while a graph is recorded: what is current, and the pools that are
    recorded to.

    Like PyTorch's, a recording whose end fails leaves its stream current and the allocator with its
    pool.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.device = torch.device("cuda", 0)
        self.stream = self.new_stream(self.device)
        self.pools = []
        self.released = []
        self.error: Exception | None = None  # raised where the next recording ends
        fakes = {
            "device": lambda device: self.within(device=device),
            "graph": self.graph,
            "graph_pool_handle": object,
            "stream": lambda stream: self.within(stream=stream),
            "current_stream": lambda: self.stream,
            "set_stream": lambda stream: vars(self).update(stream=stream),
            "CUDAGraph": SimpleNamespace,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", self.end_pool, raising=False)
        monkeypatch.setattr(
            torch._C, "_cuda_releasePool", lambda *place: self.released.append(place), raising=False
        )
        # one for each device, as the real one, and gone with this test
        monkeypatch.setattr(cuda_graph, "_side_stream", functools.cache(self.new_stream))

    def new_stream(self, device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(device=device, wait_stream=lambda other: None)

    @contextmanager
    def within(self, **current):
        before = {name: vars(self)[name] for name in current}
        vars(self).update(current)
        try:
            yield
        finally:
            vars(self).update(before)

    @contextmanager
    def graph(self, graph, *, pool: object, stream: SimpleNamespace, capture_error_mode: str):
        assert capture_error_mode == "thread_local", "other threads may allocate meanwhile"
        place = (self.device.index, pool)
        before = self.stream
        self.stream = stream
        self.pools.append(place)
        try:
            yield
        finally:
            if self.error is not None:
                raise self.error
            self.end_pool(*place)
            self.stream = before

    def end_pool(self, *place) -> None:
        if place not in self.pools:
            raise RuntimeError("not recording to this pool")
        self.pools.remove(place)


def test_a_graph_is_recorded_on_one_stream_of_the_device_of_the_latents_which_a_failure_does_not_leave(
    monkeypatch,
):
    gpu = Gpu(monkeypatch)
    seen = []
    failing = []
    before = (gpu.device, gpu.stream)
    devices = [torch.device("cuda", index) for index in (1, 0, 1)]

    def run():
        seen.append((gpu.device, gpu.stream))
        if failing and len(seen) % 2 == 0:
            raise failing.pop()
        return torch.ones(1)

    for device in devices:
        cuda_graph.record_cuda(run, device)
    # each pass runs twice, first to warm up the libraries on the stream that is recorded
    assert (
        [device for device, _ in seen[::2]] == devices == [stream.device for _, stream in seen[::2]]
    )
    assert seen[::2] == seen[1::2] and seen[0] == seen[4] and seen[0] != seen[2]
    failing.append(torch.OutOfMemoryError("full"))
    with pytest.raises(torch.OutOfMemoryError, match="full"):
        cuda_graph.record_cuda(run, devices[0])
    assert (gpu.device, gpu.stream, gpu.pools, gpu.released) == (*before, [], []), (
        "the graph releases what it ended"
    )
    gpu.error = RuntimeError("operation failed due to a previous error during capture")
    with pytest.raises(RuntimeError) as raised:
        cuda_graph.record_cuda(run, devices[0])
    assert raised.value is gpu.error and (gpu.device, gpu.stream, gpu.pools) == (*before, [])
    assert [device for device, _ in gpu.released] == [1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: CUDA graphs are not recorded")
def test_a_cuda_graph_makes_the_same_video():
    model = wan().to("cuda")
    videos = []
    shape = CacheShape.for_model(model.config, ROLES, BUSY, 4, 6, 3, 48)
    for forward in (cuda_graph.forward_block, GraphedForward()):
        video = WanVideoModel(model, torch.float32, "cuda", forward)
        script = script_of([0] * 16, SCHEDULE, embeds(model))
        made = rollout(
            video, HeadCache(shape, torch.float32, "cuda"), script, SeededNoise((3, 16, 4, 6))
        )
        videos.append(latents(made))
    assert forward.replays
    torch.testing.assert_close(*videos, atol=1e-5, rtol=0)


def test_a_graph_keeps_the_tables_that_it_reads_and_no_longer(model, monkeypatch):
    """Else they would be freed when tables of 512 other contexts have been made."""
    made = []

    @kept_tables
    def table(number: int) -> Tensor:
        made.append(weakref.ref(fresh := torch.tensor(number)))
        return fresh

    def layer(q, k, v, spans):
        return q + 0 * table(0)

    recorder = Recorder()
    cache = recorder.cache = new_cache(model, ROLES, STEADY, 20)
    cache.attention = LayerAttention(layer)
    video = WanVideoModel(model, torch.float32)
    video.forward = graph = GraphedForward(recorder)
    script = script_of([0] * 10, SCHEDULE, embeds(model))
    for block in rollout(video, cache, script, SeededNoise((3, 16, 4, 6))):
        if block.index == AT:
            assert graph.replays and made[0]() is not None
            for number in range(1, 600):
                table(number)
            assert made[0]() is not None
    cache.flush()  # another layout
    cache.begin_block()
    graph(model, block.latents, torch.zeros(3), video.prompt, cache, write_only=True)
    assert made[0]() is None
