"""Time the attention backends at the sizes of a render, and store the result for this device and
these versions.

Which one is fastest depends on GPU, driver, versions and numbers of keys; no rule of thumb holds
for all of them.
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
from .attention_backends import (
    AttentionFunction,
    Operands,
    Span,
    Spans,
    attend_layer,
    load_attention,
)

log = logging.getLogger(__name__)

SECONDS = 2.0  # for the calls of all backends together; checked before every call
# with libraries that are loaded and kernels that are compiled; checked before every backend
LOADING_SECONDS = 8.0
REPETITIONS = 5  # the fastest counts: a hiccup of the host makes single calls slow
PROBES = 3  # calls with few queries show whether there is time for all of them
PROBE = 32  # the part of the queries that these have
_MOST_RESULTS = 64  # kept in the file, the latest
# whose versions decide, too
_PACKAGES = ("flash-attn", "flash_attn_3", "flash-attn-4", "triton", "triton-windows")


@dataclass(frozen=True)
class LayerSizes:
    """Sizes of one self-attention of a render: queries per head, and `(heads, keys)` of each group,
    longest first.
    """

    queries: int
    groups: tuple[tuple[int, int], ...]

    @property
    def spans(self) -> Spans:
        """The groups one after another in full buffers."""
        spans = []
        first = 0
        for heads, keys in self.groups:
            spans.append(Span(heads, first, keys, keys))
            first += heads * keys
        return tuple(spans)


def fastest(names: Sequence[str], sizes: LayerSizes, operands: Operands) -> dict[str, float]:
    """Milliseconds per layer of those of `names` that work, the fastest first.

    They are read from a file in the cache folder where they are known. Names for which there was no
    time left are timed when the program is started again.
    """
    folder = cache_folder()
    file = None if folder is None else folder / "attention.json"
    key = _key(names, sizes, operands)
    known = _read(file, key)
    left = [name for name in names if name not in known]
    if left:
        try:
            _time_all(left, sizes, operands, known)
        # the weights leave no room for keys and values of a layer: nothing is timed
        except torch.OutOfMemoryError:
            pass
        finally:
            if known:
                _write(file, key, known)
    working = []
    for name in names:
        milliseconds = known.get(name)
        if milliseconds is not None:
            working.append((milliseconds, name))
    return {name: milliseconds for milliseconds, name in sorted(working)}


def described(times: Mapping[str, float]) -> str:
    """The result in a few words: `torch_varlen (timed: 0.8 ms a layer; sdpa 1.21 times as
    long)`.
    """
    (best, shortest), *others = times.items()
    parts = [f"timed: {shortest:.3g} ms a layer"]
    if others:
        parts.append(
            ", ".join(f"{name} {time / shortest:.2f} times as long" for name, time in others)
        )
    return f"{best} ({'; '.join(parts)})"


def _now(device: torch.device) -> float:
    """Seconds, once the device has done its work."""
    torch.cuda.synchronize(device)
    return time.perf_counter()


def _time_all(
    names: Sequence[str],
    sizes: LayerSizes,
    operands: Operands,
    known: dict[str, float | None],
) -> None:
    """Put into `known` the milliseconds of every backend for which there is time; None for one that
    does not work.

    A backend that runs out of memory gets no entry: there may be more of it when the program is
    started again.
    """
    inputs = _inputs(sizes, operands)
    device = operands.device
    begun = _now(device)
    used = 0.0
    for place, name in enumerate(names):
        # raises if the backend before has left the device unusable: the next program leaves it out
        if _now(device) - begun >= LOADING_SECONDS or used >= SECONDS:
            break
        # of the time left, so that all have their turn
        share = (SECONDS - used) / (len(names) - place)
        try:
            attention = load_attention(name, operands)
            known[name], seconds = _time(attention, sizes.spans, inputs, limit=share)
            used += seconds
        except torch.OutOfMemoryError:
            log.info(
                "Head Forcing: attention %s was not timed: it needs more memory than is free", name
            )
            if device.type == "cuda":
                torch.cuda.empty_cache()
        except Exception as error:  # not installed, not for this device, inaccurate
            log.info("Head Forcing: attention %s was not timed: %s", name, first_sentence(error))
            known[name] = None


def _time(
    attention: AttentionFunction, spans: Spans, inputs: Sequence[Tensor], limit: float
) -> tuple[float, float]:
    """Milliseconds of a call, by its fastest, and the seconds of all but the first.

    If the limit in seconds leaves no time for calls with all queries, it is estimated.
    """
    q, k, v = inputs
    queries = q.shape[1]

    def seconds(queries: int) -> float:
        begun = _now(q.device)
        attend_layer(attention, q[:, :queries].contiguous(), k, v, spans=spans)
        return _now(q.device) - begun

    few = max(1, queries // PROBE)
    seconds(few)  # loads, compiles, plans, allocates
    probes = [seconds(few) for _ in range(PROBES)]
    estimate = min(probes) * queries / few
    # decided before the first of them, so that no slow one stands alone
    repetitions = min(REPETITIONS, int((limit - sum(probes)) / max(estimate, 1e-9)))
    times = [seconds(queries) for _ in range(repetitions)]
    return 1000 * min(times, default=estimate), sum(probes) + sum(times)


@torch.no_grad()
def _inputs(sizes: LayerSizes, operands: Operands) -> tuple[Tensor, ...]:
    heads = sum(count for count, _ in sizes.groups)
    rows = sum(count * keys for count, keys in sizes.groups)
    generator = torch.Generator(operands.device).manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(
            *shape,
            operands.head_dim,
            generator=generator,
            device=operands.device,
            dtype=operands.dtype,
        )

    return noise(heads, sizes.queries), noise(rows), noise(rows)


# -------------------------------------------------------------------------------- the file of times


def _key(names: Sequence[str], sizes: LayerSizes, operands: Operands) -> str:
    """Everything that a time depends on, as text."""
    dtype = f"{operands.dtype}".removeprefix("torch.")
    parts = [f"torch {torch.__version__}", dtype, " ".join(names)]
    if operands.device.type == "cuda":
        parts.append(torch.cuda.get_device_name(operands.device))
        # not in every build of PyTorch
        driver = getattr(torch._C, "_cuda_getDriverVersion", lambda: None)()
        parts.append(f"driver {driver}")
        parts.append(f"cuDNN {torch.backends.cudnn.version()}")
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            parts.append(f"{package} {metadata.version(package)}")
    groups = " ".join(f"{heads}x{keys}" for heads, keys in sizes.groups)
    return "; ".join(
        [*parts, f"{sizes.queries} queries, keys {groups}, {operands.head_dim} channels"]
    )


def _stored(file: Path | None) -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        if file is not None and isinstance(
            stored := json.loads(file.read_text(encoding="utf-8")), dict
        ):
            return stored
    return {}


def _read(file: Path | None, key: str) -> dict[str, float | None]:
    """The times that are stored under a key; none from a damaged file."""
    times = _stored(file).get(key)
    if isinstance(times, dict) and all(map(_is_time, times.values())):
        return times
    return {}


def _is_time(milliseconds: object) -> bool:
    return milliseconds is None or (isinstance(milliseconds, float) and milliseconds > 0)


def _write(file: Path | None, key: str, times: Mapping[str, float | None]) -> None:
    if file is None:
        return
    results = _stored(file)
    results.pop(key, None)
    results[key] = times  # as the latest
    latest = dict(list(results.items())[-_MOST_RESULTS:])
    # a folder that cannot be written: timed anew
    with suppress(HeadForcingError), replacing(file) as temporary:
        temporary.write_text(json.dumps(latest, indent=1), encoding="utf-8")
