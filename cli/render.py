"""The commands that render one video. Each takes the parsed arguments and returns its result as
text and JSON.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.files import Fields, check_writable, claimed, replacing
from ..headforcing_core.methods.registry import describe_method
from ..headforcing_core.plan.describe import describe
from ..headforcing_core.plan.plan import RenderPlan
from ..headforcing_core.plan.request import RenderJob
from ..headforcing_core.plan.resources import Needs, check_disk, check_growth, room_on
from ..headforcing_core.render.live_story import LiveEdits, StoryEdits
from ..headforcing_core.render.measured_roles import with_found_roles
from ..headforcing_core.render.result import RenderResult
from ..headforcing_core.timeline.clock import format_time
from ..headforcing_core.timeline.paste.paste import read_any
from ..headforcing_core.timeline.timeline import Timeline
from ..headforcing_core.video.sheets import contact_sheet
from ..headforcing_core.video.soundtrack import Soundtrack
from .arguments import Result
from .loaded import LoadedModel
from .parser import story_path
from .roles import with_roles
from .source import Source
from .texts import FollowedFile


def demo(args: Namespace) -> Result:
    """Render a story with the embedded model, and a contact sheet of it."""
    video = args.out / "demo.mp4"
    sheet = args.out / "demo.png"
    source = Source.of(args)
    if args.prompts or args.follow:
        source.note_unlike_training(source.request.timeline)
    with claimed(video, sheet, args.latents, args.follow and story_path(video)):
        found, result = _render(source, video, args.latents)
        found.json["contact_sheet"] = None
        if result.failure is None:
            timeline = result.plan.timeline
            clock = timeline.clock
            seconds = result.plan.video_frames / clock.fps
            starts = [
                (clock.start_seconds(part.start_block), part.text) for part in timeline.segments
            ]
            contact_sheet(video, sheet, labels=[start for start in starts if start[0] < seconds])
            found = replace(found, lines=[*found.lines, f"sheet    {sheet}"])
            found.json["contact_sheet"] = str(sheet)
    return found


def generate(args: Namespace) -> Result:
    """Render a story with the model of `--weights`."""
    source = Source.of(args)
    check_outputs(args)
    note = ""
    if args.device == "auto" and source.machine.device.type == "cpu":
        note = f"note: PyTorch {torch.__version__} finds no GPU, so the video is made on the CPU.\n"
    with claimed(args.out, args.latents, args.follow and story_path(args.out or args.latents)):
        found, _ = _render(source, args.out, args.latents, note)
    return replace(found, lines=[source.info.summary(), *found.lines])


def check_outputs(args: Namespace) -> None:
    """Refuse files that `demo` or `generate` could not write."""
    video = args.out
    if args.weights is None:
        video = args.out / "demo.mp4"
    elif args.out is None and args.latents is None:
        raise HeadForcingError(
            "nothing to write: give --out VIDEO.mp4, --latents FILE.safetensors or both"
        )
    elif args.out is not None and args.vae is None:
        raise HeadForcingError(
            "--out needs --vae, the Wan 2.1 VAE; or write --latents, for `headforcing decode`"
        )
    check_writable(video)
    check_writable(args.latents)


def follow(args: Namespace) -> Result:
    """`demo` or `generate` as a rank that writes no files: everything they do up to the latents."""
    _render(Source.of(args), None)
    return Result([], {})


@dataclass(frozen=True)
class Prepared:
    """A render that can begin: all is checked, the model is loaded, its head roles are known.

    `advice` and `notes` are as for `RenderResult`.
    """

    source: Source
    job: RenderJob
    needs: Needs
    loaded: LoadedModel
    advice: str
    notes: Sequence[str]


def prepare(source: Source, video: Path | None, note: str = "") -> Prepared:
    """Load what a source needs. All checks are done before weights are loaded, the note is told
    after the first.
    """
    plan = source.request.plan()
    machine = source.machine
    machine.check_plan(plan)
    source.check_encoders(plan)
    needs = source.check_needs(plan, video)
    sys.stderr.write(note)
    source = source.with_start()
    job = with_found_roles(source.job(plan, source.encode()), source.roles_folders)
    machine.check_job(job)
    check_disk([needs], source.request.runs, video and video.parent)
    loaded = source.load(decodes=video is not None, encodes=job.plan.vae_use is not None)
    advice = _advice(source, job.plan) if video is not None else ""
    job, about_roles = with_roles(job, loaded, needs, source.roles_folders)
    return Prepared(source, job, needs, loaded, advice=advice, notes=[about_roles])


def _render(
    source: Source, video: Path | None, latents: Path | None = None, note: str = ""
) -> tuple[Result, RenderResult]:
    """Render a source to files."""
    prepared = prepare(source, video, note)
    source = prepared.source
    job = prepared.job
    story = edits = None
    if source.follow is not None:
        story = FollowedStory(source, source.follow)
        edits = LiveEdits(story)
        job = job.with_request(about={**job.request.about, **story.about()})
    result = prepared.loaded.render(job, prepared.needs, video, latents, edits)
    target = video or latents
    if story is not None and target is not None:
        save_story(story_path(target), story.text)
    result = replace(result, advice=prepared.advice, notes=prepared.notes)
    return result_of(source, prepared.needs, result), result


def _advice(source: Source, plan: RenderPlan) -> str:
    """A line on faster decoding: by a second GPU, or by a tiny decoder beside the VAE; and on 8-bit
    attention.
    """
    vae = source.files.vae
    machine = source.machine
    if vae is None or not machine.is_alone:
        return ""
    from ..headforcing_core.video.advice import eight_bit_attention, faster_decoding, tiny_names
    from .codec import is_tiny

    decoding = machine.vae_device or machine.device
    tiny = None
    if is_tiny(vae):
        decoding = torch.device("cpu")  # as fast on the GPU that samples
    else:
        names = tiny_names(plan.config.latents)
        found = [path.name for path in vae.parent.iterdir() if path.name.startswith(names)]
        tiny = min(found, default=None)
    others = []
    if machine.attention_choice != "sage":
        others = eight_bit_attention(machine.device, "--attention sage")
    return faster_decoding(
        sampling=machine.device,
        decoding=decoding,
        tiny=tiny,
        second_gpu=f"--vae-device cuda:{0 if machine.device.index else 1}",
        others=others,
    )


def result_of(source: Source, needs: Needs, result: RenderResult) -> Result:
    """Report of a render; the exit code is 1 where only the latents could be written."""
    options = source.request.options
    lines = [
        *describe_method(options.method_name, options.method_options),
        describe(result.plan, source.machine.dtype),
    ]
    found = {**result.to_dict(), "needs": asdict(needs), "model_family": options.model_family}
    if source.family:
        lines.append(source.family)
    if source.start is not None:
        lines.append(f"starts with {source.start.about}")
        found["start"] = source.start.about
    soundtrack = source.request.soundtrack
    if soundtrack is not None:
        lines.append(describe_sound(soundtrack))
        found["sound"] = soundtrack.name
    if source.follow is not None:
        found["story"] = source.follow.text
    lines += ["", needs.describe(source.machine.device), "", *result.lines()]
    return Result(lines, found, int(result.failure is not None))


def describe_sound(sound: Soundtrack) -> str:
    """A line of a report."""
    length = format_time(sound.seconds)
    words = f"sound    {sound.name}, {length}, from {sound.offset_seconds:g} s of the story on"
    if sound.gain_db:
        words += f", {sound.gain_db:+g} dB"
    return words


def save_story(path: Path, text: str) -> None:
    """Write the story that was rendered."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


