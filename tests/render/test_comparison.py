"""Methods side by side: the table, the grid, and what is refused."""

import json
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pytest
from flat_colour import decoded
from headforcing.cli import compare as compare_command
from headforcing.cli.cli import main
from headforcing.headforcing_core.demo import assets
from headforcing.headforcing_core.distributed.workers import Workers
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods.registry import METHODS as METHOD_ROWS
from headforcing.headforcing_core.names import versions
from headforcing.headforcing_core.render import comparison
from headforcing.headforcing_core.render.comparison import TABLE_COLUMNS, entries_of
from headforcing.headforcing_core.report.drift import report_video
from headforcing.headforcing_core.video.grid import STRIP
from headforcing.headforcing_core.weights.checkpoint import inspect_checkpoint
from PIL import Image

METHODS = ["head_forcing", "self_forcing_window_21", "longlive"]
BALL = "a red ball bouncing in the teal plain room"


def compare(out: Path, *more: str, methods: list[str] = METHODS) -> int:
    command = [
        "compare",
        "--demo",
        "--methods",
        *methods,
        "--prompts",
        BALL,
        "--seconds",
        "2",
        "--device",
        "cpu",
    ]
    return main([*command, "--sigmas", "1", "--out", str(out), "--json", *more])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seconds with three methods."""
    out = tmp_path_factory.mktemp("compare")
    assert compare(out, "--scale", "1", "--seed", "3") == 0
    return out


def test_table_notes_grid_and_picture_are_what_the_videos_and_their_caches_say(made: Path):
    found = json.loads((made / "comparison.json").read_text("utf-8"))
    markdown = (made / "comparison.md").read_text("utf-8")
    rows = found["rows"]
    heads = 48
    for row, method in zip(rows, METHODS, strict=True):
        video = made / f"{method}-seed3.mp4"
        assert (
            row["entry"]["method"] == method
            and row["video"] == str(video)
            and row["video_frames"] == 32
        )
        assert row["drift"] == report_video(video).whole
        assert row["seconds_per_block"] > 0 and row["reused_blocks"] == 0
        # tokens, head width, key and value, float32
        assert row["cache_bytes"] == row["frame_slots"] * 16 * 32 * 2 * 4
    assert rows[0]["frame_slots"] < rows[2]["frame_slots"] == 12 * heads
    lines = markdown.splitlines()
    assert lines[0].strip("| ").split(" | ") == ["method", *TABLE_COLUMNS]
    for row, method, line in zip(rows, METHODS, lines[2:5], strict=True):
        assert line.startswith(f"| {method} | {row['frame_slots']:,} | ")
        assert f" | {row['drift']['flicker']:.4f} | " in line
    about = found["about"]
    notes = markdown.split("\n\n")[-1]
    expected = {
        "prompts": [BALL],
        "starts_seconds": [0.0],
        "seconds": 2.0,
        "seeds": [3],
        "size": "64x64",
        "device": "cpu",
        "fingerprint": inspect_checkpoint(assets.model_path()).fingerprint,
        "versions": versions(),
    }
    assert expected.items() <= about.items() and "no VBench scores" in lines[6]
    assert (
        notes.strip() == "\n".join(found["notes"])
        and "meant for LongLive 1.3B, LoRA merged (Apache-2.0)" in notes
    )
    with av.open(str(made / "grid.mp4")) as container:
        tags = json.loads(container.metadata["head_forcing"])
    assert (
        tags["methods"] == METHODS and tags["seed"] == 3 and tags["versions"] == about["versions"]
    )
    with Image.open(found["picture"]) as picture:
        assert picture.height > 3 * 160 and picture.width > 160


def test_the_grid_shows_every_video_under_its_name(made: Path):
    grid = decoded(made / "grid.mp4")
    tiles = [decoded(made / f"{name}-seed3.mp4") for name in METHODS]
    assert grid.shape == (32, 256 + STRIP, 3 * 256, 3)
    columns = np.split(grid.astype(int), 3, axis=2)
    for column, tile in zip(columns, tiles, strict=True):
        assert np.abs(column[:, STRIP:] - tile).mean() < 6
    names = [column[5, :STRIP] for column in columns]
    assert np.abs(names[0] - names[1]).max() > 100, "all have the same name, or none"


def test_an_interrupted_comparison_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch, made: Path
):
    runs = tmp_path / "runs"
    render = compare_command.render_compared
    calls = []

    def stopping(job):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(job.entry.method_name)
        return render(job)

    monkeypatch.setattr(compare_command, "render_compared", stopping)
    same = ["--scale", "1", "--seed", "3", "--runs", str(runs)]
    assert compare(tmp_path / "out", *same) == 130
    assert calls == METHODS[:2] and not (tmp_path / "out" / "grid.mp4").exists()
    monkeypatch.undo()
    assert compare(tmp_path / "out", *same) == 0
    rows = json.loads((tmp_path / "out" / "comparison.json").read_text("utf-8"))["rows"]
    assert [row["reused_blocks"] for row in rows] == [3, 3, 0]
    assert all(row["seconds_per_block"] > 0 for row in rows), (
        "what a reused block took is known from its render"
    )
    assert (decoded(tmp_path / "out" / "grid.mp4") == decoded(made / "grid.mp4")).all()


def test_all_renders_what_it_can_in_its_order_and_says_why_not_the_rest(
    tmp_path: Path, monkeypatch, capsys
):
    """A flush fits Head Forcing and no window of LongLive's; a method that is named instead of
    `all` is an error.
    """
    tagged = [
        "--prompts",
        f"0:00 {BALL}\n0:01 [flush] a green star gliding in the slate plain room",
    ]
    reason = "this method's prompt switch is always recache"
    assert compare(tmp_path, *tagged) == 2 and list(tmp_path.iterdir()) == []
    assert f"longlive: {reason}" in capsys.readouterr().err
    monkeypatch.setattr(
        comparison, "all_methods", lambda: ["head_forcing", "longlive", "self_forcing_sink"]
    )
    assert compare(tmp_path, *tagged, methods=["all"]) == 0
    found = json.loads((tmp_path / "comparison.json").read_text("utf-8"))
    assert [row["entry"]["method"] for row in found["rows"]] == [
        "head_forcing",
        "self_forcing_sink",
    ]
    assert f"left out: longlive: {reason}" in (tmp_path / "comparison.md").read_text("utf-8")


def test_all_are_the_published_methods_each_once():
    # by commas or lines, and once
    some = entries_of(" head_forcing,longlive\n\nhead_forcing , memflow\r\n")
    assert [entry.method_name for entry in some] == ["head_forcing", "longlive", "memflow"]
    names = [entry.method_name for entry in entries_of("all")]
    policies = {METHOD_ROWS[name].method for name in names}
    assert policies == {row.method for row in METHOD_ROWS.values()} and len(names) == len(policies)


class Parallel(Workers):
    """Workers that say that they work at the same time, and note what they are given."""

    parallel = True

    def __init__(self):
        self.given = {}

    def run(self, function, jobs):
        self.given.update(jobs)
        return super().run(function, jobs)


def test_workers_of_a_farm_get_whole_paths_and_wait_for_each_other_in_one_run_folder(
    tmp_path, monkeypatch
):
    workers = Parallel()
    monkeypatch.setattr(compare_command, "workers_of", lambda args: workers)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "story.txt").write_text(BALL, encoding="utf-8")
    more = ["--runs", "runs", "--prompts", "@story.txt", "--seconds", "1", "--scale", "1"]
    assert compare(Path("out"), *more, methods=METHODS[:2]) == 0
    assert list(workers.given) == [f"{method}-seed0" for method in METHODS[:2]]
    for job in workers.given.values():
        assert (
            job.args.out == tmp_path / "out"
            and job.args.runs == tmp_path / "runs"
            and job.args.prompts == BALL
        )
        assert job.args.json and job.args.patience > 3600, (
            "a worker shows no bar, and waits while another makes its video"
        )


def test_a_video_that_fails_ends_a_comparison_with_its_name(tmp_path, monkeypatch, capsys):
    def failing(job):
        raise HeadForcingError("no room")

    monkeypatch.setattr(compare_command, "render_compared", failing)
    assert compare(tmp_path) == 2
    assert capsys.readouterr().err.endswith("error: head_forcing-seed0: no room\n")


def test_real_weights_are_compared_with_a_text_encoder_s_embeddings_and_a_vae(
    tmp_path: Path, tiny, tiny_model, capsys
):
    command = [
        "compare",
        *tiny_model,
        "--methods",
        "head_forcing",
        "self_forcing",
        "--json",
        "--seconds",
        "1",
    ]
    command += ["--out", str(tmp_path)]
    assert main(command) == 2
    assert "--weights needs --prompts, and --vae" in capsys.readouterr().err
    assert (
        main(
            [*command, "--prompts", "a green apple", "--vae", str(tiny / "wan_2.1_vae.safetensors")]
        )
        == 0
    )
    rows = json.loads((tmp_path / "comparison.json").read_text("utf-8"))["rows"]
    assert [row["frame_slots"] for row in rows] == [4 * (4 + 6 + 6 + 6), 4 * 4 * 6]
    assert decoded(tmp_path / "grid.mp4").shape == (16, 192 + STRIP, 2 * 288, 3), (
        "tiles have the shape of the videos"
    )


def test_the_disk_must_have_room_for_all_videos_together(tmp_path: Path, capsys, monkeypatch):
    """One takes 168 kB, finished blocks included, three take 504."""
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=300_000))
    runs = ["--runs", str(tmp_path / "runs")]
    assert compare(tmp_path / "three", *runs) == 2
    assert "300 kB free for 504 kB" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.mp4")) and not list(tmp_path.rglob("block-*"))
