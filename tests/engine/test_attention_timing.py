"""`auto` on a GPU: it times what works at the sizes of the render, and remembers. GPUs and clocks are stood in for."""

import json

import pytest
import torch
from attention_cases import sequence_attention
from headforcing.headforcing_core.cache.policy import preset
from headforcing.headforcing_core.cache.shape import CacheShape
from headforcing.headforcing_core.model import attention, attention_timing
from headforcing.headforcing_core.model.attention import GroupedAttention, LayerAttention, LayerSizes, sdpa
from headforcing.headforcing_core.model.attention_backends import self_test, varlen
from headforcing.headforcing_core.model.attention_timing import LOADING_SECONDS, SECONDS, Clock, described, fastest
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.headforcing_core.render.render import attention_name

CPU, BF16 = torch.device("cpu"), torch.bfloat16
SIZES = LayerSizes(64, ((2, 96), (1, 32)))


class FakeGpu:
    """A clock, and backends by their seconds for all queries of a layer; None does not work.

    `loading` is the time that the backend of a name takes once, before its self-test; `on_host` that of every call.
    """

    def __init__(self, folder, **backends: float | None):
        self.now, self.host, self.file = 0.0, 0.0, folder / "attention.json"
        self.backends, self.loading, self.on_host = backends, {}, {}
        self.calls, self.tried = [], []

    def try_backend(self, name: str):
        self.tried.append(name)
        self.now += self.loading.pop(name, 0.0)
        if self.backends[name] is None:
            raise RuntimeError("no kernel image. More")

        def layer(q, k, v, spans):
            self.calls.append((name, q.shape[1]))
            on_host = self.on_host.get(name, 0.0)
            self.now += self.backends[name] * q.shape[1] / SIZES.queries + on_host
            self.host += on_host
            return q

        return LayerAttention(layer)

    def timed(self, sizes=SIZES, try_backend=None, clock=None) -> dict[str, float]:
        clock = clock or Clock(lambda: self.now, lambda: self.host)
        names, sort = list(self.backends), (CPU, torch.float32, 16)
        return fastest(names, sizes, try_backend or self.try_backend, *sort, clock, self.file)

    def stored(self) -> dict:
        return json.loads(self.file.read_text())


def test_the_fastest_comes_first_what_fails_is_left_out_and_times_are_kept_for_sizes_and_versions(
    tmp_path, monkeypatch
):
    gpu = FakeGpu(tmp_path, slow=3e-3, broken=None, quick=1e-3)
    times = gpu.timed()
    assert list(times) == ["quick", "slow"] and list(times.values()) == pytest.approx([1.0, 3.0])
    assert described(times) == "quick (timed: 1 ms a layer; slow 3.00 times as long)"
    counts = [len(gpu.calls)]
    assert gpu.timed() == times and len(gpu.calls) == counts[-1]
    gpu.timed(LayerSizes(32, SIZES.groups))
    counts.append(len(gpu.calls))
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    gpu.timed()
    assert counts[0] < counts[1] < len(gpu.calls) and len(gpu.stored()) == 3
    assert list(tmp_path.iterdir()) == [gpu.file], "no temporary file stays"


def test_a_damaged_file_is_measured_anew_and_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    gpu = FakeGpu(tmp_path, a=1e-3, b=2e-3)
    times = gpu.timed()
    (key,) = gpu.stored()
    for damage in ("", "{", "[1]", '{"x": 3}', '{"KEY": {"a": -1}}', '{"KEY": {"a": "fast"}}', "\x00", "[" * 9000):
        gpu.file.write_text(damage.replace("KEY", json.dumps(key)[1:-1]))
        assert gpu.timed() == pytest.approx(times) and gpu.stored()[key] == pytest.approx(times)
    gpu.file.unlink()
    gpu.file.mkdir()
    assert list(gpu.timed()) == ["a", "b"]


