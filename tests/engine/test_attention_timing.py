"""`auto` on a GPU: it times what works at the sizes of the render, and remembers. GPUs and clocks
are stood in for.
"""

import ctypes
import functools
import json

import pytest
import torch
from attention_cases import sequence_attention
from headforcing.headforcing_core.cache.shape import CacheShape
from headforcing.headforcing_core.methods.head_forcing import PRESETS
from headforcing.headforcing_core.model import attention, attention_timing
from headforcing.headforcing_core.model.attention import (
    LayerAttention,
    LayerSizes,
    sdpa,
)
from headforcing.headforcing_core.model.attention_backends import Operands, self_test, varlen
from headforcing.headforcing_core.model.attention_timing import describe, fastest
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.headforcing_core.render.render import attention_name

CPU = torch.device("cpu")
BF16 = torch.bfloat16
SIZES = LayerSizes(64, ((2, 96), (1, 32)))


class FakeGpu:
    """A clock, and backends by their seconds for all queries of a layer; an exception is raised
    instead.

    `on_host` is added to each call. Where an exception `breaks` the device, its clock raises it from then on.
    """

    def __init__(self, monkeypatch, folder):
        self.now = 0.0
        self.folder = folder / "attention"
        self.breaks = False
        self.error = None
        self.backends = {}
        self.on_host = {}
        self.hiccups = {}  # seconds by name and number of the call
        self.calls = []
        self.tried = []
        monkeypatch.setattr(attention_timing, "cache_folder", lambda: folder)
        monkeypatch.setattr(attention_timing, "_now", self.read_clock)
        monkeypatch.setattr(attention_timing, "load_attention", self.load)

    def read_clock(self, device) -> float:
        if self.error is not None:
            raise self.error
        return self.now

    def load(self, name: str, *_):
        self.tried.append(name)
        if isinstance(self.backends[name], BaseException):
            self.error = self.backends[name] if self.breaks else None
            raise self.backends[name]

        def layer(q, k, v, spans):
            self.calls.append((name, q.shape[1]))
            number = [called for called, _ in self.calls].count(name)
            self.now += self.backends[name] * q.shape[1] / SIZES.queries
            self.now += self.on_host.get(name, 0.0) + self.hiccups.get((name, number), 0.0)
            return q

        return LayerAttention(layer)

    def timed(self, sizes=SIZES, **backends) -> dict[str, float]:
        self.backends = backends or self.backends
        return fastest(list(self.backends), sizes, Operands(CPU, torch.float32, 16))

    def stored(self) -> list[dict]:
        return [json.loads(file.read_text()) for file in self.folder.iterdir()]


@pytest.fixture
def fake(monkeypatch, tmp_path) -> FakeGpu:
    return FakeGpu(monkeypatch, tmp_path)


REFUSAL = RuntimeError("no kernel image. More")


def test_the_fastest_comes_first_what_fails_is_left_out_and_times_are_kept_for_sizes_and_versions(
    fake, monkeypatch
):
    times = fake.timed(slow=3e-3, broken=REFUSAL, quick=1e-3)
    assert list(times) == ["quick", "slow"] and list(times.values()) == pytest.approx([1.0, 3.0])
    assert describe(times) == "quick (timed: 1 ms a layer; slow 3.00 times as long)"
    counts = [len(fake.calls)]
    assert fake.timed() == times and len(fake.calls) == counts[-1]
    fake.timed(LayerSizes(32, SIZES.groups))
    counts.append(len(fake.calls))
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    fake.timed()
    assert counts[0] < counts[1] < len(fake.calls) and len(fake.stored()) == 3


def test_a_damaged_file_is_measured_anew_and_a_folder_that_cannot_be_written_is_no_error(fake):
    times = fake.timed(a=1e-3, b=2e-3)
    (file,) = fake.folder.iterdir()
    for damage in ("", "{", "[1]", '{"a": -1}', '{"a": "fast"}', "3", "\x00", "[" * 9000):
        file.write_text(damage)
        assert fake.timed() == pytest.approx(times) and fake.stored() == [pytest.approx(times)]
    file.unlink()
    assert fake.timed(a=torch.OutOfMemoryError("full")) == {} and not fake.stored(), (
        "the order decides"
    )
    fake.folder.rmdir()
    fake.folder.touch()
    assert list(fake.timed(a=1e-3, b=2e-3)) == ["a", "b"]


@pytest.mark.parametrize(("seconds", "calls"), [(1e-3, 6), (0.1, 5), (0.3, 3), (10.0, 3)])
def test_slow_calls_are_few(fake, seconds, calls):
    assert fake.timed(a=seconds) == {"a": pytest.approx(1000 * seconds)}
    assert len(fake.calls) == calls


@pytest.mark.parametrize("slow", range(1, 10))
@pytest.mark.parametrize("seconds", [1e-3, 0.2, 1.0])
def test_one_slow_call_decides_nothing(fake, slow, seconds):
    """A call that stops for half a second, for Python's garbage collection or Windows: one of the
    first that count.
    """
    fake.hiccups = {("a", slow): 0.5}
    times = fake.timed(a=seconds, b=2 * seconds)
    assert list(times) == ["a", "b"] and times == pytest.approx(
        {"a": 1000 * seconds, "b": 2000 * seconds}
    )
    assert fake.stored() == [pytest.approx(times)]


def test_what_the_host_needs_in_every_call_counts(fake):
    """As cuDNN's kernel for sequences does in PyTorch 2.11 and 2.13: 42 ms on the host, whatever
    the GPU takes.
    """
    fake.on_host = {"anew": 0.042, "b": 1e-3}
    times = fake.timed(anew=1e-4, b=1e-4)
    assert list(times) == ["b", "anew"] and times["b"] == pytest.approx(1.1) and times["anew"] > 42


