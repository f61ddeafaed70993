"""The command line: `headforcing demo | generate | profile | report | ...`; `headforcing --help`
lists them all.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from importlib import import_module
from io import TextIOWrapper
from typing import Any, TextIO, cast

from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.files import reason
from ..headforcing_core.methods.registry import method_names, unknown_method
from .arguments import COMMANDS
from .options import add_rows, asks_for_several_gpus
from .parser import Parser, subcommands


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit codes: 0 done, 1 failed, 2 wrong input (one sentence on stderr), 130
    interrupted.
    """
    words = sys.argv[1:] if argv is None else argv
    with usable_streams():
        try:
            args = _parser(words).parse_args(words)
            if "method" in args and args.method not in method_names():
                raise unknown_method(args.method)
        except HeadForcingError as error:
            return _answer(2, f"error: {error}")
        if "gpus" in args:
            under_torchrun = (
                "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1
            )
            if under_torchrun or asks_for_several_gpus(args):
                from .several import run_on_several  # imports torch

                return _answer(*run_on_several(args, words, _run, under_torchrun))
        return run_command(args)


def run_command(args: Namespace) -> int:
    """Run a parsed command, print its result or what went wrong, and return the exit code."""
    return _answer(*_run(args))


def _run(args: Namespace) -> tuple[int, str]:
    """The exit code of a command, and its result or what went wrong."""
    try:
        result = _function(args.run)(args)
    except HeadForcingError as error:
        return 2, f"error: {error}"
    except OSError as error:  # the file system refused something that no sentence was written for
        place = f"{error.filename}: " if error.filename is not None else ""
        return 2, f"error: {place}{reason(error)}"
    except (MemoryError, RuntimeError) as error:
        from ..headforcing_core.devices import is_out_of_memory  # imports torch

        if not is_out_of_memory(error):
            raise
        return 2, "error: out of memory: close other programs, or choose a smaller size"
    except KeyboardInterrupt as stop:
        return 130, "; ".join(["interrupted", *map(str, stop.args)])
    return result.code, json.dumps(result.json) if args.json else result.text


def _parser(words: Sequence[str] = ()) -> Parser:
    """The parser of all commands; where `words` name one, the others have no arguments."""
    parser = Parser(prog="headforcing", description="Minute-long videos from five-second models.")
    named = [name for name in COMMANDS if name in words] or COMMANDS
    _add_commands(parser, COMMANDS, named)
    return parser


def _add_commands(
    parser: argparse.ArgumentParser,
    commands: Mapping[str, tuple[str, Any, str]],
    named: Iterable[str],
) -> None:
    """Add commands as of `COMMANDS`, those `named` with their arguments."""
    add_command = subcommands(parser)
    for name, (run, rows, text) in commands.items():
        sub = add_command(name, run, text)
        if name in named and run:
            add_rows(sub, rows)
        elif name in named:
            _add_commands(sub, rows, rows)


def _function(run: Any) -> Any:
    """The function of a command, which may be given by its name.

    Torch is imported without garbage collection, and its modules are left out of later ones:
    looking through their objects took a tenth of the time of a short command.
    """
    if not isinstance(run, str):
        return run
    module, name = run.split(".")
    is_first = "torch" not in sys.modules and gc.isenabled()
    if is_first:
        gc.disable()
    try:
        return getattr(import_module(f".{module}", __package__), name)
    finally:
        if is_first:
            gc.freeze()
            gc.enable()


# ---------------------------------------------------------------------------------- what is printed


class LossyStream:
    """A stream whose text is lost where it cannot be written."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


@contextmanager
def escaping(stream: TextIO) -> Iterator[None]:
    """In the `with` block characters that the stream's encoding lacks are written as escapes."""
    if not isinstance(stream, TextIOWrapper):  # text in memory, which holds every character
        yield
        return
    before = stream.errors
    stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        with suppress(OSError, ValueError):  # it was closed meanwhile, or what is left is lost
            stream.reconfigure(errors=before)


@contextmanager
def usable_streams() -> Iterator[None]:
    """In the `with` block nothing fails because stdin, stdout or stderr is closed, stderr is full,
    or the encoding of stdout or stderr has no such character: it is written as `\\u72d0` then.

    A closed stream is opened on the null device: else what libraries write to stderr goes to the
    next file opened.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # gets the lowest number that is free
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        out = sys.stdout or nowhere
        err = sys.stderr or nowhere
        with (
            escaping(out),
            escaping(err),
            redirect_stdout(out),
            redirect_stderr(cast(TextIO, LossyStream(err))),
        ):
            try:
                yield
            finally:
                for stream in (out, err):
                    try:
                        stream.flush()
                    except (OSError, ValueError):
                        _lose(stream)


def _answer(code: int, text: str) -> int:
    """Print a result, or what went wrong; returns the exit code, which is 1 where stdout does not
    take a result.
    """
    if not text:
        return code
    if code not in (0, 1):
        sys.stderr.write(f"{text}\n")
        return code
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        _lose(sys.stdout)
        # whoever closes a pipe has read what they wanted
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"error: the result cannot be printed: {reason(error)}\n")
            return 1
    return code


def _lose(stream: TextIO) -> None:
    """Send what is left in a stream's buffer to the null device: Python would fail on it when it
    ends.
    """
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
