"""The lines of `headforcing batch`: JSON objects with the options of `generate` or `demo`."""

from __future__ import annotations

import json
import os
import re
from argparse import Namespace
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NoReturn

from ..headforcing_core.errors import HeadForcingError, unknown_name
from ..headforcing_core.files import Fields, Named, check_kept, why_no_name
from ..headforcing_core.hashing import digest
from ..headforcing_core.names import DEMO_AUTOENCODER, DEMO_MODEL, bundled_profiles
from ..headforcing_core.timeline.characters import MARKS_OF_LETTERS, same_letters, split_lines
from ..headforcing_core.weights.shards import shard_files
from .arguments import COMMANDS
from .options import GPU_OPTIONS, add_rows
from .parser import VIDEO, Parser, named_files
from .texts import read_file
from .values import portable

_MOST_VIDEOS = 10_000
OTHERS = {"name", "demo", "seeds", "latents"}  # fields of a line that are no options of a command
SEVERAL = set(GPU_OPTIONS.replace("-", "_").split())
COMMANDS_OWN = {"out", "follow", "runs", "json", "run"} | SEVERAL  # options that a line cannot have
_NAME = re.compile(rf"[^\W_][\w{MARKS_OF_LETTERS} .-]{{0,79}}")


class _LineParser(Parser):
    def error(self, message: str) -> NoReturn:
        raise HeadForcingError(message)


@cache
def _parser(command: str) -> Parser:
    """The parser of a line's options: those of `generate` or `demo`."""
    parser = _LineParser(prog=command, allow_abbrev=False, add_help=False)
    add_rows(parser, COMMANDS[command][1])
    return parser


def read_jobs(file: Path, out: Path) -> dict[str, Namespace]:
    """The arguments of every video by its name, with absolute paths; a line with `seeds` is a video
    for each of them.

    Each has also `demo`, `reads`, the files that it reads, and `identity`, a hash of everything
    that its files depend on. Raises HeadForcingError with the line of a mistake.
    """
    jobs: dict[str, Namespace] = {}
    names = set()
    lines = [each for each in enumerate(split_lines(read_file(file)), 1) if each[1].strip()]
    _check_count(len(lines))
    for number, line in lines:
        try:
            videos = _videos(line, number)
            _check_count(len(jobs) + len(videos))
            for name, fields in videos:
                args = _arguments(fields, name, out)
                if same_letters(name) in names:  # some file systems take them for one
                    raise HeadForcingError(
                        f"there are two videos named {name!r}: give each its own name"
                    )
                names.add(same_letters(name))
                jobs[name] = args
        except HeadForcingError as error:
            raise HeadForcingError(f"{file.name}, line {number}: {error}") from error
    if not jobs:
        raise HeadForcingError(
            f'{file.name} has no line: write one JSON object a line, such as {{"demo": true}}'
        )
    return jobs


def outputs(args: Namespace) -> list[Path]:
    """The files of one video."""
    return [path for path in (args.out, args.latents) if path is not None]


def check_files(file: Path, jobs: Mapping[str, Namespace]) -> None:
    """Refuse videos that cannot be written, or are read for another video: they are made in any
    order.
    """
    reads: list[Named] = [("the list of videos", file)]
    writes: list[Named] = []
    for name, args in jobs.items():
        for path in outputs(args):
            if path.is_dir():
                raise HeadForcingError(
                    f"{name}: {path} is a folder: remove it, or give the video another name"
                )
            writes.append((name, path))
        if args.out is not None:
            writes += [(name, path) for path in VIDEO.writes(args.out, args)]
        reads += [(f"{name}, {option}", path) for option, path in args.reads]
    check_kept(reads, writes)


def _check_count(videos: int) -> None:
    if videos > _MOST_VIDEOS:
        raise HeadForcingError(
            f"the file has more than {_MOST_VIDEOS:,} videos: split it into several"
        )


