"""Whatever stops a render, and wherever: the error comes through, nothing stays behind, the next run completes it.

One process goes through stages and kinds of errors, one of the older version through some: the class of a cancel is an
Exception there and a BaseException in the newer.
"""

import os
from pathlib import Path

import pytest
from comfy_harness import run_in_comfy
from comfy_setup import FLOOR, NEWEST, installed

pytestmark = pytest.mark.comfy

PROGRAM = Path(__file__).parent / "programs" / "faults.py"


@pytest.mark.parametrize("version", [NEWEST, FLOOR])
def test_a_render_that_is_stopped_leaves_nothing_behind_and_is_completed_by_the_next(version: str):
    some = ["clean_pass", "decode"] if version == FLOOR and not os.environ.get("HEADFORCING_EVERYTHING") else []
    told = run_in_comfy(installed(version), PROGRAM, *some).split()[-2:]
    assert told == [str(3 if some else 11 + 6 + 4), str(version == FLOOR)]
