"""The implementation of all operations of the kernels, forced."""

from collections.abc import Iterator
from contextlib import contextmanager

from headforcing.kernels import dispatch


@contextmanager
def using(choice: str) -> Iterator[None]:
    """Force `reference` or `triton` on any device, or use `auto`."""
    before = dispatch.choice
    dispatch.choice = choice
    try:
        yield
    finally:
        dispatch.choice = before
