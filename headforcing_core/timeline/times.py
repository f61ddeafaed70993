"""Regular expressions of the forms in which times are written.

All patterns are for ASCII digits, see `headings.plain`.
"""

from __future__ import annotations

import re

FLAGS = re.ASCII | re.IGNORECASE
SEPARATORS = "–—→•·:|-"  # optional, one between a time and its prompt

# the frames of a timecode, hh:mm:ss:ff, are read if they are 00
_TIMECODE = r"\d{1,9}:\d\d:\d\d[:;]"
CLOCK = (
    rf"(?:{_TIMECODE}00(?!\d)|(?!{_TIMECODE}\d\d(?!\d))"
    r"\d{1,9}:\d\d(?::\d\d)?(?:[.,]\d{1,9}(?!\d|:\d))?)"
)
NUMBER = r"\d{1,9}(?:[.,]\d{1,9})?"
_SECONDS_WORD = r"(?:seconds?|secs?|秒|초)"  # other words for the unit s
MINUTES_WORD = r"(?:minutes?|mins?|[分분])"
_MINUTES_AND_SECONDS = (
    rf"\d{{1,9}}\s?(?:{MINUTES_WORD}|m)(?:\s?|,\s|\sand\s){NUMBER}\s?(?:{_SECONDS_WORD}|s)"
)
IN_SECONDS = rf"{NUMBER}\s?(?:{_SECONDS_WORD}|s)(?![a-z])"
_IN_MINUTES = rf"{NUMBER}(?:\s?{MINUTES_WORD}|m)(?![a-z\d])"  # "5 m" are metres
DURATION = rf"(?:{_MINUTES_AND_SECONDS}|{IN_SECONDS}|{_IN_MINUTES})"
TIME = rf"(?:{CLOCK}|{DURATION})"
NUMBER_OR_TIME = rf"(?:{TIME}|{NUMBER})"
TO = r"\s{0,8}(?:-{1,2}>|[-–—~→至到]|to\b|から|부터)\s{0,8}"
_END = rf"(?P<end>{TIME})(?:まで|까지)?"
# a time as it is also said in a sentence, "5 seconds later"; "5s" and "1m30s" are not
SPOKEN = rf"(?:{NUMBER}{TO})?(?:{NUMBER}(?:\s?{_SECONDS_WORD}|\ss)(?![a-z])|{_IN_MINUTES})"
BEGIN = rf"(?:{TIME}|{NUMBER}(?={TO}{TIME}))"  # of a range: the unit may be at its end alone
NO_TIME_OF_DAY = r"(?!\s?[ap]\.?m\b)"  # "6:00 pm" belongs to the prompt
_AFTER_TIME = (
    rf"(?=[\s{SEPARATORS}]|(?P=bold)|$|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]){NO_TIME_OF_DAY}"
    rf"(?!{TO}{TIME})"  # "0:00-0:05. a" is no time with other words
)

# with the group `bold` before them
BARE = rf"(?P<start>{BEGIN})(?:{TO}{_END})?{_AFTER_TIME}"
RANGE = rf"(?P<start>{BEGIN}){TO}{_END}{_AFTER_TIME}"
BRACKETS = rf"\[\s{{0,8}}(?P<start>{NUMBER_OR_TIME})(?:{TO}(?P<end>{NUMBER_OR_TIME}))?\s{{0,8}}\]"
PARENTHESES = rf"\(\s{{0,8}}(?P<start>{BEGIN})(?:{TO}(?P<end>{TIME}))?\s{{0,8}}\){NO_TIME_OF_DAY}"
# a row of a table: "0:00,a cat walks", "0:00,0:05,a cat walks"; "0:00,5 cats" has a fraction
COMMAS = rf'"?(?P<start>{TIME})"?(?:(?:,|{TO})"?(?P<end>{TIME})"?)?,(?:\s{{1,8}}|(?=[^\s\d]))'
