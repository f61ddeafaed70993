"""`auto` on a GPU: it times what works at the sizes of the render, and remembers. GPUs and clocks are stood in for."""

import json

import pytest
import torch
from attention_cases import sequence_attention
from headforcing.headforcing_core.cache.policy import preset
from headforcing.headforcing_core.cache.shape import CacheShape
from headforcing.headforcing_core.model import attention, attention_timing
from headforcing.headforcing_core.model.attention import GroupedAttention, LayerAttention, LayerSizes, sdpa
from headforcing.headforcing_core.model.attention_backends import (
    self_test,
    varlen,
)
from headforcing.headforcing_core.model.attention_timing import LOADING_SECONDS, SECONDS, Clock, described, fastest
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.headforcing_core.render.render import attention_name

CPU, BF16 = torch.device("cpu"), torch.bfloat16
SIZES = LayerSizes(64, ((2, 96), (1, 32)))


class FakeGpu:
    """A clock, and backends that take a known time: `seconds` is that of all queries of a layer."""

    def __init__(self):
        self.now, self.host, self.calls = 0.0, 0.0, []
        self.clock = Clock(lambda: self.now, lambda: self.host)

    def backend(self, name: str, seconds: float, trying: float = 0.0, on_host: float = 0.0):
        def layer(q, k, v, spans):
            self.calls.append((name, q.shape[1]))
            self.now += seconds * q.shape[1] / SIZES.queries + on_host
            self.host += on_host
            return q

        self.now += trying
        return LayerAttention(layer)


def timed(gpu: FakeGpu, tmp_path, try_backend, names, sizes=SIZES, clock=None) -> dict[str, float]:
    return fastest(names, sizes, try_backend, CPU, torch.float32, 16, clock or gpu.clock, tmp_path / "attention.json")


def measured(backends: dict, tmp_path, gpu: FakeGpu, sizes=SIZES, trying: float = 0.0) -> dict[str, float]:
    def try_backend(name: str):
        if backends[name] is None:
            raise RuntimeError("no kernel image. More")
        return gpu.backend(name, backends[name], trying)

    return timed(gpu, tmp_path, try_backend, list(backends), sizes)


def test_the_fastest_comes_first_with_its_time_and_what_fails_is_left_out(tmp_path):
    times = measured({"slow": 3e-3, "broken": None, "quick": 1e-3}, tmp_path, FakeGpu())
    assert list(times) == ["quick", "slow"] and list(times.values()) == pytest.approx([1.0, 3.0])
    assert described(times) == "quick (timed: 1 ms a layer; slow 3.00 times as long)"


def test_times_are_remembered_for_these_sizes_this_dtype_and_these_versions(tmp_path, monkeypatch):
    backends, gpu = {"a": 1e-3, "b": 2e-3}, FakeGpu()
    first = measured(backends, tmp_path, gpu)
    calls = len(gpu.calls)
    assert measured(backends, tmp_path, gpu) == first and len(gpu.calls) == calls
    measured(backends, tmp_path, gpu, sizes=LayerSizes(32, SIZES.groups))
    assert len(gpu.calls) > calls
    calls = len(gpu.calls)
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    measured(backends, tmp_path, gpu)
    assert len(gpu.calls) > calls
    assert len(json.loads((tmp_path / "attention.json").read_text())) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["attention.json"]  # no temporary file stays


@pytest.mark.parametrize(
    "damage", ["", "{", "[1]", '{"x": 3}', '{"KEY": {"a": -1}}', '{"KEY": {"a": "fast"}}', "\x00", "[" * 9000]
)
def test_a_damaged_file_is_measured_anew_and_replaced(tmp_path, damage):
    backends, gpu, file = {"a": 1e-3, "b": 2e-3}, FakeGpu(), tmp_path / "attention.json"
    times = measured(backends, tmp_path, gpu)
    (key,) = json.loads(file.read_text())
    file.write_text(damage.replace("KEY", json.dumps(key)[1:-1]))
    assert measured(backends, tmp_path, gpu) == pytest.approx(times)
    assert json.loads(file.read_text())[key] == pytest.approx(times)


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "attention.json").mkdir()
    assert list(measured({"a": 1e-3}, tmp_path, FakeGpu())) == ["a"]


@pytest.mark.parametrize("seconds", [1e-3, 0.1, 0.4, 1.0])
@pytest.mark.parametrize("trying", [0.0, 0.3])
def test_calls_never_take_longer_than_two_seconds(tmp_path, seconds, trying):
    """Nothing is begun that is known not to end in time; the order is that of the estimates then."""
    gpu = FakeGpu()
    times = measured({"a": seconds, "b": seconds / 2, "c": seconds / 4}, tmp_path, gpu, trying=trying)
    assert gpu.now <= SECONDS + 3 * trying
    assert times and list(times) == sorted(times, key=lambda name: -ord(name))
    assert times["a"] == pytest.approx(1000 * seconds)


