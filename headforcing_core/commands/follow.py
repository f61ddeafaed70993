"""`--follow FILE`: a story that is read again while it is rendered."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from ..errors import HeadForcingError
from ..files import replacing
from ..render.live_story import Story
from ..render.plan import RenderPlan
from ..render.resources import check_growth, room_on
from ..timeline.clock import format_time
from ..timeline.timeline import Timeline
from .source import Source
from .values import FollowedFile


class FollowedStory(Story):
    """The story of a source's followed file; says in one line on stderr what is taken and what is not."""

    def __init__(self, source: Source, file: FollowedFile):
        self._source, self._file, self._asked, self.seconds = source, file, file.text, source.options.seconds

    def ask(self) -> Timeline | None:
        text = self._file.changed()
        if text is None:
            return None
        self._asked = text
        return self._source.parse(text)

    def check(self, plan: RenderPlan, more: int) -> None:
        check_growth(more, room_on(self._source.machine.device))

    def encode(self, texts: list[str]) -> Sequence[Tensor]:
        try:
            return self._source.encode(texts)
        except torch.OutOfMemoryError as error:
            raise HeadForcingError("the text encoder does not fit into memory beside the model") from error

    def taken(self, plan: RenderPlan, block: int) -> None:
        self._file.text = self._asked
        time = format_time(plan.timeline.clock.start_seconds(max(0, block - plan.start_blocks)))
        _say(f"{self._file.path} is taken from {time} on (block {block + 1} of {plan.blocks})")

    def refused(self, error: HeadForcingError) -> None:
        _say(f"{self._file.path} is not taken: {error}")

    def about(self) -> dict[str, Any]:
        return {"story": self._asked}

    def save(self, path: Path) -> None:
        """Write the story that was rendered."""
        with replacing(path) as temporary:
            temporary.write_text(self._file.text, encoding="utf-8", newline="")


def _say(line: str) -> None:
    tqdm.write(line, file=sys.stderr)
