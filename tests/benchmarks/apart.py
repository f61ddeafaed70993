"""Measure in another process, so that a kernel which reads where it must not ends nothing but its
own measurement.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

MOST_SECONDS = 150.0  # of one measurement
TOO_LATE = "not measured: the time for all was over"
ENDED = "its process ended with "


def apart(seconds: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns in a process of its own; why there is nothing where that failed or
    took longer than so many seconds.
    """
    if seconds <= 0:
        return not_available(TOO_LATE)
    fresh = get_context("spawn")
    receiver, sender = fresh.Pipe(duplex=False)
    process = fresh.Process(target=_send, args=(sender, function, arguments))
    process.start()
    sender.close()  # the process has its own, so that the pipe ends with it
    try:
        late = not_available(f"stopped after {seconds:.0f} s")
        return pickle.loads(receiver.recv_bytes()) if receiver.poll(seconds) else late
    except EOFError:
        process.join()
        return not_available(f"{ENDED}{process.exitcode}; what it said is above, or in log.txt")
    finally:
        process.kill()
        process.join()


def _send(sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        found = function(*arguments)
    except Exception as error:
        found = refusal(error, ENDED)
    sender.send_bytes(pickle.dumps(found))


def not_available(reason: str) -> dict[str, str]:
    """What stands in place of a measurement."""
    return {"not_available": reason}


def refusal(error: Exception, before: str = "") -> dict[str, str]:
    """The same for an exception that is being handled."""
    line = (str(error).strip().splitlines() or [""])[0][:160]
    return {
        "not_available": f"{before}{type(error).__name__}: {line}",
        "traceback": traceback.format_exc(),
    }


def tell(line: str) -> None:
    """Print a line at once, for those who watch a long run."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
