"""Words above a list, such as "Here is your story:". They are refused, since they are no prompt."""

from __future__ import annotations

from dataclasses import replace

from ...prompt import TimelineError
from ..text import Text
from . import bullets, counted_titles, numbered, screenplay, shots

EXAMPLES: dict[str, list[tuple[float | None, str]]] = {}
REFUSED = {
    "Here is your story:\n\n- A fox trots.\n- A wolf howls.": 1,
    "The Fox\nOne: a fox\nTwo: a wolf": 1,
    "A title\nand more\n\nPrompt: a fox\nPrompt: a wolf": 1,
}
_LISTS = (numbered, bullets, screenplay, shots, counted_titles)


def read(text: Text) -> None:
    """Refuse a text which is a list without its first line or paragraph."""
    if len(text.written) < 3:
        return
    first = text.written[0]
    for end in (first.number, _end_of_paragraph(text)):
        below = "\n".join(line.text for line in text.lines[end:])
        if _is_list(replace(text, pasted=below)):
            raise TimelineError(
                f"{first.text[:40]!r} stands before a list; remove it, or write one prompt without "
                "a list",
                first.number,
            )


def _end_of_paragraph(text: Text) -> int:
    """The number of the last line of the first paragraph."""
    for line in text.lines[text.written[0].number :]:
        if not line.text:
            return line.number
    return len(text.lines)


def _is_list(text: Text) -> bool:
    try:
        return any(form.read(text) is not None for form in _LISTS)
    except TimelineError:
        return True
