"""The result of a render: its report and its files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from ..cache.scenes import Recall
from ..files import Fields
from ..model.latents import WAN21
from ..plan.plan import RenderPlan
from ..report.latents import RunMeter, RunReport
from ..rollout.loop import MemoryEvent

if TYPE_CHECKING:
    from ..plan.request import RenderJob
    from ..runs.stored import StoredVideo
    from ..video.writer import VideoInfo


INEXACT = "inexact"  # the note on settings that make the numbers other than those of the dtype


@dataclass(frozen=True)
class RenderResult:
    """Statistics of a finished render, and the files that its sinks have written.

    Attributes:
        seconds: wall time, decoding included; `seconds_per_block` excludes it.
        events, problems, recalls: as for `Run`.
        job: with the story that the render ended with.
        failure: why there is no video; None where there is one or none was asked for.
        latents: `[frames, channels, h, w]`, start frames included, where they were kept.
        kernels: which Triton kernels did not work on the device, and why; empty if none.
        advice: what would make decoding faster, see `faster_decoding`; empty if nothing at hand.
        notes: lines of the host for the report, such as how it has measured the roles of heads.
        reports: of the ranks that have made the video together, by their key in JSON; `cache_bytes`
            is the first one's.
    """

    events: list[MemoryEvent]
    run_report: RunReport
    cache_bytes: int
    seconds: float
    seconds_per_block: float | None
    reused_blocks: int
    problems: Sequence[str]
    attention: str
    job: RenderJob
    video: VideoInfo | None = None
    failure: str | None = None
    latents_file: Path | None = None
    latents: Tensor | None = None
    recalls: Sequence[Recall] = ()
    kernels: str = ""
    advice: str = ""
    notes: Sequence[str] = ()
    reports: Fields = field(default_factory=dict)

    @property
    def plan(self) -> RenderPlan:
        """The plan of the story that the render ended with."""
        return self.job.plan

    @property
    def inexact(self) -> Sequence[str]:
        """Settings that make the numbers other than those of the dtype."""
        inexact: Sequence[str] = self.job.about.get(INEXACT, ())
        return inexact

    def to_dict(self) -> Fields:
        """The JSON form."""
        fields: Fields = {
            "video": None if self.video is None else str(self.video.path),
            "latents": None if self.latents_file is None else str(self.latents_file),
            "video_frames": None if self.video is None else self.video.video_frames,
            "memory_events": [event.to_dict() for event in self.events],
            "recalls": [asdict(recall) for recall in self.recalls],
            "cache_bytes": self.cache_bytes,
            "reused_blocks": self.reused_blocks,
            "problems": list(self.problems),
            "attention": self.attention,
            INEXACT: list(self.inexact),
            "seconds": round(self.seconds, 2),
            "run": self.run_report.to_dict(),
        }
        told = {"kernels": self.kernels, "advice": self.advice, "failure": self.failure}
        fields |= {name: text for name, text in told.items() if text}
        return fields | {name: report.to_dict() for name, report in self.reports.items()}

    def lines(self, shown: Callable[[Path], str] = str) -> list[str]:
        """The lines of a report on the render; `shown` gives a file's name as its reader knows it.

        Files and time come first, then recalls, decisions of episodic memory and statistics of the
        latents.
        """
        lines = []
        if self.video is not None:
            lines.append(f"wrote {shown(self.video.path)} ({self.video.video_frames} frames)")
        if self.failure is not None:
            lines.append(f"no video: {self.failure}; the latents are complete")
        if self.latents_file is not None:
            lines.append(f"wrote {shown(self.latents_file)} (latents)")
        lines.append(f"sampled in {self.seconds:.1f} s, attention {self.attention}")
        if self.reused_blocks:
            lines.append(f"reused {self.reused_blocks} blocks of an earlier render")
        lines += [f"damaged: {problem}" for problem in self.problems]
        lines += [f"inexact: {what}" for what in self.inexact]
        lines += [line for line in (self.kernels, self.advice, *self.notes) if line]
        lines += [recall.describe() for recall in self.recalls]
        lines.append(report_text(self.run_report, self.job.about))
        for report in self.reports.values():
            lines += report.describe()
        return lines


def report_text(report: RunReport, about: Fields) -> str:
    """The text of a run report on the video that the notes `about` are of."""
    return report.text(wan21=about.get("latent_format") == WAN21.name)


def report_stored(video: StoredVideo) -> RunReport:
    """The run report of a stored video's finished blocks: that of its render, but for the cache's
    frame slots.
    """
    meter = RunMeter()
    events: list[MemoryEvent] = []
    for block in video.read():
        frames = video.about.get("frames_per_block", len(block.latents))
        for first in range(0, len(block.latents), frames):
            meter.add(block.latents[first : first + frames])
        if block.event is not None:
            events.append(block.event)
    return meter.report(events)
