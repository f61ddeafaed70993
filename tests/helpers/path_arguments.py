"""Which arguments of a command line name files, and pairs of those that read with those that
write.
"""

import argparse
import re
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from headforcing.cli.parser import PathType

NAMES_FILES = re.compile(r"\b(files?|folder|path|\.?safetensors|json|png|mp4)\b", re.IGNORECASE)

# in their help, but take an address and names within a file or folder
SPEAK_OF_FILES = {"farm", "run_name", "name"}


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """All commands of the command line, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from commands(sub)
            return
    yield parser.prog.removeprefix("headforcing "), parser


def undeclared(parser: argparse.ArgumentParser) -> list[str]:
    """The arguments that name files by their type, default, or help, and do not say what is read
    and written.
    """
    return [
        action.dest
        for action in parser._actions
        if not isinstance(action.type, PathType)
        and action.dest not in SPEAK_OF_FILES
        and action.nargs != 0
        and not action.choices
        and (
            action.type is Path
            or isinstance(action.default, Path)
            or (
                action.type in (None, str) and NAMES_FILES.search(f"{action.help} {action.metavar}")
            )
        )
    ]


def pairs(
    parser: argparse.ArgumentParser, folder: Path
) -> Iterator[tuple[str, Namespace, Path, Path]]:
    """Arguments of a command with one that reads and one that writes, and a file of each."""
    given = folder / "given"
    made = folder / "made"
    (given / "model").mkdir(parents=True)
    made.mkdir()
    for name in ("config.json", "weights.safetensors", "weights.json"):
        (given / name).write_text("kept")
    defaults = {action.dest: action.default for action in parser._actions} | {
        "latents": made / "latents.safetensors"
    }
    typed = [action for action in parser._actions if isinstance(action.type, PathType)]
    for reader in typed:
        words = (str(given / "weights.json"), f"@{given / 'weights.json'}", str(given))
        for word in words:
            try:
                value = reader.type(word)
            except argparse.ArgumentTypeError:  # not a folder
                continue
            read = [
                path for path in reader.type.reads(value, Namespace(**defaults)) if path.is_file()
            ]
            for writer in typed if read else []:
                target = Namespace(
                    **{**defaults, writer.dest: made / "made.json", reader.dest: value}
                )
                for path in writer.type.writes(getattr(target, writer.dest), target):
                    yield f"{reader.dest} {writer.dest}", target, read[0], path


def naming(parser: argparse.ArgumentParser, file: str) -> Iterator[tuple[str, Namespace]]:
    """Arguments of a command of which one names a file to read, for every such argument, and that
    argument's name.
    """
    defaults = {action.dest: action.default for action in parser._actions} | {
        "latents": Path("made.safetensors")
    }
    for action in parser._actions:
        if not isinstance(action.type, PathType):
            continue
        for word in (file, f"@{file}", f"hero={file}"):
            try:
                value = action.type(word)
            except argparse.ArgumentTypeError:  # not a folder
                continue
            if Path(file) in action.type.reads(value, Namespace(**defaults)):
                yield action.dest, Namespace(**{**defaults, action.dest: value})
