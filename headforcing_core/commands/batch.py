"""The command `batch`: many videos, one after the other or on a farm."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from ..distributed.farm import Farm, Outcome, Shared
from ..errors import HeadForcingError, first_sentence, one_line
from ..files import check_writable, claimed, replacing
from ..hashing import file_hash
from ..head_profiles.profiler import pick_part
from ..plan.describe import markdown_table
from ..plan.plan import RenderPlan
from ..plan.resources import Needs, check_disk, in_turn
from .arguments import Result
from .batch_jobs import check_files, outputs, read_jobs
from .farms import farm_of, render_one, run_jobs
from .source import Source

# of a worker of a farm: a network disk may keep a dead machine's lock for so long
PATIENCE_SECONDS = 120.0
Note = dict[str, Any]
"""What is known of a finished video, as `finished.json` beside its blocks states it."""


@dataclass(frozen=True)
class VideoJob:
    """A video of a batch, as a worker gets it.

    `args` as of `read_jobs`, `patience` in seconds for another process that writes the same files.
    """

    args: argparse.Namespace
    embeds: Mapping[str, Shared[Tensor]]
    patience: float


@dataclass(frozen=True)
class CheckedVideo:
    """A video that is not finished, checked before the first is begun."""

    source: Source
    plan: RenderPlan
    needs: Needs

    @property
    def encoder(self) -> tuple[Path | None, Path | None] | None:
        """The files of the text encoder or its embeddings; None for the embedded model's."""
        files = self.source.files
        return None if files is None else (files.text_encoder, files.embeddings)


def batch(args: argparse.Namespace) -> Result:
    """Make the videos that are not finished, and report the outcome of each."""
    begun = time.monotonic()
    farm = farm_of(args)
    out = args.out.absolute()
    jobs = list(read_jobs(args.jobs, out).items())
    jobs = [jobs[place] for place in pick_part(len(jobs), args.shard)]
    check_writable(out / "probe")
    notes = {name: finished(video) for name, video in jobs}
    todo = {name: video for name, video in jobs if notes[name] is None}
    for video in todo.values():
        video.json = args.json or farm.parallel  # workers show no bars
    check_files(args.jobs, todo)
    checked = {name: _check(name, video, farm) for name, video in todo.items()}
    if checked:
        check_disk(in_turn([video.needs for video in checked.values()]), out, out)
    rows = {name: _row(name, note) for name, note in notes.items() if note is not None}
    try:
        for outcome in _make(todo, checked, farm, quiet=args.json):
            if outcome.error is None:
                row = _row(outcome.name, outcome.get())
            else:
                row = _failure(outcome.name, outcome.error)
            rows[outcome.name] = row
            if not args.json:
                tqdm.write(_line(row), file=sys.stderr)
    except KeyboardInterrupt as stop:
        done = sum(row["state"] != "failed" for row in rows.values())
        said = (
            f"{done} of {len(jobs)} videos are finished, what is made of the others is kept in "
            f"{out / 'runs'}"
        )
        raise KeyboardInterrupt(*stop.args, f"{said}, the same command goes on") from stop
    return _result([rows[name] for name, _ in jobs], farm, time.monotonic() - begun)


def make_one(job: VideoJob) -> Note:
    """Make one video, or go on with it, and note that it is finished; to be called in any
    process.
    """
    begun = time.monotonic()
    args = job.args
    source = Source.of(args)
    with claimed(args.out, args.latents, patience=job.patience):
        known = finished(args)
        if known is not None:  # another process has just made it
            return known
        source = source.with_start()
        result = render_one(source, job.embeds, args.out, args.latents, patience=job.patience)
        if result.failure is not None:
            raise HeadForcingError(f"{result.failure}; the latents are complete: {args.latents}")
        note = {
            "identity": args.identity,
            "files": {path.name: file_hash(path) for path in outputs(args)},
            "blocks": result.plan.new_blocks,
            "reused_blocks": result.reused_blocks,
            "seconds": round(time.monotonic() - begun, 2),
            "problems": list(result.problems),
        }
        with replacing(args.runs / "finished.json") as temporary:
            temporary.write_text(json.dumps(note, indent=1), encoding="utf-8")
    return note


