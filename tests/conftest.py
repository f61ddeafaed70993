"""Fixtures shared by all tests. Nothing here is heavy until a test asks for it."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

TESTS = Path(__file__).resolve().parent
# helpers beside the tests; never the repository root
sys.path.extend(str(TESTS / folder) for folder in ("helpers", "engine", "render", "comfy", "."))

from promises import PROMISES, of_promise

if TYPE_CHECKING:
    from comfy_harness import ComfyServer
    from comfy_setup import ComfyInstall

NEWEST, FLOOR = "0.30.0", "0.3.75"  # the oldest and the newest ComfyUI that is tested


@pytest.fixture(scope="session")
def repo_root() -> Path:
    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_dir(repo_root: Path) -> Path | None:
    """The project's folder of recorded cases and notes beside the repository, where there is one."""
    folder = repo_root.parent / "shared"
    return folder if folder.is_dir() else None


def _install(version: str) -> "ComfyInstall":
    if os.environ.get("HEADFORCING_SKIP_COMFY") == "1":
        pytest.skip("HEADFORCING_SKIP_COMFY=1: tests in a real ComfyUI are left out")
    from comfy_setup import ensure

    return ensure(version)


def _server(version: str, tmp_path_factory: pytest.TempPathFactory) -> "Iterator[ComfyServer]":
    install = _install(version)
    from comfy_harness import ComfyServer
    from tiny_checkpoints import FAKE_COND_NODE, FAKE_NODES_FILE

    base = tmp_path_factory.mktemp(f"comfyui-{version}")
    with ComfyServer(install, base, custom_nodes={FAKE_NODES_FILE: FAKE_COND_NODE}) as server:
        yield server


@pytest.fixture(scope="session")
def comfy(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[ComfyServer]":
    """A running ComfyUI of the newest tested version, with the pack and the test-only nodes."""
    yield from _server(NEWEST, tmp_path_factory)


@pytest.fixture(scope="session")
def comfy_floor(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[ComfyServer]":
    """A running ComfyUI of the oldest supported version, with the pack and the test-only nodes."""
    yield from _server(FLOOR, tmp_path_factory)


@pytest.fixture(scope="session", params=["comfy", "comfy_floor"])
def comfy_server(request: pytest.FixtureRequest) -> "ComfyServer":
    """Both servers in turn."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session", params=[NEWEST, FLOOR])
def comfy_install(request: pytest.FixtureRequest) -> "ComfyInstall":
    """Both versions, installed but not running, for comfy_harness.run_in_comfy."""
    return _install(request.param)


def pytest_collection_finish(session: pytest.Session) -> None:
    """In a run of everything, each promise must have tests."""
    option = session.config.option
    chosen = any(
        (
            option.keyword,
            option.markexpr,
            option.ignore,
            option.ignore_glob,
            option.deselect,
            getattr(option, "lf", False),
        )
    )
    if chosen or session.config.args not in ([str(TESTS)], ["tests"]):
        return
    ids = [item.nodeid for item in session.items]
    for promise, patterns in PROMISES.items():
        for pattern in patterns:
            if not any(of_promise((pattern,), node_id) for node_id in ids):
                raise pytest.UsageError(f"no test {pattern} holds the promise: {promise}")


def pytest_terminal_summary(terminalreporter) -> None:
    """How many tests hold each promise of the README."""
    stats = terminalreporter.stats
    lines = []
    for promise, patterns in PROMISES.items():
        counts = {
            outcome: sum(of_promise(patterns, report.nodeid) for report in stats.get(outcome, ()))
            for outcome in ("passed", "failed", "error", "skipped")
        }
        told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
        if told:
            lines.append(f"{told}: {promise}")
    if lines:
        terminalreporter.section("promises")
        terminalreporter.write("\n".join(lines) + "\n")
