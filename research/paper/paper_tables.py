"""The paper's tables: their rows, columns and numbers, and which cache a row is here."""

from __future__ import annotations

from dataclasses import dataclass

from ..claims.claims import EQUAL_ROWS, PAPERS_ROWS
from ..rows import MethodRow
from .ablations import NoveltyOf, PrunedHeads

ABLATED = (
    "Dynamic Degree",
    "Motion Smoothness",
    "Subject Consistency",
    "Imaging Quality",
    "Quality Score",
    "Consistency Score",
    "Clip Score Average",
)
SINGLE = (
    "Throughput (FPS)",
    "Dynamic Degree",
    "Motion Smoothness",
    "Temporal Flickering",
    "Imaging Quality",
    "Aesthetic Quality",
    "Subject Consistency",
    "Background Consistency",
)
CLIP = tuple(f"CLIP {start}-{start + 10} s" for start in range(0, 60, 10))
OURS = "41.37 98.69 97.81 69.27 84.74 96.69 24.95"
UNIFORM = "36.73 98.41 97.53 68.12 84.21 96.11 24.21"
NO_ANCHORS = "34.28 98.47 97.56 67.98 84.35 96.19 24.12"
NO_LOCAL = "39.73 98.55 97.70 68.86 84.66 96.54 24.65"
CLIP_NOVELTY = "41.42 98.62 97.80 69.33 84.68 96.73 24.98"
REENCODED = ("Dynamic Degree", "Motion Smoothness", "Temporal Flickering", "Subject Consistency")


@dataclass(frozen=True)
class Row:
    """A row of the paper: its label, its numbers there, and what it is here; None: nothing."""

    label: str
    paper: str
    entry: MethodRow | None = None
    missing: str = ""  # why it is nothing here


HERE = {
    "layout": "room kept",
    "layout_just_left": "pictures of the room just left",
    "returned": "return happened",
    "layout_returned": "room kept where it happened",
    "pair": "departure and return frame",
    "pair_just_left": "frame just left and return frame",
    "identity": "marking kept",
    "moves": "moves as told",
    "score": "score",
    "frames_a_head": "frames a head",
}
"""Headings of what is measured on the embedded model, by key of `demo.Demo.numbers`."""
LOSSES = {
    "loss_0.9375": "loss one block ahead",
    "place_error": "error of the place, pixels",
}
AWAY = "away_15"
SHORT = "twelve_blocks"
AWAY_BLOCKS = {AWAY: 15, SHORT: 6}


