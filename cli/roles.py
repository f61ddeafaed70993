"""The roles of a model's heads in a command that renders: those of an earlier render, or measured
now.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import Tensor
from tqdm import tqdm

from ..headforcing_core.files import cache_folder
from ..headforcing_core.plan.request import RenderJob
from ..headforcing_core.plan.resources import Needs
from ..headforcing_core.render.measured_roles import (
    WAITING,
    MeasuredRoles,
    Measuring,
    roles_files,
    setup_for,
    with_measured_roles,
)
from ..headforcing_core.rollout.loop import WanVideoModel
from .loaded import LoadedModel


def roles_folders(args: Namespace) -> tuple[Path, ...]:
    """The folders that keep measured roles: that of `--found-profiles`, else one in the user's
    cache; and where it cannot be written, that of `--runs`.
    """
    cache = cache_folder()
    folders = (args.found_profiles or (cache and cache / "profiles"), args.runs)
    return tuple(folder for folder in folders if folder is not None)


def with_roles(
    job: RenderJob, loaded: LoadedModel, needs: Needs, folders: Sequence[Path]
) -> tuple[RenderJob, str]:
    """The job with the roles of the model's heads, and a line for the report, empty if they are
    known. Else they are measured now, which takes no more memory than the `needs` of the render.
    """
    if job.plan.heads.auto is None:
        return job, ""
    machine = loaded.machine
    place = machine.place(job.plan)
    with machine.explained(), _Bar(setup_for(job, needs).steps, machine.quiet) as bar:
        job, found = with_measured_roles(
            job,
            WanVideoModel(loaded.backbone, machine.dtype, machine.device),
            Measuring(
                machine.device,
                place.attention,
                needs,
                # processes that render together measure together: none waits for a file
                folders if machine.is_alone else (),
                on_step=bar.step,
                while_waiting=bar.wait,
            ),
        )
    if found is None:
        return job, ""
    if machine.is_alone:
        return job, found.line
    found = place.share(found)
    if machine.leads and isinstance(found, MeasuredRoles):
        found = found.keep(roles_files(folders, job.request.weights))
    return job.with_profile(found.profile), found.line


class _Bar(ExitStack):
    """Shows in the terminal that heads are measured, or that another process does so."""

    def __init__(self, steps: int, quiet: bool):
        super().__init__()
        self._steps = steps
        self._quiet = quiet
        self._said = False
        self._bar: Any = None

    def step(self, block: int, step: int, latents: Tensor | None) -> None:
        """Count a step."""
        if self._bar is None:  # not before: another process may be waited for
            self._bar = self.enter_context(
                tqdm(total=self._steps, unit="step", desc="measuring heads", disable=self._quiet)
            )
        self._bar.update(latents is not None)

    def wait(self) -> None:
        """Say, once, that another process is waited for."""
        if not self._said and not self._quiet:
            tqdm.write(WAITING, file=sys.stderr)
        self._said = True
