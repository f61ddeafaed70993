"""The command `batch`: many videos, one after the other or on a farm."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
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
from ..render.describe import markdown_table
from ..render.plan import RenderPlan
from ..render.resources import Needs, check_disk, in_turn
from .arguments import Result
from .batch_jobs import check_files, outputs, read_jobs
from .farms import PATIENCE_SECONDS, check_roles, farm_of, render_one
from .source import Source

Note = dict[str, Any]


@dataclass(frozen=True)
class VideoJob:
    """A video of a batch, as a worker gets it; its `source` only where the worker is this process.

    `args` as of `read_jobs`, `patience` in seconds for another process that writes the same files.
    """

    args: argparse.Namespace
    embeds: Mapping[str, Shared[Tensor]]
    source: Source | None
    patience: float


@dataclass(frozen=True)
class Planned:
    """A video that is not finished, checked before the first is begun.

    `starts`: it begins with video frames, or holds pictures, which are read and encoded where it is made.
    """

    source: Source
    plan: RenderPlan
    needs: Needs
    starts: bool

    @property
    def encoder(self) -> tuple[Path | None, Path | None] | None:
        """The files of the text encoder or its embeddings; None for the embedded model's."""
        files = self.source.files
        return None if files is None else (files.text_encoder, files.embeddings)

    @property
    def texts(self) -> list[str]:
        """The texts of its prompts."""
        return self.source.request.timeline.texts


def batch(args: argparse.Namespace) -> Result:
    """Make the videos that are not finished, and report the outcome of each."""
    begun, farm, out = time.monotonic(), farm_of(args), args.out.absolute()
    jobs = list(read_jobs(args.jobs, out).items())
    jobs = [jobs[place] for place in pick_part(len(jobs), args.shard)]
    check_writable(out / "probe")
    rows = {name: finished(video) for name, video in jobs}
    todo = {name: video for name, video in jobs if rows[name] is None}
    for video in todo.values():
        video.json = args.json or farm.parallel  # workers show no bars
    check_files(args.jobs, todo)
    planned = {name: _plan(name, video, farm) for name, video in todo.items()}
    made: dict[str, Outcome[Note]] = {}
    if planned:
        check_disk(in_turn([video.needs for video in planned.values()]), out, out)
        try:
            _make(todo, planned, farm, made, args.json)
        except KeyboardInterrupt as stop:
            done = sum(row is not None for row in rows.values()) + sum(o.error is None for o in made.values())
            said = f"{done} of {len(rows)} videos are finished, what is made of the others is kept in {out / 'runs'}"
            said += ", the same command goes on"
            raise KeyboardInterrupt(*stop.args, said) from stop
    table = [_row(name, row, made.get(name)) for name, row in rows.items()]
    return _result(table, farm, time.monotonic() - begun)


def make_video(job: VideoJob) -> Note:
    """Make one video, or go on with it, and note that it is finished; to be called in any process."""
    begun, args = time.monotonic(), job.args
    source = job.source or Source.of(args)
    with claimed(args.out, args.latents, patience=job.patience):
        known = finished(args)
        if known is not None:  # another process has just made it
            return known
        source = source.with_start()
        plan = source.request.plan()
        video, result = render_one(source, plan, job.embeds, args.out, args.latents, patience=job.patience)
        if result.failure is not None:
            raise HeadForcingError(f"{result.failure}; the latents are complete: {args.latents}")
        note = {
            "identity": args.identity,
            "files": {path.name: file_hash(path) for path in outputs(args)},
            "blocks": video.plan.new_blocks,
            "reused_blocks": result.reused_blocks,
            "seconds": round(time.monotonic() - begun, 2),
            "problems": list(result.problems),
        }
        with replacing(args.runs / "finished.json") as temporary:
            temporary.write_text(json.dumps(note, indent=1), encoding="utf-8")
    return note


def finished(args: argparse.Namespace) -> Note | None:
    """The note of a video that is finished: same options, and files as they were written; None for another."""
    try:
        note = json.loads((args.runs / "finished.json").read_text(encoding="utf-8"))
        files = {path.name: file_hash(path) for path in outputs(args)}
        if (note["identity"], note["files"]) != (args.identity, files):
            return None
        blocks = int(note["blocks"])
        found = {"files": files, "problems": list(note["problems"]), "blocks": blocks, "reused_blocks": blocks}
        return {**found, "seconds": 0.0, "kept": True}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _plan(name: str, args: argparse.Namespace, farm: Farm) -> Planned:
    """Check a video. Of a farm of other machines only the worker knows the device, so it checks that itself."""
    try:
        if farm.parallel and ":" in args.device:
            raise HeadForcingError(f"on a farm the device is auto, cuda or cpu, got {args.device!r}")
        source = Source.of(args, elsewhere=farm.remote)
        plan = source.request.plan()
        source.check_encoders(plan)
        needs = source.check_needs(plan, args.out, elsewhere=farm.remote)
        # a worker reads the video frames of a start itself: of many videos they would not fit into memory
        starts = source.start is not None or bool(source.references)
        return Planned(replace(source, start=None, references={}), plan, needs, starts)
    except HeadForcingError as error:
        raise HeadForcingError(f"{name}: {error}") from error


