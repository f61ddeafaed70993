"""ComfyUI for the tests: servers and their environments, shared by all tests of a process."""

from collections.abc import Iterator

import pytest
from comfy_browser import Browser
from comfy_harness import ComfyServer
from comfy_setup import FLOOR, LATEST_FRONTEND, NEWEST, installed
from tiny_checkpoints import FAKE_COND_NODE, FAKE_NODES_FILE, native_files


def _server(
    version: str, tmp_path_factory: pytest.TempPathFactory, frontend: str | None = None
) -> Iterator[ComfyServer]:
    install = installed(version, frontend)
    base = tmp_path_factory.mktemp(f"comfyui-{version}")
    nodes = {FAKE_NODES_FILE: FAKE_COND_NODE}
    with ComfyServer(install, base, custom_nodes=nodes) as server:
        yield server


@pytest.fixture(scope="session")
def comfy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComfyServer]:
    """A running ComfyUI of the newest tested version, with the pack and the test-only nodes."""
    yield from _server(NEWEST, tmp_path_factory)


@pytest.fixture(scope="session")
def comfy_floor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComfyServer]:
    """A running ComfyUI of the oldest supported version, with the pack and the test-only nodes."""
    yield from _server(FLOOR, tmp_path_factory)


@pytest.fixture(scope="session")
def comfy_latest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComfyServer]:
    """A running ComfyUI of the newest tested version with the newest frontend; for tests in the
    browser.
    """
    yield from _server(NEWEST, tmp_path_factory, LATEST_FRONTEND)


@pytest.fixture(scope="session", params=["comfy", "comfy_floor"])
def both(request: pytest.FixtureRequest) -> ComfyServer:
    """The servers of both versions in turn."""
    return request.getfixturevalue(request.param)


PASSED = pytest.StashKey[bool]()  # whether the body of a test did
FOLLOWED = pytest.StashKey[bool]()  # whether the next test shares a page, too, or is skipped


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    if call.when == "call":
        item.stash[PASSED] = call.excinfo is None
    yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    marks = ("same_page", "skip")
    item.stash[FOLLOWED] = nextitem is not None and any(map(nextitem.get_closest_marker, marks))


@pytest.fixture(autouse=True)
def no_run_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A run that a test leaves would hold up the next one. After a test that has failed it is
    stopped; one that has passed in a browser leaves none. Torn down after the page, being set up
    before it.
    """
    yield
    values = list(request.node.funcargs.values())
    pages = [value for value in values if isinstance(value, Browser)]
    servers = [value for value in values if isinstance(value, ComfyServer)]
    for server in {*servers, *(page.server for page in pages)}:
        if not server.is_up:
            continue
        has_passed = request.node.stash.get(PASSED, False)
        if has_passed and (not pages or server.is_idle_within(60)):
            continue
        server.end_runs()
        assert not has_passed, "a run goes on after the test"


@pytest.fixture(scope="session")
def kept_page() -> Iterator[dict[str, Browser]]:
    """The page that the last test has left to the next one, if any, by what it was asked for."""
    kept: dict[str, Browser] = {}
    yield kept
    for page in kept.values():
        page.__exit__()


def opened_page(request: pytest.FixtureRequest, asked: str) -> Browser:
    server, _, renderer = asked.partition(", ")
    options = {"vue_nodes": bool(renderer), "size": (1600, 1200), "any_source": True}
    return Browser(request.getfixturevalue(server), **options).__enter__()


@pytest.fixture
def browser(request: pytest.FixtureRequest, kept_page: dict[str, Browser]) -> Iterator[Browser]:
    """A page of the editor. The parameter names the server and may add ", Nodes 2.0"; without one
    it is the newest.

    Tests with the mark `same_page` share one, with an empty workflow, while they follow each other:
    an idle page takes a fifth of a processor. One in which a test has failed is closed.
    """
    asked = getattr(request, "param", "comfy_latest, Nodes 2.0")
    shared = request.node.get_closest_marker("same_page") is not None
    page = kept_page.pop(asked, None) if shared else None
    for other in kept_page.values():
        other.__exit__()
    kept_page.clear()
    if page is None:
        page = opened_page(request, asked)
    else:
        page.begin_again()
    yield page
    errors = (page.page_errors, page.alerts)
    stash = request.node.stash
    if shared and stash.get(FOLLOWED, False) and stash.get(PASSED, False) and errors == ([], []):
        page.rest()
        kept_page[asked] = page
    else:
        page.__exit__()
    assert errors == ([], [])


@pytest.fixture
def tiny(comfy: ComfyServer) -> ComfyServer:
    """The server with small native files."""
    native_files(comfy)
    return comfy
