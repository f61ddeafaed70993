"""Names of pictures in prompts: `@hero` in a text holds the picture of that name while the prompt's
scene lasts.

In a story without pictures `@` is a character like any other, and an address such as me@example.com
is never a name.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from ..errors import HeadForcingError
from .characters import MARKS_OF_LETTERS, same_letters

MAX_REFERENCES = 4
_MOST_LETTERS = 32
NAME = rf"[^\W\d_][\w{MARKS_OF_LETTERS}]*"
_NAMED = re.compile(rf"(?<![\w{MARKS_OF_LETTERS}])@({NAME})")


def check_names(names: Sequence[str]) -> None:
    """Raise HeadForcingError for names that prompts cannot say, for a name that is given twice, and
    for too many.
    """
    for name in names:
        letters = len(unicodedata.normalize("NFC", name))
        if letters > _MOST_LETTERS or not re.fullmatch(NAME, name):
            raise HeadForcingError(
                f"a picture's name is a letter and then letters, digits or _, got {name[:40]!r}; "
                "name it hero, for @hero in prompts"
            )
    lower = [same_letters(name) for name in names]
    twice = [name for name in lower if lower.count(name) > 1]
    if twice:
        raise HeadForcingError(f"two pictures are named {twice[0]}; give each a name of its own")
    if len(names) > MAX_REFERENCES:
        raise HeadForcingError(f"a video takes up to {MAX_REFERENCES} pictures, got {len(names)}")


def named_in(text: str, names: Sequence[str]) -> tuple[str, ...]:
    """The pictures that a prompt names, each once, in the order of the text, as `names` spells
    them.

    Raises HeadForcingError for a name that no picture has; upper and lower case are the
    same, and so are one letter and the same letter with a mark of its own.
    """
    known = {same_letters(name): name for name in names}
    for found in _NAMED.findall(text):
        if same_letters(found) not in known:
            given = ", ".join(f"@{name}" for name in names)
            raise HeadForcingError(f"no picture is named @{found}; there are {given}")
    return tuple(dict.fromkeys(known[same_letters(found)] for found in _NAMED.findall(text)))


def spoken(text: str) -> str:
    """A prompt of a story with pictures as the text encoder reads it, names without their sign."""
    return _NAMED.sub(r"\1", text)
