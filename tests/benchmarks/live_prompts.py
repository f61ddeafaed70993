"""Cost of a prompt that is given while a video without a fixed end is rendered, by the length of
the video so far: the time of the render's thread between two blocks, without the text encoder.
"""

import itertools
import statistics
import tempfile
import time
from pathlib import Path

import torch
from headforcing.headforcing_core.demo import assets, word_hash
from headforcing.headforcing_core.live.audience import Player
from headforcing.headforcing_core.live.performance import Performance
from headforcing.headforcing_core.plan.options import RenderOptions
from headforcing.headforcing_core.plan.request import RenderRequest
from headforcing.headforcing_core.render.live_story import StoryEdits
from headforcing.headforcing_core.render.render import begin_render
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from headforcing.headforcing_core.weights.checkpoint import inspect_checkpoint

MINUTES = (1, 10, 60)
EVERY_SECONDS = 6
PROMPTS = 20  # that are measured
COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "cyan", "pink")
SHAPES = ("ball", "square", "triangle", "star", "cross")
MOTIONS = ("bouncing", "gliding", "circling")
WALLS = ("navy", "grey", "teal", "maroon", "olive")


class Encoder(StoryEdits):
    def encode(self, texts):
        return {text: word_hash.encode(text) for text in texts}


def words(number: int) -> str:
    """The prompt of this number; they come again after 600."""
    combinations = list(itertools.product(WALLS, COLOURS, SHAPES, MOTIONS))
    wall, colour, shape, motion = combinations[number * 7 % len(combinations)]
    return f"a {colour} {shape} {motion} in the {wall} plain room"


def measured(minutes: float, folder: Path) -> tuple[float, float]:
    """Median seconds of a prompt after so many minutes, and of writing the note of the video, which
    another thread does.
    """
    count = round(minutes * 60 / EVERY_SECONDS)
    lines = [
        f"{number * EVERY_SECONDS // 60}:{number * EVERY_SECONDS % 60:02} {words(number)}"
        for number in range(count)
    ]
    text = "\n".join(lines)
    seconds = minutes * 60 + 40
    timeline = parse_timeline(text, seconds)
    # each prompt is compared with the scenes before it
    scenes = (("scenes", "auto"),)
    options = RenderOptions(width=64, height=64, seconds=seconds, method_options=scenes)
    embeds = {text: word_hash.encode(text) for text in timeline.texts}
    config = inspect_checkpoint(assets.model_path()).config
    request = RenderRequest(config, options, timeline, embeds, runs=folder)
    live = Performance(text, parse_timeline, Encoder(), audience=Player())
    with begin_render(request.job(), None) as render:
        live.begin(render)
        begun = render.job.plan.timeline.clock.blocks_for(minutes * 60)
        prompts, notes = [], []
        for number in range(PROMPTS):
            render.script.begun = begun + number
            placed = live.perform(words(count + number))
            before = time.perf_counter()
            live.ask()
            prompts.append(time.perf_counter() - before)
            placed.result(timeout=60)
            render.run.later(lambda: None)
            before = time.perf_counter()
            render.run.finish(whole=False)
            notes.append(time.perf_counter() - before)
    return statistics.median(prompts), statistics.median(notes)


def table() -> str:
    """The times as a Markdown table."""
    torch.set_num_threads(1)
    lines = [
        f"| video so far, a prompt every {EVERY_SECONDS} s | prompts | a prompt, ms | its note, in "
        "another thread, ms |",
        "| --- | --- | --- | --- |",
    ]
    for minutes in MINUTES:
        with tempfile.TemporaryDirectory() as folder:
            prompt, note = measured(minutes, Path(folder))
        count = round(minutes * 60 / EVERY_SECONDS)
        lines.append(f"| {minutes} min | {count} | {1000 * prompt:.1f} | {1000 * note:.1f} |")
    return "\n".join(lines)
