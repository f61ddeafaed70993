"""The command `read-vbench`: tables of what VBench measured of `evaluate --vbench`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..headforcing_core.commands.arguments import Result
from ..headforcing_core.commands.compare import write_result
from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.render.comparison import Entry
from . import vbench
from .answers import answer
from .questions import QUESTIONS, Rendered, renders_of, with_shuffles
from .statistics import Numbers


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `read-vbench` to the command line."""
    sub = command("read-vbench", read_vbench, "Read what VBench measured of `evaluate --vbench FOLDER` into tables.")
    sub.add_argument("folder", type=vbench.FOLDER)


def read_vbench(args: argparse.Namespace) -> Result:
    """Write `QUESTION-vbench.md` and `QUESTION-vbench.json` into the folder of an export."""
    folder: Path = args.folder
    exported, measured = vbench.read_export(folder), vbench.read_results(folder)
    if unknown := set(exported.questions) - set(QUESTIONS):
        raise HeadForcingError(
            f"{folder} is about {unknown.pop()!r}, which is no question of `evaluate`: export it anew"
        )

    def numbers(row: Entry | Rendered, number: int) -> Numbers:
        assert isinstance(row, Entry)  # videos without a model are not exported
        return dict.fromkeys(vbench.COLUMNS) | measured.get((row.key, exported.files[row.key][number]), {})

    texts, found = [], {}
    for name in exported.questions:
        question = with_shuffles(QUESTIONS[name], exported.shuffles)
        rows = question.rows
        there = tuple(row for row in rows if all(entry.key in exported.files for entry in renders_of(row)))
        if not there or there[-1] != rows[-1]:
            raise HeadForcingError(f"{folder} has no row {rows[-1].label!r}: export it anew")
        left_out = (f"not laid out: {row.label}" for row in rows if row not in there)
        note = "\n".join(filter(None, [question.note, *left_out]))
        # none of VBench's numbers answers a question of `evaluate`
        question = replace(question, rows=there, columns=tuple(vbench.COLUMNS), primary="", note=note)
        told = answer(question, exported.videos, numbers)
        text = "\n\n".join(filter(None, [question.asks, told.table(), question.note]))
        texts.append(write_result(folder, f"{name}-vbench", text, told.to_dict())["text"])
        found[name] = told.to_dict()
    return {"text": "\n\n".join(texts), "json": found}
