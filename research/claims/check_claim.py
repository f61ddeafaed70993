"""The command `check-claim`: the paper's ablations on real weights, and a verdict for each of the
paper's figures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from ...cli.arguments import Result
from ...cli.compare import write_result
from ...cli.options import FARM_OPTIONS, FILE_OPTIONS, RENDER_OPTIONS, add_rows
from ...cli.parser import READ, TEXT, folder_written
from ...cli.profiles import MeasuredModel, measure, setup_of
from ...cli.values import DTYPES, ModelFiles, find_profile, parse_size, render_options
from ...cli.workers import workers_of
from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.files import check_regular, claimed_folder
from ...headforcing_core.head_profiles.agreement import describe_profile
from ...headforcing_core.head_profiles.profile import HeadProfile, classify
from ...headforcing_core.head_profiles.prompts import PROFILING_PROMPTS
from ...headforcing_core.head_profiles.shares import HeadShares
from ...headforcing_core.names import versions
from ...headforcing_core.plan.family import with_family
from ..metrics.scores import add_metric_arguments
from ..rows import Row
from ..videos import MAX_VIDEOS, Scores, load_metrics
from .claims import (
    ADDED_ROWS,
    OURS,
    PAPERS_ROWS,
    RETURN_RULE,
    RULE,
    lines_of,
    measured_rows,
    named_rows,
)
from .page import page
from .paper_numbers import COLUMNS, ONE_PROMPT, PRIMARY
from .returns import add_returns
from .stories import check_embeddings, plan_claims, texts_of

VIDEOS = 32
SECONDS = 60.0
PROFILED = (20, 30.0)  # prompts of a measured head profile, and seconds of each, as in the paper
MAX_SHUFFLES = 100
FILES = ("verdict.md", "verdict.json", "stand_in.json", "texts.txt", "videos/**/*")
Stories = Mapping[str, Sequence[str]]


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    text = (
        "Make the rows of the paper's ablations with real weights, score them, and write a verdict "
        "for each figure."
    )
    sub = command("check-claim", check_claim, text)
    sub.add_argument("--weights", type=READ, required=True, help="checkpoint, .safetensors or .pt")
    out = folder_written(*FILES)
    told = "folder; the same command goes on there"
    sub.add_argument("--out", type=out, default=Path("output/check"), help=told)
    told = (
        "names such as A,D,random, also of other methods; default: all of the paper's ablations "
        "and on returns"
    )
    sub.add_argument("--rows", default=",".join([*PAPERS_ROWS, *ADDED_ROWS]), help=told)
    told = f"per row, each with its own prompt and noise ({VIDEOS})"
    sub.add_argument("--videos", type=int, default=VIDEOS, help=told)
    sub.add_argument("--seconds", type=float, default=SECONDS, help=f"of each video ({SECONDS:g})")
    told = "of the head roles in the row `random`, each on all videos"
    sub.add_argument("--shuffles", type=int, default=1, help=told)
    told = "@FILE, one prompt a line; default: 32 that no head profile is measured on"
    sub.add_argument("--prompts", type=TEXT, help=told)
    told = (
        '@FILE, a line {"prompts": [six texts]} for each video: makes these, too, '
        "for the columns of six prompts"
    )
    sub.add_argument("--stories", type=TEXT, help=told)
    sub.add_argument("--estimate", action="store_true", help="tell what is to be made, and stop")
    told = "print the line that measures the videos with VBench, and take up its results"
    sub.add_argument("--vbench", action="store_true", help=told)
    add_metric_arguments(sub)
    add_rows(sub, (FILE_OPTIONS, RENDER_OPTIONS, FARM_OPTIONS))
    sub.set_defaults(demo=False)


def check_claim(args: argparse.Namespace) -> Result:
    """Write `verdict.md` and `verdict.json`; every step is found again by the same command."""
    check_arguments(args)
    rows = named_rows(args.rows, args.shuffles)
    stories = texts_of(args, returns=bool(set(rows) & set(ADDED_ROWS)))
    with claimed_folder(args.out):
        return _check(args, rows, stories)


def check_arguments(args: argparse.Namespace) -> None:
    """Raise HeadForcingError for arguments that are out of range or do not go together."""
    for name, least, most in (("videos", 2, MAX_VIDEOS), ("shuffles", 1, MAX_SHUFFLES)):
        if not least <= (given := getattr(args, name)) <= most:
            raise HeadForcingError(f"--{name} must be from {least} to {most}, got {given}")
    if args.vae is None or (args.text_encoder is None) == (args.embeddings is None):
        raise HeadForcingError("check-claim needs --vae, and either --text-encoder or --embeddings")
    for path in (args.weights, args.vae, args.text_encoder, args.embeddings, args.lora):
        if path is not None:
            check_regular(path)
    if args.profile == "auto":
        raise HeadForcingError(
            "--profile auto finds roles while sampling: leave --profile out, and they are measured"
        )


def _check(args: argparse.Namespace, rows: Mapping[str, Row], stories: Stories) -> Result:
    """All steps, in a folder that is claimed: plan, measure the head profile, make and score
    videos, judge them.
    """
    (panel, metrics), workers = load_metrics(args), workers_of(args)
    info = ModelFiles.of(args).inspect()
    heads = info.config.num_layers, info.config.num_heads
    measured = args.profile or measured_profile(args, info.fingerprint)
    args.profile = str(measured or stand_in(args.out, *heads))
    find_profile(args.profile).check_model(*heads)
    planned, left_out = plan_claims(args, rows, stories)
    scores = Scores(planned, metrics)
    unfit, needs = scores.leave_out_unfit(workers)
    left_out |= unfit
    if OURS in left_out:
        raise HeadForcingError(
            f"Head Forcing does not fit, and all rows are compared with it: {left_out[OURS]}"
        )
    if len(left_out) == len(rows) - 1:
        raise HeadForcingError(
            f"no row besides Head Forcing fits; {': '.join(next(iter(left_out.items())))}"
        )
    prompts, seconds = PROFILED
    if args.embeddings is not None:
        made_of = [each.video.source.request.timeline.texts for each in scores.unmade]
        profiling = () if measured else PROFILING_PROMPTS[:prompts]
        texts = [*profiling, *chain.from_iterable(made_of)]
        check_embeddings(args.embeddings, texts, args.out / "texts.txt")
    work = {
        "profile_seconds_of_video": 0.0 if measured else prompts * seconds,
        "videos_to_make": len(scores.unmade),
        "videos_to_score": len(scores.todo) - len(scores.unmade),
        "seconds_of_a_video": args.seconds,
    }
    told = [f"left out: {row}: {why}" for row, why in left_out.items()]
    told.append(
        "{videos_to_make} videos of {seconds_of_a_video:g} s to make, {videos_to_score} finished "
        "ones to score, and "
        "{profile_seconds_of_video:g} s of video for the head profile".format(**work)
    )
    sys.stderr.write("\n".join([*told, *([] if needs is None else [needs.describe()]), ""]))
    if args.estimate:
        return Result(["stopped after the estimate (--estimate)"], {"estimate": work})
    if not measured:
        args.profile = str(measure_profile(args))
        (args.out / "stand_in.json").unlink(missing_ok=True)
        fit = {name: row for name, row in rows.items() if name not in left_out}
        scores = Scores(plan_claims(args, fit, stories)[0], metrics)
    scores.complete(workers, args.json)
    line = [scores.add_vbench(ONE_PROMPT)] if args.vbench else []
    add_returns(args, scores)
    text, found = _verdict(
        args,
        scores,
        rows=rows,
        stories=stories,
        left_out=left_out,
        metrics_left_out=() if panel is None else panel.left_out,
    )
    return write_result(args.out, "verdict", text=text, found=found, files=line)


def stand_in(folder: Path, num_layers: int, num_heads: int) -> Path:
    """A file with as many heads of each role as a profile that is measured later has, for the sizes
    of caches.
    """
    path = folder / "stand_in.json"
    even = classify([[(1 / 3, 1 / 3, 1 / 3)] * num_heads] * num_layers)
    HeadProfile("as many heads of each role as measured", num_layers, num_heads, even).save(path)
    return path


def measured_profile(args: argparse.Namespace, fingerprint: str) -> Path | None:
    """The profile that an earlier run measured to its end; HeadForcingError for one of other
    settings.
    """
    path: Path = args.out / "profile.json"
    if not path.is_file():
        return None
    shares = HeadShares.load(path.with_suffix(".safetensors"))
    found = shares.setup
    wanted = {
        "model": fingerprint,
        "size": parse_size(args.size),
        "number of prompts": PROFILED[0],
    }
    there = {
        "model": found.fingerprint,
        "size": (found.width, found.height),
        "number of prompts": len(found.prompts),
    }
    if other := next((name for name in wanted if wanted[name] != there[name]), None):
        raise HeadForcingError(f"{path} was measured with another {other}: choose another --out")
    return None if shares.missing_prompts() else path


def measure_profile(args: argparse.Namespace) -> Path:
    """Measure the head profile, or go on with it."""
    path: Path = args.out / "profile.json"
    family = with_family(render_options(args), args.weights)[0].model_family
    files, (count, seconds) = ModelFiles.of(args), PROFILED
    setup = setup_of(
        files, PROFILING_PROMPTS[:count], seconds, size=parse_size(args.size), family=family
    )
    model = MeasuredModel(files, setup, DTYPES[args.dtype], args.device)
    measure(path, model, family, workers_of(args), quiet=args.json)
    return path


def _verdict(
    args: argparse.Namespace,
    scores: Scores,
    rows: Mapping[str, Row],
    stories: Stories,
    left_out: Mapping[str, str],
    metrics_left_out: Sequence[str],
) -> tuple[str, dict[str, Any]]:
    """The page and the JSON, from the numbers of all videos."""
    made = measured_rows(scores)
    profile = find_profile(args.profile)
    lines = lines_of(made, missing_columns(args, stories, scores.metrics, metrics_left_out))
    about = _about(args, scores, rows=rows, stories=stories, profile=profile)
    about += [f"Left out, {row}: {why}" for row, why in left_out.items()]
    head = ["# The paper's figures on these weights", "", *(f"- {line}" for line in about), ""]
    text = "\n".join([*head, page(lines, made, {name: row.label for name, row in rows.items()})])
    settings = scores.videos[0].made_from
    rows_stored = {}
    for name, row in made.items():
        rows_stored[name] = {story: each.videos for story, each in row.items()}
    random = made.get("random", {})
    shuffles = zip(*(row.shuffles for row in random.values()), strict=True)
    for key in ("prompts", "row", "method", "roles", "shuffle"):
        settings.pop(key)
    return text, {
        "settings": {
            **settings,
            "videos": args.videos,
            "shuffles": args.shuffles,
            "seed": args.seed,
        },
        "prompts": {story: list(texts) for story, texts in stories.items()},
        "profile": {
            "name": profile.name,
            "counts": profile.counts(),
            "provenance": profile.provenance,
        },
        "left_out": dict(left_out),
        "metrics": list(scores.metrics),
        "metrics_left_out": list(metrics_left_out),
        "rule": f"{RULE} {RETURN_RULE}",
        "primary": [list(endpoint) for endpoint in PRIMARY],
        "lines": [line.to_dict() for line in lines],
        "rows": rows_stored,
        "shuffles": [dict(zip(random, shuffle, strict=True)) for shuffle in shuffles],
        "versions": versions(),
    }


def _about(
    args: argparse.Namespace,
    scores: Scores,
    rows: Mapping[str, Row],
    stories: Stories,
    profile: HeadProfile,
) -> list[str]:
    plan = scores.videos[0].video.plan
    kinds = " and with ".join(story.replace("_", " ") for story in stories)
    told = [
        f"{args.weights.name}: {args.videos} videos a row with {kinds}, {args.seconds:g} s, "
        f"{plan.width}x{plan.height}.",
        f"Head profile {profile.name}: {'; '.join(describe_profile(profile))}.",
    ]
    if len([role for role, count in profile.counts().items() if count]) < 3:
        told.append(
            "This profile does not have the paper's three roles, so that no line speaks for or "
            "against the paper."
        )
    if args.seconds != SECONDS:
        told.append(
            f"The paper's figures are about videos of {SECONDS:g} s; these have {args.seconds:g} s."
        )
    if "random" in rows and args.shuffles == 1:
        told.append(
            "The row of shuffled roles is one shuffle, which says nothing about how shuffles "
            "differ."
        )
    elif "random" in rows:
        told.append(
            f"The row of shuffled roles has means over {args.shuffles} shuffles, each on all "
            "videos."
        )
    return told


def missing_columns(
    args: argparse.Namespace, stories: Stories, metrics: Mapping[str, str], left_out: Sequence[str]
) -> dict[str, str]:
    """Reasons for columns without numbers: a story that is not made, or a metric that is not
    there.
    """
    reasons = {}
    for key, column in COLUMNS.items():
        # six prompts: stories that return are always there
        if column.keys and column.story not in stories:
            reasons[key] = "it is measured on six prompts: give --stories @FILE"
        elif column.needs and args.metric_models is None:
            reasons[key] = (
                f"its model is missing: give --metric-models FOLDER with that of `{column.needs}`"
            )
        elif column.needs and column.needs not in metrics:
            lacks = next((line for line in left_out if line.startswith(f"{column.needs}: ")), None)
            reasons[key] = (
                f"not measured: {lacks}" if lacks else f"--metrics leaves out `{column.needs}`"
            )
    return reasons
