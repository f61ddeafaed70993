"""`--follow FILE`: a story that is read again while it is rendered."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
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
from .values import read_text

RESTED_SECONDS = 0.3  # an editor may write a file in several pieces


class FollowedFile:
    """A text file that is read again when it has changed.

    Attributes:
        text: what it held when it was read first, or what was put here since.
    """

    def __init__(self, path: Path):
        self.path = path
        self._seen = self._state()
        self.text = read_text(f"@{path}")

    def changed(self) -> str | None:
        """The new text, once for each change; None if it is the same or was written just now.

        Raises HeadForcingError as `read_text`, for a pipe, a missing or a large file too, once for each change.
        """
        state = self._state()
        if state == self._seen or (state is not None and 0 <= time.time() - state[0] / 1e9 < RESTED_SECONDS):
            return None
        self._seen = state
        text = read_text(f"@{self.path}")
        return None if text == self.text else text

    def _state(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


class FollowedStory(Story):
    """The story of a followed file; says in one line on stderr what is taken and what is not.

    Args:
        parse, encode: of the file's text and of its prompts.
        seconds: as for `Story`.
        device: where blocks are made.
    """

    def __init__(
        self,
        file: FollowedFile,
        parse: Callable[[str], Timeline],
        encode: Callable[[list[str]], Sequence[Tensor]],
        seconds: float,
        device: torch.device,
    ):
        self._file, self._asked = file, file.text
        self._parse, self._encode, self.seconds, self._device = parse, encode, seconds, device

    def ask(self) -> Timeline | None:
        text = self._file.changed()
        if text is None:
            return None
        self._asked = text
        return self._parse(text)

    def check(self, plan: RenderPlan, more: int) -> None:
        check_growth(more, room_on(self._device))

    def encode(self, texts: list[str]) -> Sequence[Tensor]:
        try:
            return self._encode(texts)
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
