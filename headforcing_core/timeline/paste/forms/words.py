"""A text that no other form claims: one prompt."""

from __future__ import annotations

from ...characters import fold
from ...prompt import Prompt
from ..text import Text

EXAMPLES = {
    "5 cats run\nin the snow": [(0.0, "5 cats run in the snow")],
    "9:16 vertical video": [(0.0, "9:16 vertical video")],
}
REFUSED = {"": None, "---": None}


def read(text: Text) -> list[Prompt]:
    """The prompt; none for a text without words."""
    return [Prompt(fold(text.unruled))] if text.written else []
