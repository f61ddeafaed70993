"""Fixtures shared by the tests of renders."""

import signal
from collections.abc import Iterator

import pytest
from headforcing.headforcing_core.model.wan import WanModel
from toy_renders import toy_model


@pytest.fixture(autouse=True)
def handler_of_ctrl_c() -> Iterator[None]:
    """Put back what a command keeps until its process ends."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def backbone() -> WanModel:
    """Three layers of the toy model, because bits are compared and not pictures."""
    return toy_model(3)
