"""Seconds from Enter to the picture of a live video in ComfyUI, with the demo model and a script in
place of a page (`tests/helpers/live_page.py`); and whether its story has the same bits again.

    python tests/benchmarks/run.py live-page [PROMPTS]
"""

import io
import itertools
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from headforcing.tests.benchmarks.live_prompts import words

sys.path.append(str(Path(__file__).resolve().parents[1] / "helpers"))

EVERY_SECONDS = 6.0
TAGS = ("", "dissolve 1.5s", "cut")


def row(name: str, values: list[float]) -> str:
    """A row of the table: median, ninth of ten, worst."""
    ordered = sorted(values)
    ninth = ordered[int(0.9 * (len(ordered) - 1))]
    return f"| {name} | {statistics.median(ordered):.2f} | {ninth:.2f} | {ordered[-1]:.2f} |"


def resident(server: object) -> float:
    """Megabytes of memory of the server."""
    process = server._process  # type: ignore[attr-defined]
    pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def table(prompts: int = 20) -> str:
    """What was measured, as Markdown."""
    from comfy_graphs import changed, growing_graph, queued, video_frames, video_frames_of
    from comfy_harness import ComfyServer
    from comfy_setup import NEWEST, installed
    from live_page import LivePage, live_graph

    tags = itertools.cycle(TAGS)
    pauses = random.Random(2)
    with (
        tempfile.TemporaryDirectory() as base,
        ComfyServer(installed(NEWEST), Path(base)) as server,
    ):
        queued(server, growing_graph("video/warm", seconds=4.0))  # loads the model
        with LivePage(server, live_graph(7, words(0))) as page:
            page.until(3.0)
            memory = [resident(server)]
            for number in range(1, prompts + 1):
                page.taken(words(number), tag=next(tags))
                time.sleep(EVERY_SECONDS * (0.7 + 0.6 * pauses.random()))
                memory.append(resident(server))
            pressed = time.monotonic()
            page.stop()
            result = page.wait()
            ended = time.monotonic() - pressed
        story = page.told["story"]
        graph = growing_graph(
            "video/again", prompts=story["prompts"], seconds=story["seconds"], seed=7
        )
        again = queued(server, changed(graph, "sampler", resume=False))
        (shown,) = result.outputs["sampler"]["video"]
        frames = video_frames(io.BytesIO(server.view(**shown)))
        same = np.array_equal(frames, video_frames_of(server, again, "sampler"))
    seen = [given for given in page.given if given.shown is not None]
    lines = [
        f"{len(seen)} of {prompts} prompts seen in {page.position:.0f} s of video, load "
        f"{os.getloadavg()[0]:.1f}; the story rendered again has "
        f"{'the same frames' if same else 'OTHER FRAMES'}.",
        "",
        "| seconds | median | 9 of 10 | worst |",
        "| --- | --- | --- | --- |",
        row("Live to the first frame, model in memory", [page.first or 0.0]),
        row("Enter to the answer", [given.answered - given.sent for given in seen]),
        row("Enter to the first frame", [(given.shown or 0.0) - given.sent for given in seen]),
        row("the picture stood, in all", [page.stalled]),
        row("Stop to the finished file", [ended]),
        "",
        f"Memory of the server: {memory[1]:.0f} MB after the first prompt, {memory[-1]:.0f} MB "
        "after the last.",
    ]
    return "\n".join(lines)
