"""All metrics with models of their own, one row each, and which of them a folder has the files for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from ...errors import HeadForcingError, unknown_name
from .base import Begin, LearnedMetric, Metric, Needed, Panel
from .flow import FlowMeasurement, MotionDriftMeasurement
from .frame_scores import AestheticMeasurement, ConsistencyMeasurement, TextMeasurement
from .models import AESTHETIC_HEAD, CLIP_BASE, CLIP_BASE_TEXT, CLIP_LARGE, DINO, RAFT, ImageEncoder, Models

MOST_PROMPTS = 60  # of a video with a number of their own
_two, _four = "{:.2f}".format, "{:.4f}".format


def _consistency(name: str, needs: tuple[Needed, ...], encoder: Callable[[Models], ImageEncoder]) -> LearnedMetric:
    parts = {"": "", "_within": ", in clips of 2 s", "_across": ", across these clips"}
    columns = (Metric(f"{name}_consistency{key}", f"{name} consistency{part}", _four) for key, part in parts.items())
    return LearnedMetric(
        name,
        "Consistency (VBench's formula; 1 is a still video)",
        tuple(columns),
        needs,
        lambda models: partial(ConsistencyMeasurement, encoder(models)),
    )


_ROWS = (
    _consistency("subject", DINO, lambda models: models.dino),
    _consistency("background", CLIP_BASE, lambda models: models.clip_base.images),
    LearnedMetric(
        "text",
        "Prompts (100 times CLIP's cosine, means over frames)",
        (
            Metric("text_score", "text score", _two),
            *(Metric(f"text_score_{i}", f"text score, prompt {i}", _two) for i in range(1, MOST_PROMPTS + 1)),
        ),
        CLIP_BASE_TEXT,
        lambda models: partial(TextMeasurement, models.clip_base),
    ),
    LearnedMetric(
        "aesthetic",
        "Aesthetic quality (VBench's formula, LAION's head; up to 1)",
        (Metric("aesthetic_quality", "aesthetic quality", _four),),
        (*CLIP_LARGE, AESTHETIC_HEAD),
        lambda models: partial(AestheticMeasurement, models.clip_large.images, models.aesthetic_head),
    ),
    LearnedMetric(
        "flow",
        "Optical flow (RAFT, 8 frames a second, sides halved above 1 megapixel; as if the shorter side had 256)",
        (
            Metric("dynamic_degree", "dynamic degree (VBench's rule: 1 moves)", _two),
            Metric("dynamic_degree_within", "dynamic degree, in clips of 2 s", _two),
            Metric("top_flow", "flow, largest 5 % of pixels", _two),
            Metric("mean_flow", "flow, all pixels", _two),
        ),
        (RAFT,),
        lambda models: partial(FlowMeasurement, models.flow),
    ),
    LearnedMetric(
        "motion_drift",
        "Motion drift (ID-Forcing's: the first 5 s against the last; its score is the mean of several videos)",
        (
            Metric("motion_drift", "motion drift (0: motion is lost, 100: kept)", _two),
            Metric("motion_first", "flow of the first 5 s, largest 5 %, pixels", _two),
            Metric("motion_last", "flow of the last 5 s", _two),
        ),
        (RAFT,),
        lambda models: partial(MotionDriftMeasurement, models.flow),
    ),
)
METRICS = {row.name: row for row in _ROWS}
COLUMNS = {column.key: column for row in _ROWS for column in row.columns}


def load_panel(
    folder: Path, names: Sequence[str] = (), device: torch.device | str = "cpu", aesthetic_head: Path | None = None
) -> Panel:
    """Load metrics from the files in a folder: the `names` of `METRICS`, by default those that can be loaded; raises
    HeadForcingError if none can."""
    if unknown := next((name for name in names if name not in METRICS), None):
        raise unknown_name("metrics", unknown, METRICS)
    models, loaded, left_out = Models(folder, device, aesthetic_head), dict[LearnedMetric, Begin](), list[str]()
    for metric in [METRICS[name] for name in names] or _ROWS:
        try:
            for needed in metric.needs:
                models.find(needed)
            loaded[metric] = metric.load(models)
        except HeadForcingError as error:
            if names:
                raise HeadForcingError(f"{metric.name}: {error}") from error
            left_out.append(f"{metric.name}: {error}")
    if not loaded:
        raise HeadForcingError(f"no metric can be measured with the files in {folder}; {left_out[0]}")
    return Panel(loaded, left_out)


def found_metrics(folder: Path) -> list[str]:
    """The names of the metrics that a folder has the files for."""
    models = Models(folder)
    return [name for name, row in METRICS.items() if all(models.file(needed).is_file() for needed in row.needs)]
