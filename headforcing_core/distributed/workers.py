"""Workers run independent jobs: their interface, and this process as the only one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..errors import HeadForcingError

log = logging.getLogger(__name__)

Job = TypeVar("Job")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Outcome(Generic[Value]):
    """The result of one job: its value, or its error."""

    name: str
    value: Value | None = None
    error: Exception | None = None

    def get(self) -> Value:
        """The value; raises the error of a job that failed, with the job's name."""
        if isinstance(self.error, HeadForcingError):
            raise HeadForcingError(f"{self.name}: {self.error}") from self.error
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


Shared = Callable[[], Value]
"""Returns a value that many jobs refer to and that is sent to each machine once."""


class Workers:
    """Runs jobs one after the other in this process; the interface of all workers. Use as a context
    manager.

    Attributes:
        remote: whether jobs may run on other machines than this one.
        parallel: whether jobs may run at the same time.
    """

    remote = parallel = False

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def share(self, value: Value) -> Shared[Value]:
        """Share a value among any number of jobs."""
        return lambda: value

    def run(
        self, function: Callable[[Job], Value], jobs: Mapping[str, Job]
    ) -> Iterator[Outcome[Value]]:
        """Call a module's function with each job, jobs by name; yields outcomes as they come.

        A job that fails does not end the others; who stops before the last outcome cancels the
        rest.
        """
        for name, job in jobs.items():
            try:
                outcome = Outcome(name, function(job))
            except Exception as error:
                if not isinstance(error, (HeadForcingError, OSError)):  # nobody expected it
                    log.error("Head Forcing: %s failed", name, exc_info=error)
                outcome = Outcome(name, error=error)
            yield outcome

    def describe(self) -> str:
        """Describe where the jobs run, in a few words."""
        return "one after the other"
