"""Writes workflows/*.jpg and the pictures of the help pages: frames of videos that the demo model
makes here.

    python tasks.py write thumbnails

The workflows for real weights show the demo model, too, and every picture says so: nothing else can
be rendered without a download.
"""

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import av
from headforcing.cli.cli import main as headforcing
from headforcing.headforcing_core.demo.assets import DEMO_STORY
from headforcing.headforcing_core.head_profiles.profile import bundled_profiles, load_profile
from headforcing.headforcing_core.head_profiles.profile_plot import profile_picture
from headforcing.headforcing_core.render.result import report_stored
from headforcing.headforcing_core.report.drift import report_video
from headforcing.headforcing_core.report.drift_plot import drift_picture
from headforcing.headforcing_core.report.latents_plot import run_picture
from headforcing.headforcing_core.runs.stored import stored_videos
from PIL import Image, ImageDraw, ImageFont
from workflow_graphs import DEMO_SEED
from workflow_sources import story

REPO = Path(__file__).resolve().parents[1]
FOLDER = REPO / "workflows"
HELP = REPO / "nodes" / "web" / "docs" / "images"
# seconds: the middle of each scene of the demo's story
SCENES = [4.5 + 10 * scene for scene in range(6)]
SIDE = 480
FOOTER = 26
GAP = 4
BACKGROUND = "#15171c"
TEXT = "#9aa3b2"

Frame = Image.Image


def frames(
    folder: Path, prompts: str, seconds: float, times: Sequence[float], *more: str
) -> list[Frame]:
    """The frames at these times of a video of the demo model."""
    given = [
        "demo",
        "--prompts",
        prompts,
        "--seconds",
        str(seconds),
        "--scale",
        "1",
        "--out",
        str(folder),
        "--seed",
        str(DEMO_SEED),
        *more,
    ]
    if headforcing([*given, "--runs", str(folder / "runs")]):
        raise RuntimeError(f"the render of {prompts!r} failed")
    wanted = {round(time * 16): place for place, time in enumerate(times)}
    found: list[Frame | None] = [None] * len(times)
    with av.open(str(max(folder.glob("*.mp4"), key=lambda path: path.stat().st_mtime_ns))) as video:
        for number, frame in enumerate(video.decode(video=0)):
            if number in wanted:
                found[wanted[number]] = frame.to_image()
    return [frame for frame in found if frame is not None]


