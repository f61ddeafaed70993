"""The command `check-claim`: the paper's ablations on real weights, and a verdict for each of the paper's figures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...headforcing_core.commands.arguments import (
    Result,
    add_farm_arguments,
    add_file_arguments,
    add_metric_arguments,
    add_render_arguments,
)
from ...headforcing_core.commands.compare import write_result
from ...headforcing_core.commands.farms import farm_of
from ...headforcing_core.commands.parser import READ, TEXT, folder_written
from ...headforcing_core.commands.profiles import Measured, measure, setup_of
from ...headforcing_core.commands.values import DTYPES, ModelFiles, find_profile, parse_size, render_options
from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.files import check_regular, check_writable, claimed_folder
from ...headforcing_core.head_profiles.agreement import describe_profile
from ...headforcing_core.head_profiles.profile import HeadProfile, classify
from ...headforcing_core.head_profiles.prompts import PROFILING_PROMPTS
from ...headforcing_core.head_profiles.shares import HeadShares
from ...headforcing_core.names import BUDGETS
from ...headforcing_core.render.family import with_family
from ...headforcing_core.render.resources import Needs
from ...headforcing_core.report.learned.base import Panel
from ...headforcing_core.versions import versions
from .. import vbench
from ..questions import Shuffles
from ..videos import Row, Scores, check_room, fitting_rows, load_metrics
from .claims import ADDED_ROWS, OURS, QUICK_ROWS, RETURN_RULE, RULE, claim_rows, lines_of, measured_rows, named_rows
from .cost import Cost, calibrate, place_of
from .page import page
from .paper_numbers import COLUMNS, ONE_PROMPT, PRIMARY
from .returns import add_returns
from .stories import plan_claims, texts_of

VIDEOS, SECONDS = 32, 60.0
QUICK_VIDEOS, QUICK_SECONDS = 8, 30.0
MAX_SHUFFLES = 100
FILES = ("verdict.md", "verdict.json", "calibration.json", "stand_in.json", "calibration/**/*", "videos/**/*")


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `check-claim` to the command line."""
    text = "Make the rows of the paper's ablations with real weights, score them, and write a verdict for each figure."
    sub = command("check-claim", check_claim, text)
    sub.add_argument("--weights", type=READ, required=True, help="checkpoint, .safetensors or .pt")
    out, told = folder_written(*FILES), "folder; the same command goes on there"
    sub.add_argument("--out", type=out, default=Path("output/check"), help=told)
    sub.add_argument("--rows", help=f"names such as A,D,random; default: all, with --quick {','.join(QUICK_ROWS)}")
    told = (
        f"{QUICK_VIDEOS} prompts, {QUICK_SECONDS:g} s, {len(QUICK_ROWS)} rows, a short measurement of the head "
        "profile: shows that all works, decides nothing, and says what differences it could have found"
    )
    sub.add_argument("--quick", action="store_true", help=told)
    sub.add_argument("--videos", type=int, help=f"per row, each with its own prompt and noise ({VIDEOS})")
    sub.add_argument("--seconds", type=float, default=0.0, help=f"of each video ({SECONDS:g})")
    told = "of the head roles in the row `random`, each on all videos"
    sub.add_argument("--shuffles", type=int, default=1, help=told)
    told = "@FILE, one prompt a line; default: 32 that no head profile is measured on"
    sub.add_argument("--prompts", type=TEXT, help=told)
    told = '@FILE, a line {"prompts": [six texts]} for each video: makes these, too, for the columns of six prompts'
    sub.add_argument("--stories", type=TEXT, help=told)
    sub.add_argument("--estimate", action="store_true", help="tell what it will take, and stop")
    told = "lay out the videos for VBench; its results there fill columns"
    sub.add_argument("--vbench", type=vbench.FOLDER, metavar="FOLDER", help=told)
    add_metric_arguments(sub)
    add_file_arguments(sub)
    add_render_arguments(sub)
    add_farm_arguments(sub)
    sub.set_defaults(demo=False)


def check_claim(args: argparse.Namespace) -> Result:
    """Write `verdict.md` and `verdict.json`; every step is found again by the same command.

    Raises HeadForcingError for arguments that cannot be used, before anything is loaded, and for a folder whose videos
    were made from something else.
    """
    settle(args)
    rows = named_rows(args.rows, args.shuffles)
    stories = texts_of(args, returns=bool(set(rows) & set(ADDED_ROWS)))
    with claimed_folder(args.out):
        return Check(args, rows, stories).run()


