"""Fixtures shared by all tests, how tests are distributed to processes, and what they count."""

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent / "helpers"))  # never the repository root

from counts import COUNTED

# Many containers set it; then each process and server compiles ComfyUI, the pack and the tests
# anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

TESTS = Path(__file__).resolve().parent
VERSIONS = ("0.30.0", "0.3.75")  # parameters of the tests that run ComfyUI in a process of its own
IN_A_BROWSER = {  # files that open pages of the newest frontend; as many minutes as all other tests of servers
    f"test_{name}.py"
    for name in ("pictures", "player", "renders_on_pages", "shelf", "timeline_editor", "widgets")
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record", action="store_true", help="write stored results and sentences anew"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--record"):
        os.environ["RECORD"] = "1"
        os.environ["HEADFORCING_WRITE_SENTENCES"] = "1"


@pytest.fixture(scope="session")
def repo_root() -> Path:
    return TESTS.parent


@pytest.fixture(scope="session")
def shared_dir(repo_root: Path) -> Path | None:
    """The project's folder of recorded cases and notes beside the repository, where there is
    one.
    """
    folder = repo_root.parent / "shared"
    return folder if folder.is_dir() else None


def process_group(node_id: str) -> str:
    """The tests that run one after the other in one process: those of a ComfyUI server, else those
    of a file.
    """
    file, _, test = node_id.partition("::")
    parameters = test.partition("[")[2]
    version = next((version for version in VERSIONS if version in parameters), "")
    if version or not file.startswith("tests/comfy/"):
        return file + version
    if "comfy_floor" in parameters:
        return "comfy_floor"
    in_a_browser = Path(file).name in IN_A_BROWSER or "comfy_latest" in parameters
    return "comfy in a browser" if in_a_browser else "comfy"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """With several processes (`-n`), each takes one group after the other."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return process_group(nodeid)

    return ByGroup(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow groups first, so that no process is left with one at the end."""
    groups = {item: process_group(item.nodeid) for item in items}
    slow = {group: 1000 * group.startswith("comfy") for group in groups.values()}
    for item, group in groups.items():
        slow[group] += item.get_closest_marker("slow") is not None
    order = {group: (-count, place) for place, (group, count) in enumerate(slow.items())}
    items.sort(key=lambda item: order[groups[item]])
    skip_repetitions(items)


def skip_repetitions(items: list[pytest.Item]) -> None:
    """Leave out what `pytest.mark.repeat` names, unless the environment asks for everything."""
    if os.environ.get("HEADFORCING_EVERYTHING"):
        return
    skip = pytest.mark.skip(
        reason="repeats a test with other methods or sizes; HEADFORCING_EVERYTHING=1 runs it"
    )
    for item in items:
        parameters = item.nodeid.partition("[")[2]
        if any(named in parameters for mark in item.iter_markers("repeat") for named in mark.args):
            item.add_marker(skip)


def counted(terminalreporter) -> dict[str, int]:
    """The sums of what passed tests recorded under the labels of docs/reliability.md
    (`record_property`).
    """
    reports = terminalreporter.stats.get("passed", ())
    properties = [
        entry for report in reports if report.when == "call" for entry in report.user_properties
    ]
    return {label: sum(count for name, count in properties if name == label) for label in COUNTED}


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run of everything must count at least what docs/reliability.md says."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    everything = session.config.option.markexpr == "not alone" and session.config.args in (
        [str(TESTS)],
        ["tests"],
    )
    if hasattr(session.config, "workerinput") or exitstatus or not everything or terminal is None:
        return
    missing = {label: count for label, count in counted(terminal).items() if count < COUNTED[label]}
    if missing:
        terminal.write_line(f"fewer than docs/reliability.md says: {missing}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter) -> None:
    """What the tests of reliability counted."""
    if found := [f"{count} {label}" for label, count in counted(terminalreporter).items() if count]:
        terminalreporter.write("\n".join(found) + "\n")