def sheet(rows: Sequence[Sequence[Frame]], labels: Sequence[str] = ()) -> Image.Image:
    """Rows of frames, each row with its label, in a square."""
    columns = len(rows[0])
    label = 20 if labels else 0
    room = SIDE - FOOTER - len(rows) * label
    side = min((SIDE - GAP) // columns, room // len(rows)) - GAP
    picture = Image.new("RGB", (SIDE, SIDE), BACKGROUND)
    pen = ImageDraw.Draw(picture)
    height = len(rows) * (side + GAP + label)
    left = (SIDE - columns * (side + GAP) + GAP) // 2
    y = (SIDE - FOOTER - height) // 2 + GAP
    for number, row in enumerate(rows):
        if labels:
            pen.text((left, y + 2), labels[number], TEXT, ImageFont.load_default(13))
            y += label
        for column, frame in enumerate(row):
            tile = frame.resize((side, side), Image.Resampling.LANCZOS)
            picture.paste(tile, (left + column * (side + GAP), y))
        y += side + GAP
    return footed(picture, "frames of the demo model")


def footed(picture: Image.Image, words: str) -> Image.Image:
    """The picture with what it shows written below."""
    pen = ImageDraw.Draw(picture)
    pen.text((SIDE // 2, SIDE - FOOTER // 2), words, TEXT, ImageFont.load_default(14), anchor="mm")
    return picture


def profile_sheet() -> Image.Image:
    """The head profile of the demo model."""
    plot = profile_picture(load_profile(bundled_profiles()["toy_world"]), theme="dark")
    plot.thumbnail((SIDE, SIDE - FOOTER))
    picture = Image.new("RGB", (SIDE, SIDE), BACKGROUND)
    picture.paste(plot, ((SIDE - plot.width) // 2, (SIDE - FOOTER - plot.height) // 2))
    return footed(picture, "head profile of the demo model")


def finished(row: list[Frame]) -> Image.Image:
    """Frames as they are and enlarged, which no upscale model has done here."""
    larger = [frame.resize((512, 512), Image.Resampling.BICUBIC) for frame in row]
    return sheet([row, larger], ("before", "after"))


def halves(row: list[Frame], columns: int = 3) -> list[list[Frame]]:
    """A row as several of `columns` frames."""
    return [row[start : start + columns] for start in range(0, len(row), columns)]


def pictures(folder: Path) -> dict[str, Image.Image]:
    """All thumbnails by the name of their workflow."""
    one_prompt = "a red ball bouncing in the teal plain room"
    takes = story("takes")
    sea = story("sea")
    night = story("night")
    plain = takes.replace("[seed 7] ", "")
    changed = night.replace(
        "a purple cross gliding in the maroon plain room",
        "a green square gliding in the sand plain room",
    )
    methods = ("head_forcing", "self_forcing_window_21", "infinity_rope")

    def made(
        prompts: str, times: Sequence[float] = SCENES, seconds: float = 60, *more: str
    ) -> list[Frame]:
        return frames(folder, prompts, seconds, times, *more)

    compared = [
        made(story("compare"), [1, 7, 12, 19], 20, "--method", method) for method in methods
    ]
    return {
        "01 Demo without downloads": sheet(halves(made(DEMO_STORY.strip()))),
        "03 One minute with six prompts": sheet(halves(made(sea))),
        "07 Five minutes with a report": sheet(
            halves(made(story("eight"), [9, 50, 90, 130, 160, 200, 240, 280], 300), 4)
        ),
        "02 Re-roll one scene": sheet(
            [made(plain)[1:5], made(takes)[1:5]], ("take 1", "take 2: scene 4 re-rolled")
        ),
        "04 Change the story while it renders": sheet(
            [made(night)[2:], made(changed)[2:]], ("as planned", "with scene 5 changed")
        ),
        "15 Research - native sampling nodes": sheet(
            halves(made(DEMO_STORY.strip(), SCENES, 60, "--seed", "2"))
        ),
        "12 Minute video as an app": sheet(halves(made(night, SCENES, 60, "--seed", "5"))),
        "06 Continue a video": sheet(
            halves(made(one_prompt.replace("red", "orange"), [1, 4, 9, 14], 15), 2)
        ),
        "05 Start from an image": sheet(
            halves(made(one_prompt.replace("red", "purple"), [0, 2, 5, 9], 10), 2)
        ),
        "09 LongLive 2.0 - shots at 720p": sheet(halves(made(sea, SCENES, 60, "--seed", "6"))),
        "10 LongLive 2.0 - start from an image": sheet(
            halves(made(one_prompt.replace("red", "yellow"), [0, 2, 5, 9], 10), 2)
        ),
        "11 Talking portrait": sheet(
            halves(made(one_prompt.replace("red", "green"), [0, 2, 5, 9], 10), 2)
        ),
        "13 Research - compare methods": sheet(compared, methods),
        "14 Research - measure head roles": profile_sheet(),
        "08 Finish - larger and smoother": finished(made(DEMO_STORY.strip(), [4.5, 14.5, 24.5])),
    }


def help_pictures(folder: Path) -> dict[str, Image.Image]:
    """The pictures of the help pages: frames of the demo's video, and its plots."""
    row = [
        frame.resize((126, 126), Image.Resampling.LANCZOS)
        for frame in frames(folder, DEMO_STORY.strip(), 60, SCENES)
    ]
    strip = Image.new("RGB", (len(row) * 128, 128), BACKGROUND)
    for place, frame in enumerate(row):
        strip.paste(frame, (place * 128, 0))
    (video,), (run,) = folder.glob("*.mp4"), stored_videos(folder / "runs")
    return {
        "frames": strip,
        "drift": drift_picture(report_video(video), "dark"),
        "profile": profile_picture(load_profile(bundled_profiles()["toy_world"]), theme="dark"),
        "run": run_picture(report_stored(run), "dark", run.about.get("novelty_threshold")),
    }


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        for name, picture in help_pictures(Path(folder)).items():
            picture.thumbnail((760, 1400))
            picture.convert("RGB").save(HELP / f"{name}.jpg", quality=80, optimize=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, picture in pictures(Path(folder)).items():
            picture.save(FOLDER / f"{name}.jpg", quality=82, optimize=True)
    shutil.copyfile(FOLDER / "13 Research - compare methods.jpg", HELP / "compare.jpg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