def settle(args: argparse.Namespace) -> None:
    """Put in the defaults, which depend on `--quick`, and refuse what is out of range."""
    args.rows = args.rows if args.rows is not None else ",".join(QUICK_ROWS if args.quick else claim_rows(1))
    args.videos = args.videos if args.videos is not None else QUICK_VIDEOS if args.quick else VIDEOS
    args.seconds = args.seconds or (QUICK_SECONDS if args.quick else SECONDS)
    if not 2 <= args.videos <= 10_000:
        raise HeadForcingError(f"--videos must be from 2 to 10000, got {args.videos}")
    if not 1 <= args.shuffles <= MAX_SHUFFLES:
        raise HeadForcingError(f"--shuffles must be from 1 to {MAX_SHUFFLES}, got {args.shuffles}")
    if args.vae is None or (args.text_encoder is None) == (args.embeddings is None):
        raise HeadForcingError("check-claim needs --vae, and either --text-encoder or --embeddings")
    for path in (args.weights, args.vae, args.text_encoder, args.embeddings, args.lora):
        if path is not None:
            check_regular(path)
    if args.vbench is not None:
        check_writable(args.vbench / "export.json")
    if args.profile == "auto":
        raise HeadForcingError("--profile auto finds roles while sampling: leave --profile out, and they are measured")


