"""The command `batch`: many videos, one after the other or at the same time."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections import Counter
from dataclasses import replace

from tqdm import tqdm

from ..headforcing_core.distributed.workers import Workers
from ..headforcing_core.errors import HeadForcingError, first_sentence, one_line
from ..headforcing_core.files import Fields, check_writable, claimed, replacing
from ..headforcing_core.hashing import file_hash
from ..headforcing_core.head_profiles.profiler import pick_part
from ..headforcing_core.plan.describe import markdown_table
from ..headforcing_core.plan.resources import Needs, check_disk
from .arguments import Result
from .batch_jobs import check_files, outputs, read_jobs
from .source import Source
from .workers import Embeds, make_all, render_one, workers_of

# of one of several workers: a network disk may keep a dead machine's lock for so long
PATIENCE_SECONDS = 120.0
Note = Fields
"""What is known of a finished video, as `finished.json` beside its blocks states it."""
VideoJob = tuple[Namespace, Embeds]
"""A video as a worker gets it: arguments as of `read_jobs`, with `patience`, the seconds to wait
for another process that writes the same files; and the embeddings of its texts."""


def batch(args: Namespace) -> Result:
    """Make the videos that are not finished, and report the outcome of each."""
    begun = time.monotonic()
    workers = workers_of(args)
    out = args.out.absolute()
    jobs = list(read_jobs(args.jobs, out).items())
    jobs = [jobs[place] for place in pick_part(len(jobs), args.shard)]
    check_writable(out / "probe")
    rows = {}
    todo = {}
    for name, video in jobs:
        note = finished(video)
        if note is not None:
            rows[name] = {"name": name, **note}
            continue
        video.json = args.json or workers.parallel  # workers show no bars
        video.patience = PATIENCE_SECONDS if workers.parallel else 0.0
        todo[name] = video
    check_files(args.jobs, todo)
    sources = {}
    needs = []
    for name, video in todo.items():
        sources[name], needed = _check(name, video, workers)
        needs.append(needed)
    check_disk(needs, out, out)
    made = make_all(
        workers, make_one, sources, lambda name, embeds: (todo[name], embeds), quiet=args.json
    )
    try:
        for outcome in made:
            note = outcome.get() if outcome.error is None else _failure(outcome.error)
            rows[outcome.name] = row = {"name": outcome.name, **note}
            if not args.json:
                tqdm.write(_line(row), file=sys.stderr)
    except KeyboardInterrupt as stop:
        done = sum(row["state"] != "failed" for row in rows.values())
        said = (
            f"{done} of {len(jobs)} videos are finished, what is made of the others is kept in "
            f"{out / 'runs'}"
        )
        raise KeyboardInterrupt(*stop.args, f"{said}, the same command goes on") from stop
    return _result([rows[name] for name, _ in jobs], workers, time.monotonic() - begun)


def make_one(job: VideoJob) -> Note:
    """Make one video, or go on with it, and note that it is finished; to be called in any
    process.
    """
    begun = time.monotonic()
    args, embeds = job
    source = Source.of(args)
    with claimed(args.out, args.latents, patience=args.patience):
        known = finished(args)
        if known is not None:  # another process has just made it
            return known
        source = source.with_start()
        result = render_one(source, embeds, args.out, args.latents, patience=args.patience)
        if result.failure is not None:
            raise HeadForcingError(f"{result.failure}; the latents are complete: {args.latents}")
        note = {
            "state": "done",
            "blocks": result.plan.new_blocks,
            "reused_blocks": result.reused_blocks,
            "seconds": round(time.monotonic() - begun, 2),
            "files": {path.name: file_hash(path) for path in outputs(args)},
            "problems": list(result.problems),
        }
        with replacing(args.runs / "finished.json") as temporary:
            text = json.dumps({"identity": args.identity, **note}, indent=1)
            temporary.write_text(text, encoding="utf-8")
    return note


def finished(args: Namespace) -> Note | None:
    """The note of a video that is finished: same options, and files as they were written; None for
    another.
    """
    try:
        note = json.loads((args.runs / "finished.json").read_text(encoding="utf-8"))
        files = {path.name: file_hash(path) for path in outputs(args)}
        if note["identity"] != args.identity or note["files"] != files:
            return None
        blocks = int(note["blocks"])
        return {
            "state": "finished before",
            "blocks": blocks,
            "reused_blocks": blocks,
            "seconds": 0.0,
            "files": files,
            "problems": list(note["problems"]),
        }
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _check(name: str, args: Namespace, workers: Workers) -> tuple[Source, Needs]:
    """Check a video. If workers are on other machines, only they know the device, so it checks
    that itself.
    """
    try:
        if workers.parallel and ":" in args.device:
            raise HeadForcingError(
                f"on a farm the device is auto, cuda or cpu, got {args.device!r}"
            )
        source = Source.of(args, elsewhere=workers.remote)
        source.note_unlike_training(source.request.timeline)
        plan = source.request.plan()
        source.check_encoders(plan)
        needs = source.check_needs(plan, args.out, elsewhere=workers.remote)
    except HeadForcingError as error:
        raise HeadForcingError(f"{name}: {error}") from error
    # the worker reads video frames of a start again: of many videos they would not fit into memory
    return replace(source, start=None, references={}), needs


def _failure(error: Exception) -> Note:
    """The note of a video that has failed."""
    why = str(error)
    if not isinstance(error, HeadForcingError):
        why = f"{type(error).__name__}: {first_sentence(error)}"
    return {"state": "failed", "why": one_line(why)}


def _line(row: Note) -> str:
    """A row as one line of text."""
    if row["state"] == "failed":
        return f"{row['name']}: failed: {row['why']}"
    damaged = f", {len(row['problems'])} damaged files" if row["problems"] else ""
    reused = f"{row['reused_blocks']} of {row['blocks']} blocks reused"
    return f"{row['name']}: {row['state']}, {reused}, {row['seconds']:.1f} s{damaged}"


def _result(rows: list[Note], workers: Workers, seconds: float) -> Result:
    """The table of all videos; the exit code is 1 if one has failed."""
    count = Counter(row["state"] for row in rows)
    cells = []
    for row in rows:
        told = ["", "", row.get("why", "").replace("|", "/")]
        if row["state"] != "failed":
            told = [str(row["reused_blocks"]), f"{row['seconds']:.1f}", ", ".join(row["files"])]
        cells.append([row["name"], row["state"], *told])
    of_videos = sum(row.get("seconds", 0.0) for row in rows)
    lines = [
        markdown_table(["video", "state", "blocks reused", "seconds", "files, or why"], cells),
        "",
        ", ".join(f"{number} {state}" for state, number in count.items()),
        f"farm     {workers.describe()}",
        f"took     {seconds:.1f} s; the videos, added up, {of_videos:.1f} s",
    ]
    found = {
        "videos": rows,
        "seconds": {"all": seconds, "videos": of_videos},
        "farm": workers.describe(),
    }
    return Result(lines, found, min(count["failed"], 1))
