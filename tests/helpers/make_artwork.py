"""Writes the pictures of the help pages (nodes/web/docs/images), and the pack's icon and banner (docs/images).

    python tests/helpers/make_artwork.py

Everything is drawn here: plots and frames of the demo model, and its attention heads in the colours of their roles.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from headforcing.headforcing_core.demo.assets import DEMO_STORY
from headforcing.headforcing_core.head_profiles.profile import bundled_profiles, load_profile
from headforcing.headforcing_core.head_profiles.profile_plot import profile_picture
from headforcing.headforcing_core.page import THEMES
from headforcing.headforcing_core.render.result import report_stored
from headforcing.headforcing_core.report.drift import report_video
from headforcing.headforcing_core.report.drift_plot import drift_picture
from headforcing.headforcing_core.report.latents_plot import run_picture
from headforcing.headforcing_core.runs.stored import stored_videos
from headforcing.headforcing_core.video.sheets import font
from make_thumbnails import BACKGROUND, FOLDER, Frame, frames
from PIL import Image, ImageDraw

REPO = Path(__file__).resolve().parents[2]
HELP, IMAGES = REPO / "nodes" / "web" / "docs" / "images", REPO / "docs" / "images"
ICON, BANNER = (400, 400), (1260, 540)  # the registry's: a square of at most 400 pixels, and 21 to 9
SCENES = [4.5 + 10 * scene for scene in range(6)]


def head_grid(side: int) -> Image.Image:
    """The roles of the demo model's heads as coloured squares: a row for each head, a column for each layer."""
    roles = load_profile(bundled_profiles()["toy_world"]).roles
    layers, heads = len(roles), len(roles[0])
    step = side // max(layers, heads)
    picture = Image.new("RGB", (layers * step, heads * step), BACKGROUND)
    pen = ImageDraw.Draw(picture)
    for layer, row in enumerate(roles):
        for head, role in enumerate(row):
            x, y = layer * step, head * step
            colour = THEMES["dark"].roles[role]
            pen.rounded_rectangle((x + 4, y + 4, x + step - 5, y + step - 5), radius=step // 6, fill=colour)
    return picture


def icon() -> Image.Image:
    """The heads behind the triangle of a player."""
    grid = head_grid(ICON[0] - 32)
    picture = Image.new("RGB", ICON, BACKGROUND)
    picture.paste(grid, ((ICON[0] - grid.width) // 2, (ICON[1] - grid.height) // 2))
    pen = ImageDraw.Draw(picture)
    middle = ICON[0] // 2
    pen.ellipse((middle - 92, middle - 92, middle + 92, middle + 92), fill=BACKGROUND)
    pen.polygon(((middle - 34, middle - 56), (middle - 34, middle + 56), (middle + 62, middle)), fill="#f0f0f4")
    return picture


def banner(row: list[Frame]) -> Image.Image:
    """The name, the heads, and a minute of the demo model's video below them."""
    picture = Image.new("RGB", BANNER, BACKGROUND)
    side = BANNER[0] // len(row)
    for place, frame in enumerate(row):
        tile = frame.resize((side - 6, side - 6), Image.Resampling.NEAREST)
        picture.paste(tile, (place * side + 3, BANNER[1] - side + 3))
    grid = head_grid(300)
    picture.paste(grid, (BANNER[0] - grid.width - 40, (BANNER[1] - side - grid.height) // 2))
    pen = ImageDraw.Draw(picture)
    pen.text((40, 90), "Head Forcing", "#f0f0f4", font(92))
    pen.text((44, 210), "minute-long, multi-prompt video in ComfyUI", "#b4b8c2", font(32))
    return picture


def strip(row: list[Frame], side: int = 128) -> Image.Image:
    """Frames beside one another."""
    picture = Image.new("RGB", (len(row) * side, side), BACKGROUND)
    for place, frame in enumerate(row):
        picture.paste(frame.resize((side - 2, side - 2), Image.Resampling.NEAREST), (place * side, 0))
    return picture


def main() -> int:
    HELP.mkdir(exist_ok=True)
    profile = load_profile(bundled_profiles()["toy_world"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        row = frames(folder, DEMO_STORY.strip(), 60, SCENES)
        (video,) = folder.glob("*.mp4")
        (run,) = stored_videos(folder / "runs")
        plots = {
            "frames": strip(row),
            "drift": drift_picture(report_video(video), "dark"),
            "profile": profile_picture(profile, theme="dark"),
            "run": run_picture(report_stored(run), "dark"),
        }
    for name, plot in plots.items():
        plot.thumbnail((760, 1400))
        plot.convert("RGB").save(HELP / f"{name}.jpg", quality=80, optimize=True)
    shutil.copyfile(FOLDER / "compare_methods.jpg", HELP / "compare.jpg")
    icon().save(IMAGES / "icon.png", optimize=True)
    banner(row).convert("P", palette=Image.Palette.ADAPTIVE).save(IMAGES / "banner.png", optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
