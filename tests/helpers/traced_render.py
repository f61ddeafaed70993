"""The way of a command through the pack, in a process of its own: prints which files it calls, and
in which order.

`python traced_render.py demo ...` prints a JSON object after what the command prints: the files
that are entered before the first block is begun, in order, and those of the third block without the
transformer's. A file is entered by a call from another one; what runs while it is imported does not
count.
"""

import json
import os
import sys
from functools import cache
from itertools import groupby
from pathlib import Path
from types import FrameType

import headforcing.headforcing_core as core
from headforcing.cli import render as _imported_before_it_is_traced  # noqa: F401
from headforcing.cli.cli import main

ROOT = str(Path(core.__file__).resolve().parents[1]) + os.sep
FOLDERS = ("cli", "headforcing_core", "kernels")
TRANSFORMER = ("model/", "kernels/")

calls: list[tuple[str, str]] = []  # file and function


@cache
def name_of(path: str) -> str | None:
    """A file of the pack as it is named below `headforcing_core`; None for another one."""
    path = os.path.realpath(path) if os.path.isabs(path) else ""
    ours = path.startswith(ROOT) and path.removeprefix(ROOT).partition(os.sep)[0] in FOLDERS
    name = path.removeprefix(ROOT).replace(os.sep, "/").removeprefix("headforcing_core/")
    # the demo's own files stand for a text encoder and a VAE, which are not counted either
    return name if ours and not name.startswith("demo/") else None


def watch(frame: FrameType, event: str, arg: object) -> None:
    code = frame.f_code
    if (
        event == "call"
        and code.co_name != "<module>"
        and (name := name_of(code.co_filename)) is not None
    ):
        calls.append((name, code.co_name))


def entered(first: int, last: int) -> list[str]:
    """The files that are entered from one call to another."""
    return [file for file, _ in groupby(calls[first:last], key=lambda call: call[0])]


if __name__ == "__main__":
    sys.setprofile(watch)
    try:
        code = main(sys.argv[1:])
    finally:
        sys.setprofile(None)
    blocks = [place for place, (_, function) in enumerate(calls) if function == "make_block"]
    block = [file for file in entered(blocks[2], blocks[3]) if not file.startswith(TRANSFORMER)]
    way = {"before": entered(0, blocks[0]), "block": [file for file, _ in groupby(block)]}
    sys.stdout.write(json.dumps({**way, "all": sorted(set(entered(0, len(calls))))}))
    sys.exit(code)
