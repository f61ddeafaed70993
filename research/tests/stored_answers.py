"""Answers that the commands stored, read again as pages show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headforcing.research.rooms.answers import Answer, Question, answer
from headforcing.research.rows import MethodRow, Rendered
from headforcing.research.statistics import Numbers


def read_answer(question: Question, found: Mapping[str, Any]) -> Answer:
    """The answer that `Answer.to_dict` stored. Rows are found by their labels, and those without
    numbers are empty.
    """
    known = {row["label"]: row for row in found["rows"]}

    def stored(row: MethodRow | Rendered) -> Sequence[Numbers]:
        found = {"shuffles": (), **known.get(row.label, {"videos": {}})}
        shuffled = isinstance(row, MethodRow) and row.roles == "shuffled"
        columns = (
            dict(enumerate(found["shuffles"])).get(row.shuffle, {}) if shuffled else found["videos"]
        )
        return [
            dict(zip(columns, video, strict=True)) for video in zip(*columns.values(), strict=True)
        ]

    return answer(question, stored)
