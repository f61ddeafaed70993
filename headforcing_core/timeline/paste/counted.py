"""Subtitles with a line for each, whose times are counts: tenths of a second, or frames."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..characters import fold
from ..clock import cut_to_millisecond
from ..prompt import Prompt, TimelineError

_CODES = re.compile(r"\{[^{}]*\}|\\[Nnh]|[|]/?|^/")


def read_counted(
    form: re.Pattern[str], rows: Sequence[tuple[int, str]], rate: float
) -> list[Prompt]:
    """A prompt for each row, which `form` cuts into start, end and words; `rate` counts are a
    second.
    """
    prompts = []
    for number, line in rows:
        found = form.match(line)
        if found is None:
            raise TimelineError(
                f"{line[:40]!r} belongs to no subtitle; put it behind two times as those above, or "
                "remove it",
                number,
            )
        start = cut_to_millisecond(int(found[1]) / rate)
        end = cut_to_millisecond(int(found[2]) / rate) if found[2] else None
        token = f"{found[1]}-{found[2]}"
        prompts.append(Prompt(words_of_subtitle(found[3]), number, start, end, token=token))
    return prompts


def words_of_subtitle(text: str) -> str:
    """The words without codes of type and of the ends of lines."""
    return fold(_CODES.sub(" ", text)).replace(" ,", ",")
