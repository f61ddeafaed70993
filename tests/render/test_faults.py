"""Whatever the file system refuses, at any point of any command: one sentence, and the next run
completes it.
"""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import fault_injection
import pytest
from fault_injection import ERRORS, POINTS
from headforcing.cli import profiles
from headforcing.cli.cli import main
from headforcing.headforcing_core.demo import assets
from headforcing.headforcing_core.render import measured_roles
from toy_renders import save_toy

ONE = ("--prompts", "a red ball bouncing in the teal plain room")
SMALL = ("--scale", "1", "--sigmas", "1")
STORY = (
    "0:00 a red ball bouncing in the teal plain room\n0:00.7 a yellow cross circling in the navy "
    "checkerboard room"
)
MOST_TRIES = {"prune": 40, "list": 40, "takes": 40, "show": 40}  # of one point; others 1


def render(folder: Path, seconds: str = "1.3", *more: str) -> list[str]:
    return [
        "demo",
        "--prompts",
        STORY,
        "--seconds",
        seconds,
        *SMALL,
        "--out",
        str(folder / "out"),
        "--runs",
        str(folder / "runs"),
        "--state-seconds",
        "0.001",
        "--found-profiles",
        str(folder / "found"),
        "--profile",
        str(folder.parent / "toy.json"),
        *more,
    ]


def blocks(folder: Path) -> dict[str, str]:
    """The stored blocks by name, with what they hold."""
    files = sorted((folder / "runs").rglob("block-*.safetensors"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def nothing(folder: Path) -> None:
    """A command that begins in an empty folder."""


def rendered(folder: Path) -> None:
    """A command that begins after a finished render."""
    assert main(render(folder)) == 0


COMMANDS: dict[str, tuple[Callable[[Path], None], Callable[[Path], list[str]]]] = {
    "render": (nothing, render),
    "resume": (rendered, lambda folder: render(folder, "2")),
    "auto": (nothing, lambda folder: render(folder, "5.2", "--profile", "auto")),
    "prune": (rendered, lambda folder: ["runs", "prune", str(folder / "runs"), "--keep-gb", "0"]),
    "list": (rendered, lambda folder: ["runs", "list", str(folder / "runs")]),
    "takes": (rendered, lambda folder: ["runs", "takes", str(folder / "runs")]),
    "show": (rendered, lambda folder: ["runs", "show", str(folder / "runs")]),
    "report": (
        rendered,
        lambda folder: [
            "report",
            str(folder / "out" / "demo.mp4"),
            "--plot",
            str(folder / "p.png"),
        ],
    ),
    "compare": (
        nothing,
        lambda folder: [
            "compare",
            "--demo",
            "--methods",
            "head_forcing,self_forcing",
            *ONE,
            "--seconds",
            "1",
            *SMALL,
            "--out",
            str(folder / "out"),
            "--profile",
            str(folder.parent / "toy.json"),
        ],
    ),
    "profile": (
        nothing,
        lambda folder: [
            "profile",
            str(folder / "profile.json"),
            "--demo",
            "--preset",
            "quick",
            *ONE,
        ],
    ),
}


def tries(count: int, most: int) -> list[int]:
    """Which of `count` operations to fail: the last, and others before it at even distances from
    the first.
    """
    if count <= most:
        return list(range(1, count + 1))
    return [1 + place * (count - 1) // (most - 1) for place in range(most)] if most > 1 else [count]


@pytest.mark.slow
@pytest.mark.repeat("report", "compare")
@pytest.mark.parametrize("name", COMMANDS)
def test_a_fault_of_the_file_system_ends_in_one_sentence_and_the_next_run_completes(
    name, tmp_path, monkeypatch, capsys, record_property
):
    before, command = COMMANDS[name]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(profiles.BUDGETS, "quick", (1, 3.0))
    monkeypatch.setattr(measured_roles, "VIDEOS", 1)
    model = save_toy(tmp_path, 2)
    monkeypatch.setattr(assets, "model_path", lambda: model)
    start = tmp_path / "start"
    work = tmp_path / "work"
    start.mkdir()
    before(start)
    faults = fault_injection.installed(work / "found" if name == "auto" else work, monkeypatch)

    def again() -> None:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(start, work)

    again()
    with faults.active():
        assert main(command(work)) == 0
    seen = dict(faults.seen)
    wanted = blocks(work)
    capsys.readouterr()
    injected = 0
    for number, point in enumerate(POINTS):
        for at in tries(seen.get(point, 0), MOST_TRIES.get(name, 1)):
            error = ERRORS[(number + at) % len(ERRORS)]
            again()
            with faults.active(point, at, error):
                code = main(command(work))
            errors = capsys.readouterr().err
            assert faults.raised, (point, at)
            injected += 1
            place = f"{point} {at} of {seen[point]}, {os.strerror(error)}: {errors}"
            allowed = (0, 1, 2) if name == "prune" else (0, 2)  # 1: a folder could not be removed
            assert code in allowed and "Traceback" not in errors, place
            if code == 2:
                (line,) = [line for line in errors.splitlines() if line.startswith("error: ")]
                assert errors.rstrip().endswith(line), place
            if name in ("render", "resume", "auto"):
                assert main(command(work)) == 0 and blocks(work) == wanted, place
                capsys.readouterr()
    assert injected, "no operation was seen, so nothing was injected"
    record_property("faults of the file system injected", injected)
