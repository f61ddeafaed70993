"""What malformed input may cost, and how it is refused."""

import contextlib
import copy
import io
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from headforcing.cli import cli
from headforcing.headforcing_core.errors import MAX_MESSAGE, HeadForcingError
from peak_memory import peak_bytes

MOST_SECONDS = 5.0
MOST_BYTES = 1_000_000_000


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """The block takes at most 5 s of a CPU and raises the peak of the process's memory by at most 1
    GB.
    """
    seconds = time.process_time()
    peak = peak_bytes()
    yield
    assert time.process_time() - seconds < MOST_SECONDS
    assert peak_bytes() - peak < MOST_BYTES


def refusal(use: Callable[[], Any]) -> str:
    """The message with which input is refused within the bounds."""
    with bounded(), pytest.raises(HeadForcingError) as caught:
        use()
    message = str(caught.value)
    assert message.isprintable() and len(message) <= MAX_MESSAGE
    return message


def run(*argv: str) -> tuple[int, str]:
    """Exit code and stderr of a command."""
    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        try:
            return cli.main(argv), err.getvalue()
        except SystemExit as exit:  # argparse
            assert isinstance(exit.code, int)
            return exit.code, err.getvalue()


def damaged(good: bytes, rng: random.Random, number: int) -> bytes:
    """The bytes cut, or some of them replaced, more often near the beginning and the end."""
    if number % 5 == 0:
        return good[: rng.randrange(len(good))]
    bad = bytearray(good)
    for _ in range(rng.choice([1, 2, 5, 30])):
        near = rng.random()
        reach = min(len(bad), 1500)
        place = rng.randrange(reach) if near < 0.4 else len(bad) - 1 - rng.randrange(reach)
        bad[place if near < 0.8 else rng.randrange(len(bad))] = rng.choice(
            [0, 127, 255, rng.randrange(256)]
        )
    return bytes(bad)


_MISSING = object()
_HOSTILE: list[Any] = [
    *(_MISSING, None, True, -1, 0, 1.5, 2**63, 10**400, 1e308, 1e-320, float("nan"), float("inf")),
    *("", "x", "9" * 5000, "\0", "\ud800", "a\nb\r\x1b[2J", "../../etc/passwd", "a" * 100_000),
    *([], [1], [None], [[[[]]]], ["a"] * 999, {}, {"x": 1}, {"text": {"toString": None}}),
]


def hostile(good: Any, rng: random.Random, count: int) -> list[Any]:
    """Copies of JSON, in each a value anywhere is another one or left out."""
    tries = []
    for place in places(good):
        for value in _HOSTILE:
            if place or value is not _MISSING:
                tries.append((place, value))
    return [changed(good, *each) for each in rng.sample(tries, min(count, len(tries)))]


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there is a value in JSON, of a list its first two."""
    yield place
    names: Any = ()
    if isinstance(value, dict):
        names = value
    elif isinstance(value, list):
        names = range(len(value[:2]))
    for name in names:
        yield from places(value[name], (*place, name))


def changed(good: Any, place: tuple[Any, ...], value: Any) -> Any:
    """A copy of JSON with this value at a place."""
    if not place:
        return value
    whole = copy.deepcopy(good)
    part = whole
    for name in place[:-1]:
        part = part[name]
    if value is _MISSING:
        del part[place[-1]]
    else:
        part[place[-1]] = value
    return whole
