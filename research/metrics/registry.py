"""All metrics with models of their own, one row each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from ...headforcing_core.errors import HeadForcingError, unknown_name
from .base import Begin, Column, LearnedMetric, ModelFile, Panel
from .flow import FlowMeasurement, MotionDriftMeasurement
from .frame_scores import AestheticMeasurement, ConsistencyMeasurement, TextMeasurement
from .models import (
    AESTHETIC_HEAD,
    CLIP_BASE,
    CLIP_BASE_TEXT,
    CLIP_LARGE,
    DINO,
    RAFT,
    ImageEncoder,
    Models,
)

MOST_PROMPTS = 60  # of a video with a number of their own
_TWO_DIGITS = "{:.2f}".format
_FOUR_DIGITS = "{:.4f}".format


def _consistency(
    name: str, needs: tuple[ModelFile, ...], encoder: Callable[[Models], ImageEncoder]
) -> LearnedMetric:
    key = f"{name}_consistency"
    label = f"{name} consistency"
    columns = (
        Column(key, label, _FOUR_DIGITS),
        Column(f"{key}_within", f"{label}, in clips of 2 s", _FOUR_DIGITS),
        Column(f"{key}_across", f"{label}, across these clips", _FOUR_DIGITS),
    )
    title = "Consistency (VBench's formula; 1 is a still video)"
    return LearnedMetric(
        name,
        title,
        columns,
        needs,
        load=lambda models: partial(ConsistencyMeasurement, encoder(models)),
    )


_TEXT_COLUMNS = [Column("text_score", "text score", _TWO_DIGITS)]
for _number in range(1, MOST_PROMPTS + 1):
    _TEXT_COLUMNS.append(
        Column(f"text_score_{_number}", f"text score, prompt {_number}", _TWO_DIGITS)
    )

_ROWS = (
    _consistency("subject", DINO, lambda models: models.dino),
    _consistency("background", CLIP_BASE, lambda models: models.clip_base.images),
    LearnedMetric(
        "text",
        "Prompts (100 times CLIP's cosine, means over frames)",
        tuple(_TEXT_COLUMNS),
        CLIP_BASE_TEXT,
        load=lambda models: partial(TextMeasurement, models.clip_base),
    ),
    LearnedMetric(
        "aesthetic",
        "Aesthetic quality (VBench's formula, LAION's head; up to 1)",
        (Column("aesthetic_quality", "aesthetic quality", _FOUR_DIGITS),),
        (*CLIP_LARGE, AESTHETIC_HEAD),
        load=lambda models: partial(
            AestheticMeasurement, models.clip_large.images, models.aesthetic_head
        ),
    ),
    LearnedMetric(
        "flow",
        "Optical flow (RAFT, 8 frames a second, sides halved above 1 megapixel; as if the shorter "
        "side had 256)",
        (
            Column("dynamic_degree", "dynamic degree (VBench's rule: 1 moves)", _TWO_DIGITS),
            Column("dynamic_degree_within", "dynamic degree, in clips of 2 s", _TWO_DIGITS),
            Column("top_flow", "flow, largest 5 % of pixels", _TWO_DIGITS),
            Column("mean_flow", "flow, all pixels", _TWO_DIGITS),
        ),
        (RAFT,),
        load=lambda models: partial(FlowMeasurement, models.flow),
    ),
    LearnedMetric(
        "motion_drift",
        "Motion drift (ID-Forcing's: the first 5 s against the last; its score is the mean of "
        "several videos)",
        (
            Column("motion_drift", "motion drift (0: motion is lost, 100: kept)", _TWO_DIGITS),
            Column("motion_first", "flow of the first 5 s, largest 5 %, pixels", _TWO_DIGITS),
            Column("motion_last", "flow of the last 5 s", _TWO_DIGITS),
        ),
        (RAFT,),
        load=lambda models: partial(MotionDriftMeasurement, models.flow),
    ),
)
METRICS = {row.name: row for row in _ROWS}


def load_panel(
    folder: Path,
    names: Sequence[str] = (),
    device: torch.device | str = "cpu",
    aesthetic_head: Path | None = None,
) -> Panel:
    """Load metrics from the files in a folder: the `names` of `METRICS`, by default those that can
    be loaded; raises HeadForcingError if none can."""
    for name in names:
        if name not in METRICS:
            raise unknown_name("metrics", name, METRICS)
    models = Models(folder, device, aesthetic_head)
    loaded: dict[LearnedMetric, Begin] = {}
    left_out = []
    for name in names or METRICS:
        metric = METRICS[name]
        try:
            for needed in metric.needs:
                models.find(needed)
            loaded[metric] = metric.load(models)
        except HeadForcingError as error:
            if names:
                raise HeadForcingError(f"{name}: {error}") from error
            left_out.append(f"{name}: {error}")
    if not loaded:
        raise HeadForcingError(
            f"no metric can be measured with the files in {folder}; {left_out[0]}"
        )
    return Panel(loaded, left_out)