@dataclass
class Check:
    """One run of the command, in a folder that is claimed."""

    args: argparse.Namespace
    rows: Mapping[str, Row]
    stories: Mapping[str, Sequence[str]]

    def run(self) -> Result:
        args = self.args
        panel, metrics = load_metrics(args)
        info = ModelFiles.of(args).inspect()
        heads = info.config.num_layers, info.config.num_heads
        measured = args.profile or self._measured_profile(info.fingerprint)
        args.profile = str(measured or self._stand_in(*heads))
        find_profile(args.profile).check_model(*heads)
        farm = farm_of(args)
        planned, left_out = plan_claims(args, self.rows, self.stories)
        scores = Scores(planned, metrics)
        unfit, needs = fitting_rows(scores.unmade(), farm)
        left_out |= unfit
        self._check_left(left_out)
        scores = scores.without(left_out)
        cost = self._cost(scores, needs, bool(measured))
        for line in (*(f"left out: {row}: {why}" for row, why in left_out.items()), cost.text()):
            sys.stderr.write(f"{line}\n")
        if args.estimate:
            return {"text": "stopped after the estimate (--estimate)", "json": {"estimate": cost.to_dict()}}
        if not measured:
            args.profile = str(self._measure_profile())
            (args.out / "stand_in.json").unlink(missing_ok=True)
            fit = {name: row for name, row in self.rows.items() if name not in left_out}
            scores = Scores(plan_claims(args, fit, self.stories)[0], metrics)
        scores.complete(farm, args.json)
        return self._verdict(scores, left_out, find_profile(args.profile), cost, panel)

    @property
    def _preset(self) -> str:
        return "quick" if self.args.quick else "full"

    def _stand_in(self, num_layers: int, num_heads: int) -> Path:
        """A file with as many heads of each role as a profile that is measured later has, for sizes and times."""
        path: Path = self.args.out / "stand_in.json"
        even = classify([[(1 / 3, 1 / 3, 1 / 3)] * num_heads] * num_layers)
        HeadProfile("as many heads of each role as measured", num_layers, num_heads, even).save(path)
        return path

    def _measured_profile(self, fingerprint: str) -> Path | None:
        """The profile that an earlier run measured to its end; HeadForcingError for one of other settings."""
        path: Path = self.args.out / "profile.json"
        if not path.is_file():
            return None
        shares = HeadShares.load(path.with_suffix(".safetensors"))
        found = shares.setup
        for name, wanted, there in (
            ("model", fingerprint, found.fingerprint),
            ("size", parse_size(self.args.size), (found.width, found.height)),
            ("number of prompts, see --quick", BUDGETS[self._preset][0], len(found.prompts)),
        ):
            if wanted != there:
                raise HeadForcingError(f"{path} was measured with another {name}: choose another --out")
        return None if shares.missing_prompts() else path

    def _measure_profile(self) -> Path:
        args, path = self.args, self.args.out / "profile.json"
        family = with_family(render_options(args), args.weights)[0].model_family
        files, (count, seconds) = ModelFiles.of(args), BUDGETS[self._preset]
        setup = setup_of(files, PROFILING_PROMPTS[:count], seconds, parse_size(args.size), family)
        model = Measured(files, setup, DTYPES[args.dtype], args.device)
        measure(path, model, family, farm_of(args), quiet=args.json)
        return path

    def _check_left(self, left_out: Mapping[str, str]) -> None:
        if OURS in left_out:
            raise HeadForcingError(f"Head Forcing does not fit, and all rows are compared with it: {left_out[OURS]}")
        if len(left_out) == len(self.rows) - 1:
            row, why = next(iter(left_out.items()))
            raise HeadForcingError(f"no row besides Head Forcing fits; {row}: {why}")

    def _cost(self, scores: Scores, needs: Sequence[Needs], measured: bool) -> Cost:
        """The estimate; refuses what does not fit on the disk."""
        args, farm, unmade = self.args, farm_of(self.args), scores.unmade()
        together = check_room(unmade, needs)
        prompts, seconds = BUDGETS[self._preset]
        return Cost(
            place_of(args, farm),
            seconds_per_second_of_video=calibrate(args, scores.videos, scores.metrics, farm) if unmade else 0.0,
            profile_seconds_of_video=0.0 if measured else prompts * seconds,
            videos_to_make=len(unmade),
            videos_to_score=len(scores.todo) - len(unmade),
            seconds_of_a_video=args.seconds,
            needs=together,
            parallel=farm.parallel,
        )

    def _verdict(
        self, scores: Scores, left_out: Mapping[str, str], profile: HeadProfile, cost: Cost, panel: Panel | None
    ) -> Result:
        """Write the page, from the numbers of all videos."""
        args = self.args
        exported = [] if args.vbench is None else [add_vbench(args.vbench, scores)]
        add_returns(args, scores)
        rows = measured_rows(scores)
        lines = lines_of(rows, self._reasons(scores.metrics, () if panel is None else panel.left_out))
        labels = {name: row.label for name, row in self.rows.items()}
        about = self._about(scores, profile, left_out)
        text = "\n".join(["# The paper's figures on these weights", "", *about, "", page(lines, rows, labels)])
        settings, random = scores.videos[0].made_from, rows.get("random", {})
        for key in ("prompts", "row", "method", "roles", "shuffle"):
            settings.pop(key)
        found = {
            "settings": {**settings, "videos": args.videos, "shuffles": args.shuffles, "seed": args.seed},
            "prompts": {story: list(texts) for story, texts in self.stories.items()},
            "profile": {"name": profile.name, "counts": profile.counts(), "provenance": profile.provenance},
            "estimate": cost.to_dict(),
            "left_out": dict(left_out),
            "metrics": list(scores.metrics),
            "metrics_left_out": [] if panel is None else list(panel.left_out),
            "rule": f"{RULE} {RETURN_RULE}",
            "primary": [list(endpoint) for endpoint in PRIMARY],
            "lines": [line.to_dict() for line in lines],
            "rows": {name: {story: made.videos for story, made in row.items()} for name, row in rows.items()},
            "shuffles": [
                dict(zip(random, each, strict=True))
                for each in zip(*(made.shuffles for made in random.values()), strict=True)
            ],
            "versions": versions(),
        }
        return write_result(args.out, "verdict", text, found, exported)

    def _about(self, scores: Scores, profile: HeadProfile, left_out: Mapping[str, str]) -> list[str]:
        args, video = self.args, scores.videos[0].video
        stories = (story.replace("_", " ") for story in self.stories)
        told = [
            f"{args.weights.name}: {args.videos} videos a row with {' and with '.join(stories)}, "
            f"{args.seconds:g} s, {video.plan.width}x{video.plan.height}.",
            f"Head profile {profile.name}: {'; '.join(describe_profile(profile))}.",
        ]
        if len([role for role, count in profile.counts().items() if count]) < 3:
            told.append(
                "This profile does not have the paper's three roles, so that no line speaks for or against the paper."
            )
        if args.quick:
            told.append(
                "--quick decides nothing: the smallest differences that it could have found stand under *found from*."
            )
        if args.seconds != SECONDS:
            told.append(f"The paper's figures are about videos of {SECONDS:g} s; these have {args.seconds:g} s.")
        random = self.rows.get("random")
        if isinstance(random, Shuffles) and "random" not in left_out:
            told.append(
                "The row of shuffled roles is one shuffle, which says nothing about how shuffles differ."
                if random.count == 1
                else f"The row of shuffled roles has means over {random.count} shuffles, each on all videos."
            )
        told += [f"Left out, {row}: {why}" for row, why in left_out.items()]
        return [f"- {line}" for line in told]

    def _reasons(self, metrics: Container[str], left_out: Sequence[str]) -> dict[str, str]:
        """Reasons for columns without numbers: a story that is not made, or a metric that is not there."""
        args, reasons = self.args, {}
        for key, column in COLUMNS.items():
            if column.keys and column.story not in self.stories:  # six prompts: stories that return are always there
                reasons[key] = "it is measured on six prompts: give --stories @FILE"
            elif column.needs and args.metric_models is None:
                reasons[key] = f"its model is missing: give --metric-models FOLDER with that of `{column.needs}`"
            elif column.needs and column.needs not in metrics:
                lacks = next((line for line in left_out if line.startswith(f"{column.needs}: ")), None)
                reasons[key] = f"not measured: {lacks}" if lacks else f"--metrics leaves out `{column.needs}`"
        return reasons


def add_vbench(folder: Path, scores: Scores) -> str:
    """Lay out the videos of one prompt for VBench, and take up what it has measured of them."""
    made, told = scores.lay_out(folder, ONE_PROMPT), f"for VBench:\n{vbench.command(folder)}"
    if not any((folder / "results").glob("*_eval_results.json")):
        return told
    results = vbench.read_results(folder)
    for key, videos in scores.by_entry(ONE_PROMPT).items():
        for each, name in zip(videos, made.files[key], strict=True):
            scores.known[each.name] = scores.known[each.name] | results.get((key, name), {})
    return told
