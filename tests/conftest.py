"""Fixtures shared by all tests, how tests are distributed to processes, and what they count."""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, groupby
from pathlib import Path

import pytest

# never the repository root
sys.path.append(str(Path(__file__).resolve().parent / "helpers"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "generators"))

from counts import COUNTED

# Many containers set it; then each process and server compiles ComfyUI, the pack and the tests
# anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

TESTS = Path(__file__).resolve().parent
VERSIONS = ("0.30.0", "0.3.75")  # parameters of the tests that run ComfyUI in a process of its own
LONG = {  # files of a minute and more without a server
    "tests/engine/test_kernels.py",
    "tests/render/test_farm.py",
    "tests/render/test_several.py",
    "tests/render/test_sound.py",
    "tests/render/test_ways.py",
}
SERVERS = ("comfy_floor", "comfy_latest", "comfy")  # fixtures, which a process starts once
IN_A_BROWSER = {  # files whose tests without parameters open pages of the newest frontend
    f"test_{name}.py"
    for name in (
        "pictures",
        "player",
        "renders_on_pages",
        "shelf",
        "story_long",
        "story_marks",
        "story_monitor",
        "story_panel",
        "studio",
        "timeline_editor",
        "widgets",
    )
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record", action="store_true", help="write stored results and sentences anew"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--record"):
        os.environ["RECORD"] = "1"


@pytest.fixture(autouse=True)
def handler_of_ctrl_c() -> Iterator[None]:
    """Put back what a command keeps until its process ends."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def shots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Model families with `_shots` after their names, as if their models were trained with shots."""
    from headforcing.headforcing_core.rollout.schedule import SCHEDULES

    for family in ("self_forcing", "causal_forcing_framewise", "causal_forcing_framewise_2_steps"):
        with_shots = replace(SCHEDULES[family], shot_prefix="a new shot: ")
        monkeypatch.setitem(SCHEDULES, f"{family}_shots", with_shots)


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


@pytest.fixture(scope="session")
def real_file(shared_dir: Path | None) -> Callable[[str], Path]:
    """A function that finds a file of the real models, which lie in that folder; the test is skipped
    where it is not there.
    """

    def find(name: str) -> Path:
        path = shared_dir / "real" / name if shared_dir else None
        if path is None or not path.is_file():
            pytest.skip(f"real/{name} is not beside the repository")
        return path

    return find


def process_group(node_id: str) -> str:
    """The tests that run one after the other in one process: those of a file, and of its tests in
    ComfyUI those of a server, which begins the name.
    """
    file, _, test = node_id.partition("::")
    parameters = test.partition("[")[2]
    version = next((version for version in VERSIONS if version in parameters), "")
    if version or not file.startswith("tests/comfy/"):
        return file + version
    without = "comfy_latest" if Path(file).name in IN_A_BROWSER else "comfy"
    server = next((server for server in SERVERS if parameters.startswith(server)), without)
    return f"{server}: {file}"


def server_of(group: str) -> str:
    """The server that a group's tests run in; "" where they need none."""
    return group.partition(": ")[0] if ": " in group else ""


def next_group(waiting: Iterable[str], own: set[str], others: set[str]) -> str:
    """What a process takes next: a group of a server that it has started, of one that no other has,
    one without a server, and last one of a server that is then started again.
    """
    groups = list(waiting)
    wanted = (
        lambda server: server in own,
        lambda server: server not in own | others,
        lambda server: server == "",
        lambda server: True,
    )
    own = own - {""}
    others = others | {""}
    for fits in wanted:
        for group in groups:
            if fits(server_of(group)):
                return group
    raise AssertionError("the last one fits every group")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """With several processes (`-n`), each takes one group after the other."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return process_group(nodeid)

        def _assign_work_unit(self, node) -> None:
            servers = {
                each: set(map(server_of, units)) for each, units in self.assigned_work.items()
            }
            own = servers.pop(node, set())
            group = next_group(self.workqueue, own, set().union(*servers.values()))
            self.workqueue.move_to_end(group, last=False)
            super()._assign_work_unit(node)

    return ByGroup(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow groups first, so that no process is left with one at the end.

    Opening a page of the editor takes long: in a group those come first that share the page of the
    group before, which is often of the same process.
    """
    skip_repetitions(items)
    groups = {item: process_group(item.nodeid) for item in items}
    slow = {group: 1000 * ("tests/comfy/" in group or group in LONG) for group in groups.values()}
    for item, group in groups.items():
        slow[group] += item.get_closest_marker("slow") is not None
    order = {group: (-count, place) for place, (group, count) in enumerate(slow.items())}
    items.sort(key=lambda item: order[groups[item]])
    ranks = {}
    open_page = ""
    for group, members in groupby(items, key=lambda item: groups[item]):
        pages = sorted(
            {page_of(item) for item in members}, key=lambda page: (page != open_page, page)
        )
        ranks |= {(group, page): rank for rank, page in enumerate(pages)}
        open_page = pages[-1]
    items.sort(key=lambda item: (order[groups[item]], ranks[groups[item], page_of(item)]))


def page_of(item: pytest.Item) -> str:
    """The parameter of the page that a test shares with others; "" where it shares none, or is
    skipped.
    """
    if item.get_closest_marker("same_page") is None or item.get_closest_marker("skip"):
        return ""
    return item.nodeid.partition("[")[2] or "comfy_latest, Nodes 2.0]"


def skip_repetitions(items: list[pytest.Item]) -> None:
    """Leave out what `pytest.mark.repeat` names, and tests with the mark `thorough`, unless the
    environment asks for everything.
    """
    if os.environ.get("HEADFORCING_EVERYTHING"):
        return
    skip = pytest.mark.skip(
        reason="repeats a test with other methods, sizes or versions; HEADFORCING_EVERYTHING=1 runs it"
    )
    skip_long = pytest.mark.skip(
        reason="takes long and is for releases; HEADFORCING_EVERYTHING=1 runs it"
    )
    for item in items:
        if item.get_closest_marker("thorough") is not None:
            item.add_marker(skip_long)
        parameters = item.nodeid.partition("[")[2]
        repeated = chain.from_iterable(mark.args for mark in item.iter_markers("repeat"))
        if any(name in parameters for name in repeated):
            item.add_marker(skip)


def counted(terminalreporter) -> dict[str, int]:
    """The sums of what passed tests recorded under the labels of docs/reliability.md
    (`record_property`).
    """
    reports = terminalreporter.stats.get("passed", ())
    sums = dict.fromkeys(COUNTED, 0)
    for report in reports:
        if report.when == "call":
            for name, count in report.user_properties:
                if name in sums:
                    sums[name] += count
    return sums


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run of everything must count at least what docs/reliability.md says."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    option = session.config.option
    named = session.config.args_source != pytest.Config.ArgsSource.TESTPATHS
    is_part = named or option.markexpr or option.keyword
    if hasattr(session.config, "workerinput") or exitstatus or is_part or terminal is None:
        return
    missing = {label: count for label, count in counted(terminal).items() if count < COUNTED[label]}
    if missing:
        terminal.write_line(f"fewer than docs/reliability.md says: {missing}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter) -> None:
    """What the tests of reliability counted."""
    if found := [f"{count} {label}" for label, count in counted(terminalreporter).items() if count]:
        terminalreporter.write("\n".join(found) + "\n")
