"""ComfyUI for the tests: servers and their environments, shared by all tests of a process."""

from collections.abc import Iterator

import pytest
from comfy_browser import Browser
from comfy_harness import ComfyServer
from comfy_setup import FLOOR, LATEST_FRONTEND, NEWEST, installed
from headforcing.headforcing_core.head_profiles.profile import HeadProfile
from tiny_checkpoints import FAKE_COND_NODE, FAKE_NODES_FILE, wan_t2v, wan_vae


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


@pytest.fixture
def browser(request: pytest.FixtureRequest) -> Iterator[Browser]:
    """A page of the editor. The parameter names the server and may add ", Nodes 2.0"; without one
    it is the newest.
    """
    server, _, renderer = getattr(request, "param", "comfy_latest, Nodes 2.0").partition(", ")
    with Browser(
        request.getfixturevalue(server),
        vue_nodes=bool(renderer),
        size=(1600, 1200),
        any_source=True,
    ) as page:
        yield page
        assert (page.page_errors, page.alerts) == ([], [])


@pytest.fixture
def tiny(comfy: ComfyServer) -> ComfyServer:
    """The server with small native files: model (two layouts), LoRA, VAE, head profile."""
    profile = comfy.model_path("head_profiles", "hf_tiny_2x2.json")
    if not profile.exists():
        wan_t2v(comfy.model_path("diffusion_models", "hf_tiny.safetensors"))
        wan_t2v(
            comfy.model_path("diffusion_models", "hf_tiny_published.pt"), layout="generator_ema"
        )
        wan_vae(comfy.model_path("vae", "hf_tiny_vae.safetensors"))
        profile.write_text(
            HeadProfile("tiny", 2, 2, (("local", "anchor"), ("memory", "memory"))).to_json()
        )
    return comfy