@dataclass(frozen=True)
class Table:
    """A table of the paper; `needs` says what its own columns take.

    Attributes:
        story: of `demo.DEMO_STORIES`, that its rows are made on here.
        ahead: whether the next block after a true past is predicted, too, see `LOSSES`.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    needs: str
    story: str = AWAY
    ahead: bool = False
    remark: str = ""

    @property
    def here(self) -> dict[str, str]:
        """Headings of the columns of the embedded model, by key."""
        if not any(row.entry for row in self.rows):
            return {}
        return LOSSES | HERE if self.ahead else HERE


REAL = (
    "The paper's columns need its weights and models of metrics: `check-claim` measures those of "
    "its rows that it has, on a GPU; no command here computes the two weighted scores of "
    "VBench-Long."
)
RECACHE = (
    "A room kept by LongLive is no recall: it hardly changes the pictures on the walls at a new "
    "prompt, so that those of the first room stay."
)
HEAD_FORCING = MethodRow("Head Forcing", "head_forcing")
OWN_SAMPLER = "it has noise levels or rollouts of its own, for which the embedded model is not made"
BASELINE = PAPERS_ROWS["A"]
EVERY_FRAME = MethodRow("Self Forcing", "self_forcing")
PEOPLE = "it takes people who judge videos"
LIKERT = ("Visual Quality", "Temporal Consistency", "Motion Smoothness")


def _judged(label: str, numbers: str) -> Row:
    """A row of a user study."""
    return Row(label, numbers, missing=PEOPLE)


TABLES: dict[str, Table] = {
    "1": Table(
        "Table 1: frames before the block taken from local heads",
        ("Quality", "Consistency", "Total"),
        (
            Row("Self Forcing", "84.82 96.78 83.92", EVERY_FRAME),
            Row(
                "Pruning in non-Local Heads",
                "81.58 95.82 80.74",
                MethodRow("Pruning others", "pruned_others", given=PrunedHeads(pruned="others")),
            ),
            Row(
                "Pruning in Local Heads",
                "84.78 96.80 83.88",
                MethodRow("Pruning local heads", "pruned_local", given=PrunedHeads(pruned="local")),
            ),
        ),
        "The paper's columns are VBench's of short videos, of real weights: "
        "`generate --method self_forcing --set local.recent_frames=0` makes those of its last row.",
        story=SHORT,
        ahead=True,
        remark="Inside the length that the model was trained on. Other heads: as many of all that "
        "are not local, drawn for each story.",
    ),
    "2": Table(
        "Table 2, 60 s: long videos",
        SINGLE,
        (
            Row(
                "Rolling Forcing",
                "15.99 32.86 98.69 98.57 70.09 60.97 97.87 96.87",
                missing=OWN_SAMPLER,
            ),
            Row(
                "LongLive",
                "19.03 40.29 98.75 98.70 69.08 61.11 97.72 96.92",
                MethodRow("LongLive", "longlive"),
            ),
            Row("CausVid", "15.83 31.08 98.26 98.49 65.36 59.32 97.53 96.66", missing=OWN_SAMPLER),
            Row("Self Forcing", "15.83 31.92 98.21 98.56 67.33 57.17 97.32 96.53", BASELINE),
            Row(
                "Deep Forcing",
                "15.74 35.75 98.38 98.63 68.93 60.39 97.70 96.82",
                MethodRow("Deep Forcing", "deep_forcing"),
            ),
            Row(
                "Infinity-RoPE",
                "16.63 37.19 98.49 98.61 68.68 59.65 97.73 96.88",
                MethodRow("Infinity-RoPE", "infinity_rope"),
            ),
            Row("Head Forcing", "15.81 41.37 98.67 98.72 69.27 61.36 97.81 96.90", HEAD_FORCING),
        ),
        f"{REAL} Throughput is `python tasks.py benchmark` on a GPU. The part of 30 s is left out. "
        f"{RECACHE}",
    ),
    "3": Table(
        "Table 3: six prompts, 60 s",
        ("Quality Score", "Consistency Score", "Aesthetic Score", *CLIP),
        (
            Row("Self Forcing", "83.52 95.74 57.45 26.25 24.93 23.46 21.92 21.82 21.02", BASELINE),
            Row(
                "LongLive",
                "84.83 96.05 60.29 26.63 25.77 24.75 24.19 24.52 24.11",
                MethodRow("LongLive", "longlive"),
            ),
            Row(
                "Infinity-RoPE",
                "84.66 96.10 59.33 26.78 25.43 24.38 23.55 23.82 23.53",
                MethodRow("Infinity-RoPE", "infinity_rope"),
            ),
            Row(
                "Head Forcing",
                "84.74 96.69 60.67 26.54 25.36 24.64 24.27 24.62 24.22",
                HEAD_FORCING,
            ),
        ),
        f"{REAL} Its CLIP scores need `--stories @FILE` of six prompts, of which none is bundled. "
        f"{RECACHE}",
    ),
    "4": Table(
        "Table 4: components",
        ABLATED,
        (
            Row("(A) Baseline", "31.92 98.42 97.62 67.33 83.52 95.74 23.20", BASELINE),
            Row("(B) + HW", "37.22 98.49 97.65 68.14 84.10 96.33 24.31", PAPERS_ROWS["B"]),
            Row("(C) + HM", "39.09 98.54 97.73 68.93 84.34 96.51 24.61", PAPERS_ROWS["C"]),
            Row("(D) Ours", OURS, HEAD_FORCING),
        ),
        REAL,
    ),
    "5": Table(
        "Table 5: head-wise strategy",
        ABLATED,
        (
            Row(
                "Random Allocation",
                "32.21 98.29 97.38 67.92 83.55 95.88 23.55",
                PAPERS_ROWS["random"],
            ),
            Row("Uniform Memory", UNIFORM, EQUAL_ROWS["uniform="]),
            Row("Local + Memory", NO_ANCHORS, EQUAL_ROWS["local+memory="]),
            Row("Anchor + Memory", NO_LOCAL, EQUAL_ROWS["anchor+memory="]),
            Row("Uniform Memory, 9 frames a head", "", PAPERS_ROWS["uniform"]),
            Row("Local + Memory, a memory head's cache", "", PAPERS_ROWS["local+memory"]),
            Row("Anchor + Memory, a memory head's cache", "", PAPERS_ROWS["anchor+memory"]),
            Row("Head Forcing", OURS, HEAD_FORCING),
        ),
        REAL,
        remark="In the paper all rows have the same total budget, and the memory heads share what "
        "is left: rows with its numbers are made so here. Those below are what `--roles` and "
        "`uniform_memory` do, and what `check-claim` measures.",
    ),
    "6": Table(
        "Table 6: episodic memory",
        ABLATED,
        (
            Row(
                "Uniform sampling",
                "37.42 98.53 97.71 68.87 84.61 96.21 24.59",
                MethodRow("Uniform sampling", "uniform_admission"),
            ),
            Row(
                "FIFO eviction",
                "39.42 98.62 97.73 69.04 84.68 96.52 24.71",
                MethodRow("FIFO eviction", "fifo_eviction"),
            ),
            Row(
                "Random selection",
                "40.42 98.59 97.76 68.98 84.64 96.61 24.68",
                MethodRow("Random selection", "random_tokens"),
            ),
            Row("Ours", OURS, HEAD_FORCING),
        ),
        f"{REAL} Rows can be alike where memory never overflows.",
    ),
    "S2": Table(
        "Table S2: RoPE re-encoding",
        (*REENCODED, "Imaging Quality", "Aesthetic Quality"),
        (
            Row("w/o re-encoding", "39.09 98.54 98.51 97.73 68.93 61.04", PAPERS_ROWS["C"]),
            Row("w/ re-encoding", "41.37 98.69 98.72 97.81 69.27 61.36", HEAD_FORCING),
        ),
        REAL,
    ),
    "S3": Table(
        "Table S3: measure of novelty",
        ABLATED,
        (
            Row(
                "CLIP similarity",
                CLIP_NOVELTY,
                MethodRow("Pictures", "novelty_of_pictures", given=NoveltyOf(compared="pictures")),
            ),
            Row(
                "Latent frame similarity",
                "",
                MethodRow("Latents", "novelty_of_latents", given=NoveltyOf(compared="latents")),
            ),
            Row("Key cosine", OURS, HEAD_FORCING),
        ),
        REAL,
        remark="The table's row is CLIP's, the text beside it is about latent frames: both are "
        "here, that of CLIP with the cosine of decoded pictures, as no CLIP knows this world. All "
        "have the threshold 0.95. Merges go by keys in every row.",
    ),
    "S4": Table(
        "Table S4: user study, one prompt",
        (*LIKERT, "Avg"),
        (
            _judged("Self Forcing", "1.56 2.09 1.92 1.86"),
            _judged("Rolling Forcing", "4.12 3.71 2.34 3.39"),
            _judged("Deep Forcing", "3.74 3.07 3.05 3.29"),
            _judged("Infinity-RoPE", "3.66 3.18 2.91 3.25"),
            _judged("LongLive", "3.83 3.35 3.21 3.46"),
            _judged("Head Forcing", "4.04 3.98 3.67 3.89"),
        ),
        "20 people, 15 prompts, one video of each method; real weights.",
        remark="The paper says that Head Forcing has the highest mean in all three columns; in "
        "Visual Quality Rolling Forcing has it.",
    ),
    "S5": Table(
        "Table S5: user study, six prompts",
        (*LIKERT, "Prompt Alignment", "Avg"),
        (
            _judged("Self Forcing", "1.81 1.95 2.18 2.20 2.03"),
            _judged("Infinity-RoPE", "3.15 3.21 2.95 3.19 3.12"),
            _judged("LongLive", "3.78 3.08 3.09 3.28 3.30"),
            _judged("Head Forcing", "3.93 3.39 3.45 3.47 3.56"),
        ),
        "20 people, 15 stories of six prompts, one video of each method; real weights.",
    ),
}