class SourceStory(StoryEdits):
    """A story that changes while a source's model is loaded."""

    def __init__(self, source: Source):
        self._source = source

    def check(self, plan: RenderPlan, more: int) -> None:
        check_growth(more, room_on(self._source.machine.device))

    def encode(self, texts: list[str]) -> Mapping[str, Tensor]:
        try:
            return self._source.encode(texts)
        except torch.OutOfMemoryError as error:
            raise HeadForcingError(
                "the text encoder does not fit into memory beside the model"
            ) from error


class FollowedStory(SourceStory):
    """The story of a source's followed file; says in one line on stderr what is taken and what is
    not.
    """

    def __init__(self, source: Source, file: FollowedFile):
        super().__init__(source)
        self._file = file
        self._text = file.text
        self.seconds = source.request.options.seconds

    @property
    def text(self) -> str:
        """The story that is rendered."""
        return self._file.text

    def ask(self) -> Timeline | None:
        text = self._file.changed()
        if text is None:
            return None
        self._text = text
        request = self._source.request
        references = request.timeline.references
        timeline = read_any(text, **request.options.timeline_arguments, references=references)
        self._source.note_unlike_training(timeline)
        return timeline

    def taken(self, plan: RenderPlan, block: int) -> None:
        self._file.text = self._text
        time = format_time(plan.start_seconds(block))
        tqdm.write(
            f"{self._file.path} is taken from {time} on (block {block + 1} of {plan.blocks})",
            file=sys.stderr,
        )

    def refused(self, error: HeadForcingError) -> None:
        tqdm.write(f"{self._file.path} is not taken: {error}", file=sys.stderr)

    def about(self) -> Fields:
        return {"story": self._text}
