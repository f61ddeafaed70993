"""Whatever stops a render, and wherever: the error comes through, nothing stays behind, the next run completes it.

One process goes through stages and kinds of errors, one of the older version through some: the class of a cancel is an
Exception there and a BaseException in the newer.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from comfy_harness import run_in_comfy
from comfy_setup import FLOOR, NEWEST, installed

pytestmark = pytest.mark.comfy

PROGRAM = Path(__file__).parent / "programs" / "faults.py"


@pytest.fixture(scope="module", params=[NEWEST, FLOOR])
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    some = ["clean_pass", "decode"] if request.param == FLOOR and not os.environ.get("HEADFORCING_EVERYTHING") else []
    found = json.loads(run_in_comfy(installed(request.param), PROGRAM, *some).strip().splitlines()[-1])
    assert found["base"] == (request.param == FLOOR), "both classes of a cancel are tested"
    assert sum(" cancel " in name for name in found["results"]) == (3 if some else 9 + 2)
    return found["results"]


def test_an_error_comes_through_at_any_stage_but_one_of_memory_that_ends_the_video_alone(found: dict[str, Any]):
    """While blocks can be stored a full disk ends no render early, so that the next run writes the video alone."""
    for name, result in found.items():
        stage, kind = (*name.split(), "")[:2]
        video = stage in ("decode", "writer", "last_of_video")
        if kind == "cancel":
            assert result["raised"] == "InterruptProcessingException", (name, result)
        elif kind == "oom":
            assert (result["raised"] is None) == video == (result["failure"] is not None), (name, result)
        elif kind == "disk":
            assert result["raised"], (name, result)
            if stage != "storing":  # where the error is the injected one
                assert result["message"].startswith("No space left") and result["blocks"] == 5, (name, result)
    message = found["message"]
    assert message["kind"], "out of memory stays such an error"
    assert "KV cache" in message["text"] and "queue again to go on" in message["text"]


def test_nothing_stays_behind_and_the_next_run_completes_the_same_video_from_what_was_kept(found: dict[str, Any]):
    finished = {"mid_step": 3, "clean_pass": 2, "cache_update": 3, "storing": 3, "decode": 3, "writer": 3}
    finished["last_of_video"] = 5
    for name, result in found.items():
        if name == "message":
            continue
        left = [result[kind] for kind in ("alive", "left", "threads", "partials")]
        assert result["made"] > 0 and left == [0, [], [], []], (name, result)
        assert result["same"] and result["saved"], (name, result)
        if result["raised"] is not None:
            stage = name.split()[0]
            assert result["reused"] == result["blocks"] >= finished.get(stage, 0), (name, result)
            assert stage == "before_block_0" or "stopped in block" in result["said"], (name, result)
