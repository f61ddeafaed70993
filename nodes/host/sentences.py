"""Sentences that pages of the editor show in their own language."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any


class Sentence(str):
    """An English text that remembers how it was made: `Sentence("up to %1", "0:08")`.

    Values may be sentences themselves. A page translates the templates, which
    `generators/translations.txt` has.
    """

    template: str
    values: tuple[Any, ...]

    def __new__(cls, template: str, *values: Any) -> Sentence:
        text = super().__new__(
            cls, re.sub(r"%(\d)", lambda found: str(values[int(found[1]) - 1]), template)
        )
        text.template = template
        text.values = values
        return text

    @property
    def parts(self) -> list[Any]:
        """The template and its values, as `said` in nodes/web/texts.js reads them."""
        return [self.template, *(parts_of(value) for value in self.values)]


def parts_of(text: Any) -> list[Any] | str:
    """The parts of a sentence; another value as its text."""
    return text.parts if isinstance(text, Sentence) else str(text)


def joined(sentences: Iterable[str], between: str) -> Sentence:
    """Up to nine sentences as one, without empty ones."""
    given = list(filter(None, sentences))
    return Sentence(between.join(f"%{number}" for number in range(1, len(given) + 1)), *given)