def finished(args: argparse.Namespace) -> Note | None:
    """The note of a video that is finished: same options, and files as they were written; None for
    another.
    """
    try:
        note = json.loads((args.runs / "finished.json").read_text(encoding="utf-8"))
        files = {path.name: file_hash(path) for path in outputs(args)}
        if note["identity"] != args.identity or note["files"] != files:
            return None
        return {
            "files": files,
            "problems": list(note["problems"]),
            "blocks": int(note["blocks"]),
            "reused_blocks": int(note["blocks"]),
            "seconds": 0.0,
            "kept": True,
        }
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _check(name: str, args: argparse.Namespace, farm: Farm) -> CheckedVideo:
    """Check a video. Of a farm of other machines only the worker knows the device, so it checks
    that itself.
    """
    try:
        if farm.parallel and ":" in args.device:
            raise HeadForcingError(
                f"on a farm the device is auto, cuda or cpu, got {args.device!r}"
            )
        source = Source.of(args, elsewhere=farm.remote)
        source.note_unlike_training(source.request.timeline)
        plan = source.request.plan()
        source.check_encoders(plan)
        needs = source.check_needs(plan, args.out, elsewhere=farm.remote)
    except HeadForcingError as error:
        raise HeadForcingError(f"{name}: {error}") from error
    # the worker reads video frames of a start again: of many videos they would not fit into memory
    return CheckedVideo(replace(source, start=None, references={}), plan, needs)


def _encode(videos: Iterable[CheckedVideo]) -> dict[Any, dict[str, Tensor]]:
    """The embeddings of all texts, by text encoder and text; each text encoder is loaded once."""
    by_encoder: dict[Any, list[Source]] = {}
    for video in videos:
        by_encoder.setdefault(video.encoder, []).append(video.source)
    encoded = {}
    for encoder, sources in by_encoder.items():
        texts: list[str] = []
        for source in sources:
            texts += source.request.timeline.texts
        embeds = sources[0].encode(list(dict.fromkeys(texts)))
        encoded[encoder] = {text: embed.cpu() for text, embed in embeds.items()}
    return encoded


def _make(
    todo: Mapping[str, argparse.Namespace],
    checked: Mapping[str, CheckedVideo],
    farm: Farm,
    *,
    quiet: bool,
) -> Iterator[Outcome[Note]]:
    """Make all videos, and yield their outcomes as they come."""
    if not todo:
        return
    encoded = _encode(checked.values())
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()  # workers on this machine need the room of the encoder
    with farm:
        shared = {}
        for encoder, embeds in encoded.items():
            shared[encoder] = {text: farm.share(embed) for text, embed in embeds.items()}
        del encoded
        jobs = {}
        for name, video in checked.items():
            embeds_of_video = {
                text: shared[video.encoder][text] for text in video.source.request.timeline.texts
            }
            jobs[name] = VideoJob(
                todo[name], embeds_of_video, PATIENCE_SECONDS if farm.parallel else 0.0
            )
        yield from run_jobs(farm, make_one, jobs, unit="video", quiet=quiet)


def _row(name: str, note: Note) -> Note:
    """Row of a finished video in the table."""
    fields = {key: note[key] for key in ("blocks", "reused_blocks", "seconds", "files", "problems")}
    return {"name": name, "state": "finished before" if note.get("kept") else "done", **fields}


def _failure(name: str, error: Exception) -> Note:
    """Row of a video that has failed."""
    why = str(error)
    if not isinstance(error, HeadForcingError):
        why = f"{type(error).__name__}: {first_sentence(error)}"
    return {"name": name, "state": "failed", "why": one_line(why)}


def _line(row: Note) -> str:
    """A row as one line of text."""
    if row["state"] == "failed":
        return f"{row['name']}: failed: {row['why']}"
    damaged = f", {len(row['problems'])} damaged files" if row["problems"] else ""
    reused = f"{row['reused_blocks']} of {row['blocks']} blocks reused"
    return f"{row['name']}: {row['state']}, {reused}, {row['seconds']:.1f} s{damaged}"


def _result(rows: list[Note], farm: Farm, seconds: float) -> Result:
    """The table of all videos; the exit code is 1 if one has failed."""
    count = Counter(row["state"] for row in rows)
    cells = []
    for row in rows:
        if row["state"] == "failed":
            cells.append([row["name"], "failed", "", "", row["why"].replace("|", "/")])
        else:
            numbers = [str(row["reused_blocks"]), f"{row['seconds']:.1f}"]
            cells.append([row["name"], row["state"], *numbers, ", ".join(row["files"])])
    of_videos = sum(row.get("seconds", 0.0) for row in rows)
    lines = [
        markdown_table(["video", "state", "blocks reused", "seconds", "files, or why"], cells),
        "",
        ", ".join(f"{number} {state}" for state, number in count.items()),
        f"farm     {farm.describe()}",
        f"took     {seconds:.1f} s; the videos, added up, {of_videos:.1f} s",
    ]
    found = {
        "videos": rows,
        "seconds": {"all": seconds, "videos": of_videos},
        "farm": farm.describe(),
    }
    return {"text": "\n".join(lines), "json": found, "code": 1 if count["failed"] else 0}
