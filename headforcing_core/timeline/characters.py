"""Characters of pasted text that cannot be seen, that end lines, or that have an ASCII form."""

from __future__ import annotations

import unicodedata

_LINE_ENDS = "\r\x0b\x0c\x85\u2028\u2029"
_SPACES = (
    "\t\x1c\x1d\x1e\x1f\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u202f\u205f\u2800\u3000\u3164"
)
_WIDTH_ZERO = "\xad\u034f\u180e\u200b\u2060\u2061\u2062\u2063\u2064\ufeff"
_CLEAN = str.maketrans(
    dict.fromkeys(_LINE_ENDS, "\n") | dict.fromkeys(_SPACES, " ") | dict.fromkeys(_WIDTH_ZERO, "")
)

STRAIGHT_QUOTES = str.maketrans(dict.fromkeys("“”„‟", '"'))
# they set the direction of words and join letters, and mean nothing beside a time
_MARKS = (
    "\u061c\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e"
    "\u2066\u2067\u2068\u2069\ufe0e\ufe0f"
)
_OPENING = "【〔〖「『"
_PLAIN = STRAIGHT_QUOTES | str.maketrans(
    {
        **{chr(0xFF01 + code): chr(0x21 + code) for code in range(94)},  # full-width forms of ASCII
        **dict.fromkeys(_MARKS, "\x7f"),
        **dict.fromkeys(_OPENING, "["),
        **dict.fromkeys("】〕〗」』", "]"),
        **dict.fromkeys("〜∼～", "~"),
        **dict.fromkeys("‐‑‒−", "-"),
        **dict.fromkeys("∶︰", ":"),
    }
)


def clean(text: str) -> str:
    """A text in NFC in which all blank characters are spaces, all line ends newlines, and no mark
    has width zero.
    """
    return unicodedata.normalize("NFC", text.replace("\r\n", "\n").translate(_CLEAN))


# planes 0 and 1; of later ones only variation selectors are marks, which nobody sees
_END_OF_LETTERS = 0x1FFFF


def _of_marks() -> str:
    """Ranges, for a class of a regular expression, of the marks that stand on letters (Mn, Mc) and
    of those that join letters.
    """
    ranges = ["\u200c\u200d"]
    first = None  # of the range that is open
    for code in range(0x300, _END_OF_LETTERS + 1):
        is_mark = unicodedata.category(chr(code)) in ("Mn", "Mc")
        if is_mark and first is None:
            first = code
        elif not is_mark and first is not None:
            ranges.append(f"{chr(first)}-{chr(code - 1)}")
            first = None
    return "".join(ranges)


MARKS_OF_LETTERS = _of_marks()  # "\\w" has none of them
_NO_LOOK = str.maketrans("", "", "\u200c\u200d\ufe0e\ufe0f")


def same_letters(text: str) -> str:
    """A text to compare: in NFC and lower case, without marks that nobody sees."""
    lower = unicodedata.normalize("NFC", text.translate(_NO_LOOK)).lower()
    return unicodedata.normalize("NFC", lower)


def plain(text: str) -> str:
    """A text of the same length, to find times and tags in: full-width forms and other brackets,
    dashes and quotes in ASCII, marks of direction as DEL.
    """
    return text if text.isascii() else text.translate(_PLAIN)


def lines_of(text: str) -> list[str]:
    """The lines of a text, each as `fold` makes it; invisible characters can end lines, too."""
    readable = clean(text).replace("\0", " ").encode("utf-8", "replace").decode()
    return [" ".join(line.split()) for line in readable.split("\n")]


def split_lines(text: str) -> list[str]:
    """The lines of a text, which end at newlines of any system, and not at other characters as
    `str.splitlines`.
    """
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")


def split_prompts(text: str) -> tuple[str, ...]:
    """The prompts of a text with one on each line; empty lines are left out."""
    return tuple(filter(None, map(str.strip, split_lines(text))))


def fold(text: str) -> str:
    """One line of valid Unicode: white space and NUL become single spaces, lone surrogates become
    "?".
    """
    return " ".join(clean(text).replace("\0", " ").encode("utf-8", "replace").decode().split())
