"""Fixtures shared by the tests of the engine."""

import pytest
from headforcing.headforcing_core.model.wan import WanModel
from small_engine import wan


@pytest.fixture(scope="session")
def model() -> WanModel:
    return wan()