@pytest.mark.parametrize("place", range(3))
def test_a_backend_that_runs_out_of_memory_is_left_out_and_tried_again_by_the_next_program(
    fake, place
):
    """As PyTorch's plain kernel does, which writes all scores, where no other one of `sdpa`
    works.
    """
    full = ("a", "b", "c")[place]
    sizes = {"a": 1e-3, "b": 2e-3, "c": 3e-3}
    times = fake.timed(**sizes | {full: torch.OutOfMemoryError("full")})
    assert list(times) == [name for name in sizes if name != full]
    assert list(fake.timed(**sizes)) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "error", [RuntimeError("an illegal memory access"), KeyboardInterrupt("stop")], ids=repr
)
def test_a_backend_that_leaves_the_device_unusable_is_not_tried_again_but_after_an_interruption(
    fake, error
):
    """After an illegal access everything later in this process raises."""
    fake.breaks = True
    with pytest.raises(type(error), match=str(error)):
        fake.timed(a=1e-3, b=error, c=1e-3)
    fake.error = None  # a new process
    interrupted = isinstance(error, KeyboardInterrupt)
    again = fake.timed(a=1e-3, b=1e-3, c=1e-3)
    assert list(again) == (["a", "b", "c"] if interrupted else ["a", "c"])
    assert fake.tried == ["a", "b", *(["b"] if interrupted else []), "c"]


# --------------------------------------------------------------------------------------- the choice


def test_auto_takes_what_was_fastest_and_gives_way_where_it_no_longer_works(monkeypatch):
    """Backends run on the CPU; `times` are those of a device for which nothing else is known."""
    times = {"torch_varlen": 0.8, "flash_attn": 0.5, "sdpa": 0.6}
    asked = []
    works = {
        "flash_attn": varlen(sequence_attention),
        "torch_varlen": varlen(sequence_attention),
        "sdpa": sdpa,
    }

    def timed(*given, **facts):
        asked.append(given[:2])
        return dict(sorted(times.items(), key=lambda item: item[1]))

    def forget():
        for name in ("fastest_backend", "first_working"):
            monkeypatch.setattr(
                attention, name, functools.cache(getattr(attention, name).__wrapped__)
            )

    def choose(name="auto", sizes=SIZES, device="cuda"):
        return attention.attention_function(name, device, BF16, 128, sizes)

    monkeypatch.setattr(attention_timing, "fastest", timed)
    monkeypatch.setattr(attention, "load_attention", lambda name, *_: works[name])
    forget()
    assert choose("torch_varlen") == choose(sizes=None) == works["torch_varlen"]
    assert choose(device="cpu") is sdpa and not asked, (
        "a forced choice, a CPU and unknown sizes time nothing"
    )
    found = choose()
    assert choose() == found and isinstance(found, LayerAttention) and len(asked) == 1  # once
    said = (
        "flash_attn (timed: 0.5 ms a layer; sdpa 1.20 times as long, torch_varlen 1.60 times as "
        "long)"
    )
    assert attention_name(found, "auto") == said
    assert "sage" not in asked[0][0] and asked[0][1] == SIZES
    forget()
    del works["flash_attn"]
    found = choose()
    assert isinstance(found, LayerAttention) and found.name.startswith("sdpa (timed"), (
        "a dense one, group by group"
    )
    assert self_test(found, Operands(CPU, torch.float32, 32)) < 1e-4
    forget()
    times.clear()
    assert choose() == works["torch_varlen"], "without times the order decides"


def test_the_sizes_are_those_of_the_render_s_roles():
    roles = [
        ["memory"] * 6 + ["anchor"] * 4 + ["local"] * 2,
        ["memory"] * 8 + ["anchor"] * 2 + ["local"] * 2,
    ]
    shape = CacheShape(roles, PRESETS["head_forcing"], 30, 52, 128, 3, 120)
    assert shape.layer_sizes == LayerSizes(4680, ((7, 11 * 1560), (3, 7 * 1560), (2, 4 * 1560)))
    window = PRESETS["self_forcing_window_21"]
    shape = CacheShape.for_model(
        WanConfig(num_layers=1), [["memory"] * 12], window, 60, 104, 3, 120
    )
    assert shape.layer_sizes == LayerSizes(4680, ((12, 21 * 1560),))


class Nvml:
    """NVIDIA's library, in which every call ends with such a status."""

    def __init__(self, status: int = 0):
        self.status = status
        self.open = 0

    def nvmlInit_v2(self) -> int:
        self.open += 1
        return self.status

    def nvmlShutdown(self) -> int:
        self.open -= 1
        return 0

    def nvmlSystemGetDriverVersion(self, buffer, size: int) -> int:
        buffer.value = b"576.88"
        return self.status


@pytest.mark.parametrize("file", ["libnvidia-ml.so.1", "nvml.dll"])
def test_the_driver_is_known_by_its_own_version_also_on_windows(monkeypatch, file: str):
    """Not by that of CUDA, which many drivers share."""
    library = Nvml()

    def load(name: str) -> Nvml:
        if name != file:
            raise OSError(name)
        return library

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert attention_timing.driver_version() == "576.88" and library.open == 0


@pytest.mark.parametrize("library", [None, Nvml(status=9), object()])
def test_without_the_driver_s_library_the_version_of_cuda_counts(monkeypatch, library):
    def load(name: str) -> object:
        if library is None:
            raise OSError(name)
        return library

    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 13000, raising=False)
    assert attention_timing.driver_version() == "13000"