def _videos(line: str, number: int) -> list[tuple[str, Fields]]:
    """The videos of a line: their names, and their fields."""
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise HeadForcingError(f"not valid JSON ({error.msg})") from error
    except (ValueError, RecursionError) as error:
        raise HeadForcingError("not valid JSON (nested too deeply)") from error
    if not isinstance(found, dict):
        raise HeadForcingError('expected a JSON object such as {"demo": true, "seed": 1}')
    fields = {str(key).replace("-", "_"): value for key, value in found.items()}
    name = fields.get("name", f"line-{number:04}")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise HeadForcingError(
            f"a name has up to 80 letters, digits, spaces, dots and dashes, got {name!r:.80}"
        )
    if why := why_no_name(name):
        raise HeadForcingError(f"the name {name!r:.80}: {why}; choose another one")
    for field in ("demo", "latents"):
        if not isinstance(fields.get(field, False), bool):
            raise HeadForcingError(f"{field} must be true or false, got {fields[field]!r:.80}")
    seeds = fields.get("seeds")
    if seeds is None:
        return [(name, fields)]
    if not isinstance(seeds, list) or not seeds or "seed" in fields:
        raise HeadForcingError("seeds must be a list such as [1, 2, 3], in place of seed")
    return [(f"{name}-seed{seed}", {**fields, "seed": seed}) for seed in seeds]


def _arguments(fields: Fields, name: str, out: Path) -> Namespace:
    """The arguments of one video, whose files are named after it."""
    own = COMMANDS_OWN.intersection(fields)
    if own:
        raise HeadForcingError(
            f"{own.pop()!r} is no option of a line: the command sets it for all videos"
        )
    demo = fields.get("demo", False)
    latents = fields.get("latents", False)
    parser = _parser("demo" if demo else "generate")
    args, unknown = parser.parse_known_args(_words(fields))
    options = {action.dest for action in parser._actions} - COMMANDS_OWN
    names = options | OTHERS
    for field in fields:
        if field not in names:
            raise unknown_name("a line", field, sorted(names))
    if unknown:
        raise HeadForcingError(f"cannot read {unknown[0]!r}")
    reads, _ = named_files(parser, args)
    args = portable(args)
    args.reads = [(option, path.absolute()) for option, path in reads]
    args.identity = _identity(args, options, demo=demo, latents=latents)
    args.demo = demo
    args.out = out / f"{name}.mp4" if demo or args.vae is not None else None
    args.latents = out / f"{name}.safetensors" if latents or args.out is None else None
    # its own: two stories of one seed would share a folder, which one process locks
    args.runs = out / "runs" / name
    return args


def _identity(args: Namespace, options: Iterable[str], demo: bool, latents: bool) -> str:
    """The hash of the options of a line, and of size and time of the files that they name."""
    values = {name: getattr(args, name) for name in sorted(options)}
    files = {path for option, path in args.reads if option != "--prompts"}  # whose text is known
    for name in ("weights", "text_encoder"):  # which can be in several files
        if values.get(name) is not None:
            files.update(shard_files(Path(values[name])))
    # those of the package are the same wherever it is installed
    files -= {DEMO_MODEL, DEMO_AUTOENCODER, *bundled_profiles().values()}
    stamps = []
    for path in sorted(files):
        if os.path.isfile(path):
            found = os.stat(path)
            stamps.append((str(path), found.st_size, found.st_mtime_ns))
    words = {name: str(value) for name, value in values.items()}
    return digest({**words, "demo": str(demo)}, latents, stamps)


def _words(fields: Fields) -> list[str]:
    """The fields as words of a command line."""
    words = []
    for field, value in fields.items():
        option = f"--{field.replace('_', '-')}"
        if field in OTHERS or value is False or value is None:
            continue
        if value is True:
            words.append(option)
        elif field == "prompts" and isinstance(value, list):
            words.append(f"{option}={json.dumps(value)}")  # a timeline, too
        elif field == "reference" and isinstance(value, list):
            words += [f"{option}={each}" for each in value]
        elif isinstance(value, (str, int, float)):
            words.append(f"{option}={value}")
        else:
            raise HeadForcingError(
                f"{field} must be a text, a number, true or false, got {value!r:.80}"
            )
    return words
