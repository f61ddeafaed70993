"""Characters of pasted text: those that cannot be seen, and other spellings of digits and punctuation in times."""

from __future__ import annotations

import re

_LINE_ENDS = "\r\x0b\x0c\x85\u2028\u2029"
_SPACES = (
    "\t\x1c\x1d\x1e\x1f\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u2800"
    "\u3000\u3164"
)
_WIDTH_ZERO = "\xad\u034f\u180e\u200b\u2060\u2061\u2062\u2063\u2064\ufeff"
_CLEAN = str.maketrans(dict.fromkeys(_LINE_ENDS, "\n") | dict.fromkeys(_SPACES, " ") | dict.fromkeys(_WIDTH_ZERO, ""))

# in words these join letters and set their direction, so only those in and before a time are left out
_MARKS = "\u061c\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufe0e\ufe0f"
_BEFORE_WORDS = re.compile(rf"[\d:.,\s\-*()\[\]{_MARKS}]*[\d\])](?:[{_MARKS}]+(?=\s))?", re.ASCII)
_NO_MARKS = str.maketrans("", "", _MARKS)

_PLAIN = str.maketrans(
    {
        **{chr(0xFF01 + code): chr(0x21 + code) for code in range(94)},  # full-width forms of ASCII
        **dict.fromkeys("【〔〖「『", "["),
        **dict.fromkeys("】〕〗」』", "]"),
        **dict.fromkeys("〜∼～", "~"),
        **dict.fromkeys("‐‑‒−", "-"),
        **dict.fromkeys("∶︰", ":"),
    }
)
STRAIGHT_QUOTES = str.maketrans(dict.fromkeys("“”„‟", '"'))
_PLAIN |= STRAIGHT_QUOTES


def clean(text: str) -> str:
    """A text in which all blank characters are spaces, all line ends newlines, and no mark has width zero."""
    return text.replace("\r\n", "\n").translate(_CLEAN)


def plain(text: str) -> str:
    """A text of the same length, to find times in: full-width forms and other brackets, dashes and quotes in ASCII."""
    return text.translate(_PLAIN)


def without_marks(line: str) -> str:
    """A line without marks of direction and joiners before and in the time at its beginning."""
    found = _BEFORE_WORDS.match(plain(line))
    return line if found is None else line[: found.end()].translate(_NO_MARKS) + line[found.end() :]


def fold(text: str) -> str:
    """One line of valid Unicode: white space and NUL become single spaces, lone surrogates become "?"."""
    return " ".join(clean(text).replace("\0", " ").encode("utf-8", "replace").decode().split())