def _encode(videos: Iterable[Planned]) -> dict[Any, dict[str, Tensor]]:
    """The embeddings of all texts, by text encoder and text; each text encoder is loaded once."""
    by_encoder: dict[Any, list[Planned]] = {}
    for video in videos:
        by_encoder.setdefault(video.encoder, []).append(video)
    encoded = {}
    for encoder, readers in by_encoder.items():
        texts = list(dict.fromkeys(text for video in readers for text in video.texts))
        embeds = readers[0].source.encode(texts)
        encoded[encoder] = {text: embed.cpu() for text, embed in embeds.items()}
    return encoded


def _make(
    todo: Mapping[str, argparse.Namespace],
    planned: Mapping[str, Planned],
    farm: Farm,
    made: dict[str, Outcome[Note]],
    quiet: bool,
) -> None:
    """Make all videos and put their outcomes into `made`."""
    encoded = _encode(planned.values())
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()  # workers on this machine need the room of the encoder
    check_roles({name: video.source.job(video.plan, encoded[video.encoder]) for name, video in planned.items()}, farm)
    with farm:
        shared = {
            encoder: {text: farm.share(embed) for text, embed in embeds.items()} for encoder, embeds in encoded.items()
        }
        del encoded
        jobs = {
            name: VideoJob(
                todo[name],
                embeds={text: shared[video.encoder][text] for text in video.texts},
                source=None if farm.parallel or video.starts else video.source,
                patience=PATIENCE_SECONDS if farm.parallel else 0.0,
            )
            for name, video in planned.items()
        }
        with tqdm(total=len(jobs), unit="video", desc="rendering", disable=quiet or not farm.parallel) as bar:
            for outcome in farm.run(make_video, jobs):
                made[outcome.name] = outcome
                if not quiet:
                    tqdm.write(_line(_row(outcome.name, None, outcome)), file=sys.stderr)
                bar.update()


def _row(name: str, before: Note | None, outcome: Outcome[Note] | None) -> Note:
    """Row of a video in the table."""
    if outcome is not None and outcome.error is not None:
        error = outcome.error
        why = str(error) if isinstance(error, HeadForcingError) else f"{type(error).__name__}: {first_sentence(error)}"
        return {"name": name, "state": "failed", "why": one_line(why)}
    note = before or (outcome and outcome.get()) or {}
    fields = {key: note[key] for key in ("blocks", "reused_blocks", "seconds", "files", "problems")}
    return {"name": name, "state": "finished before" if note.get("kept") else "done", **fields}


def _line(row: Note) -> str:
    """A row as one line of text."""
    if row["state"] == "failed":
        return f"{row['name']}: failed: {row['why']}"
    damaged = f", {len(row['problems'])} damaged files" if row["problems"] else ""
    reused = f"{row['reused_blocks']} of {row['blocks']} blocks reused"
    return f"{row['name']}: {row['state']}, {reused}, {row['seconds']:.1f} s{damaged}"


def _result(rows: list[Note], farm: Farm, seconds: float) -> Result:
    """The table of all videos; the exit code is 1 if one has failed."""
    count, cells = Counter(row["state"] for row in rows), []
    for row in rows:
        numbers = [str(row["reused_blocks"]), f"{row['seconds']:.1f}"] if "files" in row else ["", ""]
        told = ", ".join(row["files"]) if "files" in row else row["why"].replace("|", "/")
        cells.append([row["name"], row["state"], *numbers, told])
    took = {"all": seconds, "videos": sum(row.get("seconds", 0.0) for row in rows)}
    lines = [
        markdown_table(["video", "state", "blocks reused", "seconds", "files, or why"], cells),
        "",
        ", ".join(f"{number} {state}" for state, number in count.items()),
        f"farm     {farm.describe()}",
        f"took     {took['all']:.1f} s; the videos, added up, {took['videos']:.1f} s",
    ]
    found = {"videos": rows, "seconds": took, "farm": farm.describe()}
    return {"text": "\n".join(lines), "json": found, "code": 1 if count["failed"] else 0}
