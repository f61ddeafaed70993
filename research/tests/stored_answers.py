"""Answers that the commands stored, read again as pages show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headforcing.headforcing_core.render.comparison import Entry
from headforcing.research.answers import Answer, answer_rows
from headforcing.research.questions import Question, Rendered
from headforcing.research.statistics import Numbers


def read_answer(question: Question, found: Mapping[str, Any]) -> Answer:
    """The answer that `Answer.to_dict` stored. Rows are found by their labels, and those without numbers are empty."""
    known = {row["label"]: row for row in found["rows"]}

    def stored(row: Entry | Rendered) -> Sequence[Numbers]:
        videos = known.get(row.label, {})
        if isinstance(row, Entry) and row.roles == "shuffled":
            return dict(enumerate(videos.get("shuffles", ()))).get(row.shuffle, ())
        return videos.get("videos", ())

    return answer_rows(question, stored)


def unpacked(found: Mapping[str, Any]) -> dict[str, Any]:
    """Reverse `packed`."""

    def by_video(columns: Mapping[str, Sequence[float | None]]) -> list[Numbers]:
        return [dict(zip(columns, video, strict=True)) for video in zip(*columns.values(), strict=True)]

    rows = []
    for row in found["rows"]:
        shuffles = {"shuffles": list(map(by_video, row["shuffles"]))} if "shuffles" in row else {}
        rows.append({**row, "videos": by_video(row["videos"]), **shuffles})
    return {**found, "rows": rows}