def test_what_prepares_itself_in_every_call_is_left_out(tmp_path):
    """As cuDNN's kernel for sequences does in PyTorch 2.11 and 2.13: 42 ms on the host, whatever the GPU takes."""
    gpu = FakeGpu()

    def try_backend(name: str):
        return gpu.backend(name, 1e-4, on_host=0.042 if name == "anew" else 1e-3)

    assert list(timed(gpu, tmp_path, try_backend, ["anew", "b"])) == ["b"]
    assert len([name for name, _ in gpu.calls if name == "anew"]) == 2  # the second tells
    stored = json.loads((tmp_path / "attention.json").read_text())
    assert list(stored.values()) == [{"anew": None, "b": pytest.approx(1.1)}]


@pytest.mark.parametrize("works", [True, False])
def test_what_there_was_no_time_for_is_timed_in_the_next_calls_until_all_were_tried(tmp_path, works):
    """The first backend of a fresh start may load for long, whether it works or not."""
    gpu, cold = FakeGpu(), {"cold": LOADING_SECONDS}
    milliseconds = {"cold": 1.0, "slow": 3.0, "broken": None, "quick": 0.5}
    tried = []

    def try_backend(name: str):
        tried.append(name)
        gpu.now += cold.pop(name, 0.0)
        if milliseconds[name] is None or (name == "cold" and not works):
            raise RuntimeError("no kernel image. More")
        return gpu.backend(name, milliseconds[name] / 1000)

    def call():
        return list(timed(gpu, tmp_path, try_backend, list(milliseconds)))

    assert (call(), tried) == (["cold"] * works, ["cold"])
    assert call() == ["quick", *["cold"] * works, "slow"]
    assert call() == ["quick", *["cold"] * works, "slow"]
    assert tried == list(milliseconds)  # each of them once, also those that do not work


@pytest.mark.parametrize("error", [RuntimeError("an illegal memory access"), KeyboardInterrupt("stop")], ids=repr)
def test_a_backend_that_leaves_the_device_unusable_is_not_tried_again_but_after_an_interruption(tmp_path, error):
    """After an illegal access everything later in this process raises."""
    gpu, tried, ends = FakeGpu(), [], [error]

    def now() -> float:
        if tried[-1:] == ["b"] and not ends:
            raise error
        return gpu.now

    def try_backend(name: str):
        tried.append(name)
        if name == "b" and ends:
            raise ends.pop()
        return gpu.backend(name, 1e-3)

    with pytest.raises(type(error), match=str(error)):
        timed(gpu, tmp_path, try_backend, "abc", clock=Clock(now))
    interrupted = isinstance(error, KeyboardInterrupt)
    found = timed(gpu, tmp_path, try_backend, "abc")
    assert list(found) == (["a", "b", "c"] if interrupted else ["a", "c"])
    assert tried == ["a", "b", *(["b"] if interrupted else []), "c"]


def test_a_slow_device_runs_only_a_part_of_the_queries(tmp_path):
    gpu = FakeGpu()
    measured({"a": 10.0}, tmp_path, gpu)
    assert {queries for _, queries in gpu.calls} == {SIZES.queries // 16}


def test_full_memory_leaves_the_choice_to_the_order(tmp_path):
    def full(name):
        raise torch.OutOfMemoryError("full")

    assert timed(FakeGpu(), tmp_path, full, ["a"]) == {} and not list(tmp_path.iterdir())


# ---------------------------------------------------------------------------------------------------- the choice


@pytest.fixture
def gpu(monkeypatch, tmp_path):
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
    attention.fastest_backend.cache_clear()
    attention.first_working.cache_clear()
    yield times, asked, works
    attention.fastest_backend.cache_clear()
    attention.first_working.cache_clear()


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


def test_where_nothing_could_be_timed_the_order_decides(gpu):
    assert choose() == gpu[2]["torch_varlen"]


def test_a_forced_choice_a_cpu_and_unknown_sizes_time_nothing(gpu):
    _, asked, works = gpu
    assert choose("torch_varlen") == works["torch_varlen"]
    assert choose(device="cpu") is sdpa
    assert choose(sizes=None) == works["torch_varlen"]
    assert not asked


def test_the_sizes_are_those_of_the_render_s_roles():
    roles = [["memory"] * 6 + ["anchor"] * 4 + ["local"] * 2, ["memory"] * 8 + ["anchor"] * 2 + ["local"] * 2]
    shape = CacheShape(roles, preset("head_forcing"), 30, 52, 128, 3, 120)
    assert shape.layer_sizes == LayerSizes(4680, ((7, 11 * 1560), (3, 7 * 1560), (2, 4 * 1560)))
    assert CacheShape.for_model(
        WanConfig(num_layers=1), [["memory"] * 12], preset("self_forcing_window_21"), 60, 104, 3, 120
    ).layer_sizes == LayerSizes(4680, ((12, 21 * 1560),))


@pytest.mark.parametrize("loading", [1.5, 2.0, 3.0])
def test_a_cold_start_chooses_among_several_whatever_the_first_one_loads(tmp_path, loading):
    """Libraries are loaded with the first backend, which is the slowest here."""
    gpu, cold = FakeGpu(), [loading]

    def try_backend(name: str):
        return gpu.backend(name, {"slow": 3e-3, "quick": 1e-3}[name], cold.pop() if cold else 0.0)

    assert list(timed(gpu, tmp_path, try_backend, ["slow", "quick"])) == ["quick", "slow"]
