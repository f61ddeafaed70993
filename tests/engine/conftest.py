"""Fixtures shared by the tests of the engine."""

import pytest
from headforcing.headforcing_core.model.wan import WanModel
from headforcing.kernels.dispatch import Operation
from small_engine import wan


@pytest.fixture(scope="session")
def model() -> WanModel:
    return wan()


@pytest.fixture
def fused(monkeypatch) -> list[str]:
    """Has every operation do what it does on a GPU, in plain torch; the names of those that were
    called.
    """
    called = []

    def kernel(self, *arguments, **options):
        called.append(self.name)
        return self.reference(*arguments, **options)

    monkeypatch.setattr(Operation, "usable", lambda *_: True)
    monkeypatch.setattr(Operation, "kernel", kernel)
    return called
