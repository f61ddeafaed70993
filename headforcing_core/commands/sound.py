"""The sound that the arguments of a command name."""

from __future__ import annotations

import argparse

from ..errors import HeadForcingError
from ..timeline.clock import format_time
from ..video.soundtrack import Soundtrack


def chosen_sound(args: argparse.Namespace) -> Soundtrack | None:
    """The sound of `--audio` in its place; None where the command has none, or none is given."""
    if "audio" not in args:
        return None
    if args.audio is None:
        for option, value in (
            ("--audio-offset", args.audio_offset),
            ("--audio-gain", args.audio_gain),
        ):
            if value:
                raise HeadForcingError(f"{option} places the sound of --audio; give --audio FILE")
        return None
    return Soundtrack.of_file(args.audio).placed(args.audio_offset, args.audio_gain)


def describe_sound(sound: Soundtrack) -> str:
    """A line of a report."""
    length = format_time(sound.seconds)
    words = f"sound    {sound.name}, {length}, from {sound.offset_seconds:g} s of the story on"
    if sound.gain_db:
        words += f", {sound.gain_db:+g} dB"
    return words
