"""Fixtures shared by the tests of renders."""

import pytest
from headforcing.headforcing_core.model.wan import WanModel
from toy_renders import toy_model


@pytest.fixture(scope="session")
def backbone() -> WanModel:
    """Three layers of the toy model, because bits are compared and not pictures."""
    return toy_model(3)