@pytest.mark.parametrize("seconds", [1e-3, 0.1, 0.4, 1.0, 10.0])
@pytest.mark.parametrize("loading", [0.0, 0.3])
def test_calls_never_take_longer_than_two_seconds(tmp_path, seconds, loading):
    """Nothing is begun that is known not to end in time; the order is that of the estimates then."""
    gpu = FakeGpu(tmp_path, a=seconds, b=seconds / 2, c=seconds / 4)
    gpu.loading = dict.fromkeys("abc", loading)
    times = gpu.timed()
    assert gpu.now <= SECONDS + 3 * loading + seconds / 8
    assert times and list(times) == sorted(times, key=lambda name: -ord(name))
    assert times["a"] == pytest.approx(1000 * seconds)
    if seconds == 10.0:
        assert {queries for _, queries in gpu.calls} == {SIZES.queries // 16}


def test_what_prepares_itself_in_every_call_is_left_out(tmp_path):
    """As cuDNN's kernel for sequences does in PyTorch 2.11 and 2.13: 42 ms on the host, whatever the GPU takes."""
    gpu = FakeGpu(tmp_path, anew=1e-4, b=1e-4)
    gpu.on_host = {"anew": 0.042, "b": 1e-3}
    assert list(gpu.timed()) == ["b"] and list(gpu.stored().values()) == [{"anew": None, "b": pytest.approx(1.1)}]
    assert [name for name, _ in gpu.calls].count("anew") == 2  # the second tells


@pytest.mark.parametrize("works", [True, False])
def test_what_there_was_no_time_for_is_timed_in_the_next_calls_until_all_were_tried(tmp_path, works):
    """The first backend of a fresh start may load for long, whether it works or not."""
    gpu = FakeGpu(tmp_path, cold=1e-3 if works else None, slow=3e-3, broken=None, quick=0.5e-3)
    gpu.loading = {"cold": LOADING_SECONDS}
    assert (list(gpu.timed()), gpu.tried) == (["cold"] * works, ["cold"])
    for _ in range(2):
        assert list(gpu.timed()) == ["quick", *["cold"] * works, "slow"]
    assert gpu.tried == list(gpu.backends)  # each of them once, also those that do not work


@pytest.mark.parametrize("error", [RuntimeError("an illegal memory access"), KeyboardInterrupt("stop")], ids=repr)
def test_a_backend_that_leaves_the_device_unusable_is_not_tried_again_but_after_an_interruption(tmp_path, error):
    """After an illegal access everything later in this process raises."""
    gpu, ends = FakeGpu(tmp_path, a=1e-3, b=1e-3, c=1e-3), [error]

    def now() -> float:
        if gpu.tried[-1:] == ["b"] and not ends:
            raise error
        return gpu.now

    def try_backend(name: str):
        attention = gpu.try_backend(name)
        if name == "b" and ends:
            raise ends.pop()
        return attention

    with pytest.raises(type(error), match=str(error)):
        gpu.timed(try_backend=try_backend, clock=Clock(now))
    interrupted = isinstance(error, KeyboardInterrupt)
    assert list(gpu.timed(try_backend=try_backend)) == (["a", "b", "c"] if interrupted else ["a", "c"])
    assert gpu.tried == ["a", "b", *(["b"] if interrupted else []), "c"]


def test_full_memory_leaves_the_choice_to_the_order(tmp_path):
    def full(name):
        raise torch.OutOfMemoryError("full")

    assert FakeGpu(tmp_path, a=1.0).timed(try_backend=full) == {} and not list(tmp_path.iterdir())


# ---------------------------------------------------------------------------------------------------- the choice


@pytest.fixture
def gpu(monkeypatch):
    """A device for which nothing is known but the times that a test sets; backends run on the CPU."""
    times: dict[str, float] = {}
    asked = []

    def timed(names, sizes, *_):
        asked.append((names, sizes))
        return dict(sorted(times.items(), key=lambda item: item[1]))

    works = {"cudnn_varlen": varlen(sequence_attention), "torch_varlen": varlen(sequence_attention), "sdpa": sdpa}

    def tried(name, *_):
        if name not in works:
            raise RuntimeError("gone")
        return works[name]

    monkeypatch.setattr(attention_timing, "fastest", timed)
    monkeypatch.setattr(attention, "load_attention", tried)
    for function in (attention.fastest_backend, attention.first_working):
        function.cache_clear()
    yield times, asked, works
    for function in (attention.fastest_backend, attention.first_working):
        function.cache_clear()


def choose(name: str = "auto", sizes: LayerSizes | None = SIZES, device: str = "cuda"):
    return attention.attention_function(name, device, BF16, 128, sizes)


def test_auto_takes_what_was_fastest_and_says_by_how_much(gpu):
    times, asked, _ = gpu
    times |= {"torch_varlen": 0.8, "cudnn_varlen": 0.5, "sdpa": 0.6}
    found = choose()
    assert isinstance(found, LayerAttention)
    said = "cudnn_varlen (timed: 0.5 ms a layer; sdpa 1.20 times as long, torch_varlen 1.60 times as long)"
    assert attention_name(found, "auto") == said
    assert choose() == found and len(asked) == 1  # once
    assert "sage" not in asked[0][0] and asked[0][1] == SIZES


def test_a_dense_winner_is_called_group_by_group(gpu):
    gpu[0].update({"sdpa": 0.4, "cudnn_varlen": 0.5})
    found = choose()
    assert isinstance(found, GroupedAttention) and found.name.startswith("sdpa (timed")
    assert self_test(found, CPU, torch.float32, 32) < 1e-4


def test_a_remembered_winner_that_no_longer_works_gives_way_to_the_next(gpu):
    times, _, works = gpu
    times |= {"cudnn_varlen": 0.5, "torch_varlen": 0.8}
    del works["cudnn_varlen"]
    assert choose().name.startswith("torch_varlen (timed")


def test_a_forced_choice_a_cpu_and_unknown_sizes_time_nothing_and_without_times_the_order_decides(gpu):
    _, asked, works = gpu
    assert choose("torch_varlen") == choose(sizes=None) == works["torch_varlen"]
    assert choose(device="cpu") is sdpa and not asked
    assert choose() == works["torch_varlen"] and asked


def test_the_sizes_are_those_of_the_render_s_roles():
    roles = [["memory"] * 6 + ["anchor"] * 4 + ["local"] * 2, ["memory"] * 8 + ["anchor"] * 2 + ["local"] * 2]
    shape = CacheShape(roles, preset("head_forcing"), 30, 52, 128, 3, 120)
    assert shape.layer_sizes == LayerSizes(4680, ((7, 11 * 1560), (3, 7 * 1560), (2, 4 * 1560)))
    window = preset("self_forcing_window_21")
    shape = CacheShape.for_model(WanConfig(num_layers=1), [["memory"] * 12], window, 60, 104, 3, 120)
    assert shape.layer_sizes == LayerSizes(4680, ((12, 21 * 1560),))
