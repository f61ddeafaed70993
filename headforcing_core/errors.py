"""The exception for errors that a user can cause."""

import difflib
import re
import unicodedata
from collections.abc import Iterable
from importlib import import_module
from types import ModuleType

MAX_MESSAGE = 1000  # characters
_MAX_VALUE = 200  # of one that is quoted, or a word
_LONG_VALUE = re.compile(
    rf"""\S{{{_MAX_VALUE + 1},}}|'[^']{{{_MAX_VALUE},}}'|"[^"]{{{_MAX_VALUE},}}\""""
)


class HeadForcingError(ValueError):
    """Something the user supplied cannot be used: one sentence with the expected and the given
    value and what to do.

    Messages quote names and values of files, so every message goes through `one_line`.
    """

    def __init__(self, message: object = ""):
        super().__init__(one_line(message))


def unknown_name(field: str, name: object, choices: Iterable[str]) -> HeadForcingError:
    """The error for a name that is none of the choices: the one that was meant, or all of them."""
    names = list(choices)
    given = str(name)[:60]
    if meant := difflib.get_close_matches(given, names, 1, 0.75):
        return HeadForcingError(f"unknown {field} {given!r}; did you mean {meant[0]}?")
    return HeadForcingError(f"{field} must be one of {', '.join(names)}, got {given!r}")


def import_optional(package: str) -> ModuleType:
    """Import a package that text encoders need; HeadForcingError if it is missing."""
    try:
        return import_module(package)
    # RuntimeError: a torchvision that belongs to another torch
    except (ImportError, RuntimeError) as error:
        raise HeadForcingError(
            f"text encoders need the package {package}, which cannot be imported "
            f"({one_line(error, 200)}): run "
            '`pip install -e ".[text]"` in the folder of the pack'
        ) from error


def one_line(text: object, most: int = MAX_MESSAGE) -> str:
    """The text on one line: control characters escaped, the middle left out of what is long, as of
    each long word.

    For text of others in messages and logs, where a line break or a terminal's escape sequence
    could forge a line.
    """
    short = _shorten(str(text), 20 * most)
    if not short.isprintable():
        short = "".join(map(_printable, short))
    return _shorten(_LONG_VALUE.sub(lambda value: _shorten(value[0], _MAX_VALUE), short), most)


def _printable(character: str) -> str:
    control = unicodedata.category(character) in ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")
    return character.encode("unicode_escape").decode() if control else character


def _shorten(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    end = most // 3  # what to do stands at the end of a message
    return f"{text[: most - end - 5]} ... {text[-end:]}"


def first_sentence(error: Exception | str) -> str:
    """The first sentence of an exception's message, or its type name if it has none (compiler
    messages are long).
    """
    return first_line(error).split(". ")[0]


def first_line(error: Exception | str) -> str:
    """The first line of an exception's message, or its type name if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
