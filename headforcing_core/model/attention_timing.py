"""Time the attention backends at the sizes of a render, and store the result for this device and these versions.

Which one is fastest depends on GPU, driver, versions and numbers of keys; no rule of thumb holds for all of them.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import HeadForcingError, first_sentence
from ..files import cache_folder, replacing
from .attention_backends import AttentionFunction, Span, Spans, attend_layer, load_attention

log = logging.getLogger(__name__)

SECONDS = 2.0  # for the calls of all backends together; checked before every call
LOADING_SECONDS = 8.0  # with libraries that are loaded and kernels that are compiled; checked before every backend
REPETITIONS = 5  # the fastest counts
PROBE = 16  # a sixteenth of the queries shows whether there is time for all of them
MOST_ON_HOST = 5e-3  # seconds that a repeated call may take on the host: there are hundreds in a block
_MOST_RESULTS = 64  # kept in the file, the latest
_PACKAGES = ("flash-attn", "flash_attn_3", "flash-attn-4", "triton", "triton-windows")  # whose versions decide, too


@dataclass(frozen=True)
class LayerSizes:
    """Sizes of one self-attention of a render: queries per head, and `(heads, keys)` of each group, longest first."""

    queries: int
    groups: tuple[tuple[int, int], ...]

    @property
    def spans(self) -> Spans:
        """The groups one after another in full buffers."""
        spans, first = [], 0
        for heads, keys in self.groups:
            spans.append(Span(heads, first, keys, keys))
            first += heads * keys
        return tuple(spans)


def fastest(
    names: Sequence[str], sizes: LayerSizes, device: torch.device, dtype: torch.dtype, head_dim: int
) -> dict[str, float]:
    """Milliseconds per layer of those of `names` that work, the fastest first.

    They are read from a file in the cache folder where they are known. Names for which there was no time left are timed
    when the program is started again.
    """
    folder, key = cache_folder(), _key(names, sizes, device, dtype, head_dim)
    file = None if folder is None else folder / "attention.json"
    known = _read(file, key)
    left = [name for name in names if name not in known]
    if left:
        try:
            _time_all(left, sizes, _inputs(sizes, device, dtype, head_dim), known)
        except torch.OutOfMemoryError:  # the weights may leave no room: then no more is timed
            pass
        finally:
            if known:
                _write(file, key, known)
    working = {name: ms for name in names if (ms := known.get(name)) is not None}
    return dict(sorted(working.items(), key=lambda item: item[1]))


def described(times: Mapping[str, float]) -> str:
    """The result in a few words: `torch_varlen (timed: 0.8 ms a layer; sdpa 1.21 times as long)`."""
    (best, ms), *others = times.items()
    slower = ", ".join(f"{name} {other / ms:.2f} times as long" for name, other in others)
    return f"{best} (timed: {ms:.3g} ms a layer{'; ' + slower if slower else ''})"


def _now(device: torch.device) -> float:
    """Seconds, once the device has done its work."""
    torch.cuda.synchronize(device)
    return time.perf_counter()


def _time_all(
    names: Sequence[str], sizes: LayerSizes, inputs: Sequence[Tensor], known: dict[str, float | None]
) -> None:
    """Put into `known` the milliseconds of every backend for which there is time; None where it does not work."""
    q = inputs[0]
    begun, used = _now(q.device), 0.0
    for place, name in enumerate(names):
        # raises if the backend before has left the device unusable: the next program leaves it out
        if _now(q.device) - begun >= LOADING_SECONDS or used >= SECONDS:
            break
        share = (SECONDS - used) / (len(names) - place)  # of the time left, so that all have their turn
        try:
            known[name], calls = _time(load_attention(name, q.device, q.dtype, q.shape[-1]), sizes.spans, inputs, share)
            used += calls
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # not installed, not for this device, inaccurate
            log.info("Head Forcing: attention %s was not timed: %s", name, first_sentence(error))
            known[name] = None


def _time(attention: AttentionFunction, spans: Spans, inputs: Sequence[Tensor], limit: float) -> tuple[float, float]:
    """Milliseconds of a call, by its fastest, and the seconds of all but the first.

    Where the limit in seconds leaves no time for calls with all queries, it is estimated.
    """
    q, k, v = inputs
    queries = q.shape[1]

    def call(queries: int) -> tuple[float, float]:
        """Seconds until the result is there, and those that the host is busy."""
        begun, on_host = _now(q.device), time.perf_counter()
        attend_layer(attention, q[:, :queries].contiguous(), k, v, spans)
        on_host = time.perf_counter() - on_host
        return _now(q.device) - begun, on_host

    few = max(1, queries // PROBE)
    call(few)  # loads, compiles, plans, allocates
    used, on_host = call(few)
    if on_host > MOST_ON_HOST:
        raise RuntimeError(f"{1000 * on_host:.0f} ms of every call are spent on the host")
    estimate = used * queries / few
    times: list[float] = []
    while len(times) <= REPETITIONS and used + estimate < limit:
        times.append(call(queries)[0])
        used += times[-1]
    return 1000 * min(times, default=estimate), used


@torch.no_grad()
def _inputs(sizes: LayerSizes, device: torch.device, dtype: torch.dtype, head_dim: int) -> tuple[Tensor, ...]:
    heads, rows = sum(count for count, _ in sizes.groups), sum(count * keys for count, keys in sizes.groups)
    options: Any = dict(generator=torch.Generator(device).manual_seed(0), device=device, dtype=dtype)
    q = torch.randn(heads, sizes.queries, head_dim, **options)
    return q, torch.randn(rows, head_dim, **options), torch.randn(rows, head_dim, **options)


# ------------------------------------------------------------------------------------------------- the file of times


def _key(names: Sequence[str], sizes: LayerSizes, device: torch.device, dtype: torch.dtype, head_dim: int) -> str:
    """Everything that a time depends on, as text."""
    parts = [f"torch {torch.__version__}", f"{dtype}".removeprefix("torch."), " ".join(names)]
    if device.type == "cuda":
        driver = Path("/proc/driver/nvidia/version")  # on Linux
        version = driver.read_text(encoding="utf-8").splitlines()[0] if driver.exists() else "unknown"
        cudnn = torch.backends.cudnn.version()
        parts += [torch.cuda.get_device_name(device), f"driver {version}", f"cuDNN {cudnn}"]
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            parts.append(f"{package} {metadata.version(package)}")
    groups = " ".join(f"{heads}x{keys}" for heads, keys in sizes.groups)
    return "; ".join([*parts, f"{sizes.queries} queries, keys {groups}, {head_dim} channels"])


def _stored(file: Path | None) -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        if file is not None and isinstance(stored := json.loads(file.read_text(encoding="utf-8")), dict):
            return stored
    return {}


def _read(file: Path | None, key: str) -> dict[str, float | None]:
    """The times that are stored under a key; none from a damaged file."""
    times = _stored(file).get(key)
    if isinstance(times, dict) and all(ms is None or (type(ms) is float and ms > 0) for ms in times.values()):
        return times
    return {}


def _write(file: Path | None, key: str, times: Mapping[str, float | None]) -> None:
    if file is not None:
        latest = [*((name, old) for name, old in _stored(file).items() if name != key), (key, times)][-_MOST_RESULTS:]
        with suppress(HeadForcingError), replacing(file) as temporary:  # a folder that cannot be written: timed anew
            temporary.write_text(json.dumps(dict(latest), indent=1), encoding="utf-8")
