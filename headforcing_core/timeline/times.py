"""Regular expressions of the forms in which times are written.

All patterns are for ASCII digits, see `characters.plain`.
"""

from __future__ import annotations

import re

from .languages import FIRSTS, MINUTES, NUMBERS, RANGES, SCENE_SUFFIXES, SCENES, SECONDS, SHOTS

FLAGS = re.ASCII | re.IGNORECASE
SEPARATORS = "–—→•·:|-"  # optional, one between a time and its prompt

CLOCK = r"(?:\d{1,9}:\d\d(?::\d\d)?(?:\.\d{1,9})?(?![:;]?\d))"
NUMBER = r"\d{1,9}(?:[.,]\d{1,9})?"
_SECONDS_WORD = f"(?:{SECONDS})"  # in place of the unit s
MINUTES_WORD = f"(?:{MINUTES})"
UNIT = f"(?:{SECONDS}|{MINUTES}|s|m)"
_MINUTES_AND_SECONDS = (
    rf"\d{{1,9}}\s?(?:{MINUTES_WORD}|m)(?:\s?|,\s|\sand\s){NUMBER}\s?(?:{_SECONDS_WORD}|s)"
)
IN_SECONDS = rf"{NUMBER}\s?(?:{_SECONDS_WORD}|s)(?![a-z])"
_IN_MINUTES = rf"{NUMBER}(?:\s?{MINUTES_WORD}|m)(?![a-z\d])"  # "5 m" are metres
DURATION = rf"(?:{_MINUTES_AND_SECONDS}|{IN_SECONDS}|{_IN_MINUTES})"
TIME = rf"(?:{CLOCK}|{DURATION})"
NUMBER_OR_TIME = rf"(?:{TIME}|{NUMBER})"
_RANGE_WORDS = RANGES.replace("to", r"to\b")
TO = rf"\s{{0,8}}(?:-{{1,2}}>|[-–—~→]|{_RANGE_WORDS})\s{{0,8}}"
# a time as it is also said in a sentence, "5 seconds later", "80s disco"; "5s" and "1m30s" are not
SPOKEN = (
    rf"(?:{NUMBER}{TO})?(?:{NUMBER}(?:\s?{_SECONDS_WORD}|\ss)(?![a-z])|{_IN_MINUTES})"
    r"(?!\s?(?:[:|]|[–—-]\s))|[1-9]\d{0,8}0s\b(?!\s?:)"
)
_BEGIN = rf"(?:{TIME}|{NUMBER}(?={TO}{TIME}))"  # of a range: the unit may be at its end alone
NO_TIME_OF_DAY = r"(?!\s?[ap]\.?m\b)"  # "6:00 pm" belongs to the prompt
_MARKS = r"\x7f{1,9}(?=\s)"
_AFTER_TIME = (
    # a comma of a row of a table; "0:00,5 cats" could have a fraction
    rf"(?:{_MARKS}|,(?=\s|[^\s\d\"'])"
    rf"|(?=[\s*_`{SEPARATORS}]|$|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af])){NO_TIME_OF_DAY}"
    rf"(?!{TO}{TIME})"  # "0:00-0:05. a" is no time with other words
)
# a time or a range, in brackets, in parentheses or bare; numbers without a unit in brackets only
TIMES = (
    r"(?:(?P<square>\[\s{0,8})|(?P<round>\(\s{0,8}))?"
    rf"(?P<start>(?(square){NUMBER_OR_TIME}|{_BEGIN}))"
    rf"(?:{TO}(?P<end>(?(square){NUMBER_OR_TIME}|{TIME}))(?:まで|까지)?)?"
    rf"(?(square)\s{{0,8}}\](?:{_MARKS})?"
    rf"|(?(round)\s{{0,8}}\){NO_TIME_OF_DAY}(?:{_MARKS})?|{_AFTER_TIME}))"
)
# a range in the title of a scene: "The Forest (0:00-0:10)", "The Forest - 0:00-0:10"
TITLE_RANGE = (
    rf"(?:^|(?<!\d)[,{SEPARATORS}]|\s(?=[*_`]{{0,3}}[\[(]|00?:\d))\s{{0,8}}[*_`]{{0,3}}"
    rf"(?P<open>[\[(]\s{{0,8}})?(?P<start>(?(open){NUMBER_OR_TIME}|{_BEGIN})){TO}(?P<end>{TIME})"
    rf"(?(open)\s{{0,8}}[\])])[*_`]{{0,3}}(?(open)\s{{0,8}}(?:[{SEPARATORS}]|$)|[.:]?$)"
)
IN_BRACKETS = rf"\[\s{{0,8}}(?:{NUMBER_OR_TIME}{TO})?{TIME}\s{{0,8}}"
ORDINAL = (
    rf"(?:#\s?)?(?:\d{{1,9}}[a-d]?|[ivx]{{1,5}}|{NUMBERS}"
    r"|[一二三四五六七八九十]{1,3})(?![a-z\d\u00c0-\u04ff])"
)
# as regular expressions: a scene with its number, and less clear names, read with a time only
SCENE = rf"(?:(?:{SCENES})[\s_]{{0,8}}{ORDINAL}|第\s?{ORDINAL}\s?(?:{SCENE_SUFFIXES}))"
SHOT = rf"(?:(?:{SHOTS})\s{{0,8}}{ORDINAL})"
# beginnings of other texts that are letters: of screenplays, subtitles, items of lists
OTHERS = (
    r"INT\b|EXT\b|WEBVTT|\(?(?:[a-z]|[ivx]{1,4})[.)]\s|[①-⑳]|[一二三四五六七八九十]{1,3}、"
    rf"|(?:{FIRSTS})\s?[.):–—-]"
)
