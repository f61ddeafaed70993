"""The command `figure`: the paper's figures, redone on the embedded model where that can be, as
pictures with their numbers beside them; the others say what they need.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from ...cli.arguments import Result
from ...cli.compare import write_result
from ...headforcing_core import page
from ...headforcing_core.files import replacing
from ...headforcing_core.head_profiles.profile_plot import profile_picture
from ...headforcing_core.plan.describe import markdown_table
from ..claims.claims import PAPERS_ROWS
from ..rooms.measurements import measured_by
from ..rooms.scenes import CLOCK
from ..rows import MethodRow
from ..statistics import Numbers
from . import attention, drawing, keys, sweeps
from .ablations import with_first_frame, with_other_frame
from .attention import attention_maps, first_place_shares
from .demo import FIRST, LONGEST, ONE_PROMPT, Demo, Made, scores_of
from .drawing import (
    Curves,
    Map,
    curves_panel,
    maps_panel,
    strips_panel,
)
from .paper_tables import HEAD_FORCING
from .sweeps import LINES, SWEEPS, sweep_panel, swept
from .tables import CODE, add_amount

DRAWN_BY = (*CODE, attention, drawing, keys, sweeps, sys.modules[__name__])
COLOURS = 255  # of a stored picture
SHOWN = 7  # video frames in a row
MAPS = 4  # of each role in the gallery
PER_BLOCK = CLOCK.frames_per_block
LATE = range(ONE_PROMPT - 6, ONE_PROMPT)  # blocks in which attention to the first frame is measured
ROLES = ("local", "anchor", "memory")
OTHER_FRAME = 9  # the latent frame in the place of the first
ONE = "one_prompt"
SEVERAL = "away_15"
TITLES = {ONE: "One prompt", SEVERAL: "Several prompts"}
LENGTHS = (5, 10, 30, 60, 120, 180, 240, LONGEST)  # seconds
PART = 5.0  # seconds at the end of a length that are scored
EVERY = 3  # latent frames; one in so many is scored


@dataclass(frozen=True)
class Asked:
    """What a figure is made with: the model, the folder, and the arguments."""

    model: Demo
    out: Path
    videos: int
    quiet: bool


@dataclass(frozen=True)
class Drawn:
    """A figure: its picture, lines on it, and its numbers."""

    picture: Image.Image
    lines: Sequence[str]
    numbers: Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """A figure of the paper; `needs` what its own takes. One without `draw` is not redone here."""

    title: str
    needs: str
    draw: Callable[[Asked], Drawn] | None = None


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    text = "Draw figures of the paper from the embedded model; the others say what they need."
    sub = command("figure", figure, text)
    told = f"as the paper numbers them: {', '.join(FIGURES)}; or all"
    sub.add_argument("number", choices=(*FIGURES, "all"), help=told)
    sub.add_argument("--demo", action="store_true", help="of the embedded model; the default")
    add_amount(sub, "output/figures")


def figure(args: argparse.Namespace) -> Result:
    """Measure what is missing, and write each figure as PNG, with Markdown and JSON."""
    args.out.mkdir(parents=True, exist_ok=True)
    numbers = list(FIGURES) if args.number == "all" else [args.number]
    asked = Asked(Demo(), args.out, args.videos, args.json)
    by = {"weights": measured_by(DRAWN_BY), "stories": args.videos}
    texts = []
    data = {}
    for number in numbers:
        each = FIGURES[number]
        known = _finished(args.out / f"figure_{number}.json", by)
        if known is not None:
            texts.append((args.out / f"figure_{number}.md").read_text("utf-8"))
            data[number] = known
            continue
        lines = [f"# Figure {number}: {each.title}", ""]
        found: dict[str, Any] = {"title": each.title, "needs": each.needs}
        if each.draw is not None:
            drawn = each.draw(asked)
            write_picture(args.out / f"figure_{number}.png", drawn.picture)
            lines += [f"![Figure {number}](figure_{number}.png)", "", *drawn.lines]
            found |= {"numbers": drawn.numbers, **by}
        lines.append(f"- The paper's own: {each.needs}")
        made = write_result(args.out, f"figure_{number}", text="\n".join(lines), found=found)
        texts.append(made.text)
        data[number] = found
    return Result(["\n\n".join(texts)], data)


def _finished(path: Path, by: Mapping[str, Any]) -> dict[str, Any] | None:
    """What an earlier run wrote for a figure by the same code, of as many stories; else None."""
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    is_whole = path.with_suffix(".png").is_file() and path.with_suffix(".md").is_file()
    is_same = all(found.get(key) == value for key, value in by.items())
    return found if is_whole and is_same else None


def write_picture(path: Path, picture: Image.Image) -> None:
    """Write a small PNG: few colours, which no plot has more of, and strips hardly."""
    small = picture.quantize(COLOURS, dither=Image.Dither.NONE)
    with replacing(path) as temporary:
        small.save(temporary, format="PNG", optimize=True)


# -------------------------------------------------------------------------------------------- heads


def _maps(asked: Asked) -> Drawn:
    maps = attention_maps(asked.model, 1)
    row: list[Map] = []
    for role in maps.values():
        row += role
    panel = maps_panel("Attention of one head of each role", MAPS_TOLD, {"": row})
    return Drawn(page.draw_page([panel], "light"), [f"- {MAPS_TOLD}"], _labels({"": row}))


def _gallery(asked: Asked) -> Drawn:
    maps = attention_maps(asked.model, MAPS)
    panel = maps_panel("Attention of more heads", MAPS_TOLD, maps)
    return Drawn(page.draw_page([panel], "light"), [f"- {MAPS_TOLD}"], _labels(maps))


MAPS_TOLD = (
    "Rows are the queries of a block, columns the keys of its context: first frame, window and the "
    "block itself, 21 latent frames; lines part them. Third denoising step of block 21. Darker is "
    "more attention, by its root."
)


def _labels(maps: Mapping[str, Sequence[Any]]) -> dict[str, list[str]]:
    labels = {}
    for role, row in maps.items():
        labels[role] = [each.label for each in row]
    return labels


def _roles(asked: Asked) -> Drawn:
    profile = asked.model.judge.profile
    told = f"- The bundled profile of the embedded model: {profile.counted}"
    return Drawn(profile_picture(profile, theme="light"), [told], dict(profile.counts()))


# ---------------------------------------------------------------------------------- the first frame


def _first_frame(asked: Asked) -> Drawn:
    rows = {
        "as it is": MethodRow("as it is", "first_frame", given=with_first_frame()),
        "taken from anchors": MethodRow(
            "without in anchors", "first_frame_anchors", given=with_first_frame("anchor")
        ),
        "taken from others": MethodRow(
            "without in others", "first_frame_others", given=with_first_frame("local", "memory")
        ),
        "another frame in its place": MethodRow(
            "another frame", "other_frame", given=with_other_frame(OTHER_FRAME)
        ),
    }
    strips = {}
    cells = []
    data = {}
    for label, entry in rows.items():
        shares, made = first_place_shares(asked.model, entry, ONE, FIRST, LATE)
        frames = range(LATE.start * PER_BLOCK, LATE.stop * PER_BLOCK)
        score = _mean(scores_of(made, frames))
        strips[label] = _chosen(made.video_frames)
        data[label] = {"first_place": shares, "score": score}
        cells.append([label, *(f"{shares[role]:.3f}" for role in ROLES), f"{score:.2f}"])
    headings = [f"attention of {role} heads to the first place" for role in ROLES]
    table = markdown_table(["first frame", *headings, "score"], cells)
    told = (
        "One prompt; window of 21 latent frames, indices counted from 0 in the context, so that "
        f"latent frame {OTHER_FRAME} has the position of the first. Attention and score: the last "
        f"{len(LATE)} blocks. A head without the frame has the oldest of its window there."
    )
    panel = strips_panel("The first frame", told, strips, _seconds(LATE.stop))
    return Drawn(page.draw_page([panel], "light"), [table, "", f"- {told}"], data)


# ------------------------------------------------------------------------------------- video frames

Story = tuple[str, int]
Draw = Callable[[Asked], Drawn]


def _chosen(frames: Tensor, count: int = SHOWN) -> Tensor:
    """Video frames at equal distances, the first and the last with them."""
    places = torch.linspace(0, len(frames) - 1, count).round().long()
    return frames[places]


def _seconds(blocks: int, count: int = SHOWN) -> list[float]:
    whole = CLOCK.start_seconds(blocks)
    return [round(whole * place / (count - 1), 1) for place in range(count)]


def strips_table(data: Mapping[str, Numbers]) -> str:
    """The numbers of single videos, by label."""
    cells = []
    for label, numbers in data.items():
        shown = ["-" if value is None else f"{value:.2f}" for value in numbers.values()]
        cells.append([label, *shown])
    return markdown_table(["", *LINES.values()], cells)


def _strips(rows: Mapping[str, MethodRow], *stories: Story) -> Draw:
    """A figure with a strip of each row for each story and number."""

    def draw(asked: Asked) -> Drawn:
        panels = []
        data: dict[str, Any] = {}
        for story, number in stories:
            strips = {}
            for label, entry in rows.items():
                made = asked.model.make(entry, story, number)
                strips[label] = _chosen(made.video_frames)
                numbers = asked.model.numbers(made)
                kept = {key: numbers[key] for key in LINES}
                data[f"{label}, {story}, {number}"] = kept
            looks = asked.model.make(next(iter(rows.values())), story, number).looks
            prompts = list(dict.fromkeys(look.prompt for look in looks))
            told = f"{'; '.join(prompts)}."
            panels.append(strips_panel(TITLES[story], told, strips, _seconds(len(looks))))
        table = strips_table(data)
        return Drawn(page.draw_page(panels, "light"), [table, ""], data)

    return draw


METHODS = {
    "Self Forcing, window of 21": PAPERS_ROWS["A"],
    "LongLive": MethodRow("LongLive", "longlive"),
    "Deep Forcing": MethodRow("Deep Forcing", "deep_forcing"),
    "Infinity-RoPE": MethodRow("Infinity-RoPE", "infinity_rope"),
    "Head Forcing": HEAD_FORCING,
}
COMPONENTS = {
    "(A) Baseline": PAPERS_ROWS["A"],
    "(B) + HW": PAPERS_ROWS["B"],
    "(C) + HM": PAPERS_ROWS["C"],
    "(D) Ours": HEAD_FORCING,
}


# --------------------------------------------------------------------------------------------- keys


def _keys(asked: Asked) -> Drawn:
    pairs = keys.pairs_of(asked.model)
    near = keys.near_means(pairs)
    alike = keys.correlation(pairs)
    count = sum(pair.near for pair in pairs)
    by_layer = ", ".join(f"{mean:.3f}" for mean in near)
    lines = [
        f"- Correlation of both cosines over {len(pairs)} pairs: {alike:.2f}. Mean cosine of keys "
        f"by layer, of {count} pairs of latents with {keys.NEAR[0]:g} to {keys.NEAR[1]:g}: "
        f"{by_layer or 'there is none'}.",
    ]
    data = {"pairs": len(pairs), "correlation": alike, "near": near}
    return Drawn(page.draw_page(keys.panels(pairs), "light"), lines, data)


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / max(1, len(known))


# ---------------------------------------------------------------------------- parameters and length


def _sweeps(*names: str) -> Callable[[Asked], Drawn]:
    def draw(asked: Asked) -> Drawn:
        panels = []
        data = {}
        lines = []
        for name in names:
            made = swept(name, asked.out, max(1, asked.videos // 2), asked.quiet)
            panels.append(sweep_panel(name, made))
            lines += [made.table(name), "", f"- {SWEEPS[name].said}"]
            lines += [f"- Not made with {value:g}: {why}" for value, why in made.refused.items()]
            data[name] = {"values": SWEEPS[name].values, "found": made.found}
        lines.append(
            "- Here: stories of the embedded model in which a room is left for 15 blocks and comes "
            "back; small marks are single stories, too few to decide anything."
        )
        return Drawn(page.draw_page(panels, "light"), lines, data)

    return draw


def _long_video(asked: Asked) -> Made:
    return asked.model.make(HEAD_FORCING, "five_minutes", FIRST)


def _length(asked: Asked) -> Drawn:
    """The score of the last seconds before each length, in one long video."""
    made = _long_video(asked)
    scores = []
    for length in LENGTHS:
        end = min(len(made.latents), CLOCK.blocks_for(length) * PER_BLOCK)
        start = max(0, end - CLOCK.blocks_for(PART) * PER_BLOCK)
        scores.append(_mean(scores_of(made, range(start, end, EVERY))))
    told = (
        f"One video of one prompt: {made.looks[0].prompt}. The score is the mean of what the "
        f"prompt says, in the {PART:g} s before a length."
    )
    lines = {"Head Forcing": [[score] for score in scores]}
    curves = Curves("seconds of video", LENGTHS, lines, y=(0.0, 1.05))
    panel = curves_panel("Score against length", told, curves)
    cells = []
    for length, score in zip(LENGTHS, scores, strict=True):
        cells.append([f"{length:g}", f"{score:.3f}"])
    text = [markdown_table(["seconds", "score"], cells), "", f"- {told}"]
    data = {"seconds": LENGTHS, "scores": scores}
    return Drawn(page.draw_page([panel], "light"), text, data)


def _long_strips(rows: int) -> Callable[[Asked], Drawn]:
    """Frames of the long video, in this many rows."""

    def draw(asked: Asked) -> Drawn:
        made = _long_video(asked)
        frames = _chosen(made.video_frames, rows * SHOWN)
        whole = CLOCK.start_seconds(len(made.looks))
        step = whole / (rows * SHOWN - 1)
        strips = {}
        for row in range(rows):
            first = row * SHOWN
            strips[f"from {first * step:.0f} s"] = frames[first : first + SHOWN]
        told = f"One video of one prompt, {whole:g} s: {made.looks[0].prompt}."
        seconds = [round(step * place) for place in range(SHOWN)]
        panel = strips_panel("Five minutes", told, strips, seconds)
        return Drawn(page.draw_page([panel], "light"), [f"- {told}"], {"seconds": whole})

    return draw


# -------------------------------------------------------------------------------------- all of them


WEIGHTS = "real weights; no command reads their attention or changes the first frame of some heads"
VIDEOS_OF = "real weights: `generate` or `compare` with the methods' names, 60 s, at 832x480"
SCORES = "real weights, VBench-Long: `check-claim` with the option, one run for each value"
AGAIN = f"{VIDEOS_OF}; it is Figure 5 with other prompts, and not redone here."
FIGURES: dict[str, Figure] = {
    "1": Figure(
        "overview",
        "a drawing, nothing in it is measured; headforcing_core/METHOD.md has the method in words.",
    ),
    "2": Figure("attention patterns", f"{WEIGHTS}.", _maps),
    "3": Figure(
        "attention head profiling",
        "real weights: `profile P.json`, then `profiles plot P.json out.png`.",
        _roles,
    ),
    "4": Figure("the first latent frame removed", f"{WEIGHTS}, with `--set`.", _first_frame),
    "5": Figure(
        "qualitative results", f"{VIDEOS_OF}.", _strips(METHODS, (ONE, FIRST), (SEVERAL, FIRST))
    ),
    "6": Figure("tau_local and B_epi", f"{SCORES}.", _sweeps("tau_local", "B_epi")),
    "S1": Figure("more attention maps", f"{WEIGHTS}.", _gallery),
    "S2": Figure(
        "head profile of LongLive", "LongLive's weights: `profile --model-family longlive`."
    ),
    "S3": Figure(
        "LongLive with Head Forcing",
        "LongLive's weights: `generate --model-family longlive`, and with `--method longlive`.",
    ),
    "S4": Figure("keys and latents", f"{WEIGHTS}.", _keys),
    "S5": Figure("five minutes", f"{VIDEOS_OF}, 300 s.", _long_strips(1)),
    "S6": Figure("score against length", f"{SCORES} of --seconds.", _length),
    "S7": Figure("components", f"{VIDEOS_OF}.", _strips(COMPONENTS, (SEVERAL, FIRST))),
    "S8": Figure("alpha_anchor", f"{SCORES}.", _sweeps("alpha")),
    "S9": Figure("tau_novel", f"{SCORES}.", _sweeps("tau_novel")),
    "S10": Figure("tau_local", f"{SCORES}.", _sweeps("tau_local")),
    "S11": Figure("B_fast", f"{SCORES}.", _sweeps("B_fast")),
    "S12": Figure("user study", "a picture of its form; the study takes people."),
    "S13": Figure(
        "throughput and memory",
        "a GPU: `python tasks.py benchmark`; the paper's memory is of an A100 with 80 GB.",
    ),
    "S14": Figure("one prompt", AGAIN),
    "S15": Figure("one prompt", AGAIN),
    "S16": Figure("several prompts", AGAIN),
    "S17": Figure("several prompts", AGAIN),
    "S18": Figure("five minutes", f"{VIDEOS_OF}, 300 s.", _long_strips(2)),
}
