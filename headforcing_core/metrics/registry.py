"""All metrics with models of their own, by name, and which of them a folder has the files for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import torch

from ..errors import HeadForcingError, unknown_name
from ..hashing import SHORT, digest, file_hash
from .aesthetic import AestheticQuality
from .base import Metric, Panel, VideoMetric
from .consistency import BackgroundConsistency, SubjectConsistency
from .flow import DynamicDegree
from .models import Models
from .text import TextScore

METRICS: dict[str, type[VideoMetric]] = {
    kind.name: kind for kind in (SubjectConsistency, BackgroundConsistency, TextScore, AestheticQuality, DynamicDegree)
}
COLUMNS: dict[str, Metric] = {column.key: column for kind in METRICS.values() for column in kind.columns}


def load_panel(
    folder: Path,
    names: Sequence[str] = (),
    device: torch.device | str = "cpu",
    aesthetic_head: Path | None = None,
) -> Panel:
    """Load metrics from the files in a folder.

    Args:
        names: of `METRICS`; by default those that the folder has the files for.

    Metrics that are not named are left out where a file or a package is missing or cannot be used.

    Raises HeadForcingError for an unknown name, for a metric that is named and cannot be loaded, and if none can.
    """
    for name in names:
        if name not in METRICS:
            raise unknown_name("metrics", name, METRICS)
    models = Models(folder, device, aesthetic_head)
    lacking = {name: _lacking(models, kind) for name, kind in METRICS.items()}
    if names:
        if sentence := next(filter(None, map(lacking.get, names)), None):
            raise HeadForcingError(sentence)
    elif all(lacking.values()):
        raise HeadForcingError(f"no metric has its files in {folder}; {next(filter(None, lacking.values()))}")
    chosen = list(dict.fromkeys(names)) or [name for name, sentence in lacking.items() if not sentence]
    loaded, damaged = [], []
    for name in chosen:
        try:
            loaded.append(METRICS[name](models))
        except HeadForcingError as error:
            if names:
                raise
            damaged.append(f"{name}: {error}")
    if not loaded:
        raise HeadForcingError(f"no metric can be measured with the files in {folder}; {damaged[0]}")
    return Panel(loaded, [] if names else [*filter(None, lacking.values()), *damaged])


def stamps(folder: Path, names: Iterable[str], aesthetic_head: Path | None = None) -> dict[str, str]:
    """A hash of the files of each metric, by name: numbers that other files have measured are not comparable."""
    models, hash_of = Models(folder, aesthetic_head=aesthetic_head), cache(file_hash)
    return {name: digest([hash_of(models.file(needed)) for needed in METRICS[name].needs])[:SHORT] for name in names}


def found_metrics(folder: Path) -> list[str]:
    """The names of the metrics that a folder has the files for."""
    models = Models(folder)
    return [name for name, kind in METRICS.items() if not _lacking(models, kind)]


def _lacking(models: Models, kind: type[VideoMetric]) -> str | None:
    """The sentence about the first file of a metric that is missing."""
    sentence = next(filter(None, map(models.missing, kind.needs)), None)
    return sentence and f"{kind.name}: {sentence}"
