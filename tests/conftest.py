"""Fixtures shared by all tests, how tests are distributed to processes, and the promises they hold."""

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent / "helpers"))  # never the repository root
sys.path.append(str(Path(__file__).resolve().parent))  # for tests/benchmarks

from promises import PROMISES, of_promise

TESTS = Path(__file__).resolve().parent
SERVERS = ("comfy", "comfy_floor")  # fixtures: one running ComfyUI each
VERSIONS = ("0.30.0", "0.3.75")  # parameters of fixtures: ComfyUI in a process of its own


@pytest.fixture(scope="session")
def repo_root() -> Path:
    return TESTS.parent


@pytest.fixture(scope="session")
def shared_dir(repo_root: Path) -> Path | None:
    """The project's folder of recorded cases and notes beside the repository, where there is one."""
    folder = repo_root.parent / "shared"
    return folder if folder.is_dir() else None


def process_group(item: pytest.Function) -> str:
    """The tests that run one after the other in one process: those of a ComfyUI server, else those of a file."""
    callspec = getattr(item, "callspec", None)
    values = [value for value in (callspec.params if callspec else {}).values() if isinstance(value, str)]
    for server in SERVERS:
        if server in values or (server in item.fixturenames and "comfy_server" not in item.fixturenames):
            return server
    versions = [value for value in values if value in VERSIONS]
    return "-".join([item.nodeid.partition("::")[0], *versions])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Function]) -> None:
    """Slow groups first, so that no process is left with one at the end; and each promise must have tests."""
    groups = {item: process_group(item) for item in items}
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
    slow = {group: 0 for group in groups.values()}
    for item, group in groups.items():
        slow[group] += item.get_closest_marker("slow") is not None or group in SERVERS
    order = {group: (-count, place) for place, (group, count) in enumerate(slow.items())}
    items.sort(key=lambda item: order[groups[item]])
    check_promises(config, [item.nodeid for item in items])


def check_promises(config: pytest.Config, ids: list[str]) -> None:
    """In a run of everything, each promise must have tests."""
    option = config.option
    chosen = (option.keyword, option.ignore, option.ignore_glob, option.deselect, getattr(option, "lf", False))
    if any(chosen) or config.args not in ([str(TESTS)], ["tests"]):
        return
    for promise, patterns in PROMISES.items():
        for pattern in patterns:
            if not any(of_promise((pattern,), node_id) for node_id in ids):
                raise pytest.UsageError(f"no test {pattern} holds the promise: {promise}")


def pytest_terminal_summary(terminalreporter) -> None:
    """How many tests hold each promise of the README, and what the tests themselves counted."""
    stats = terminalreporter.stats
    counted: Counter[str] = Counter()
    for report in stats.get("passed", ()):
        counted.update({name: value for name, value in report.user_properties if isinstance(value, int)})
    for name, value in counted.items():
        terminalreporter.write_line(f"{name.replace('_', ' ')}: {value}")
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
