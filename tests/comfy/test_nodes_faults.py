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
    out = run_in_comfy(installed(request.param), PROGRAM, *some)
    found = json.loads(out.strip().splitlines()[-1])
    assert found["base"] == (request.param == FLOOR), "both classes of a cancel are tested"
    assert len(of_kind(found["results"], "cancel")) == (3 if some else 9 + 2)
    return found["results"]


def of_kind(found: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    return {name: result for name, result in found.items() if f" {kind} " in name}


def test_a_cancel_at_any_stage_comes_through(found: dict[str, Any]):
    for name, result in of_kind(found, "cancel").items():
        assert result["raised"] == "InterruptProcessingException", (name, result)


def test_an_error_while_sampling_comes_through_and_one_of_the_video_does_not(found: dict[str, Any]):
    for name, result in of_kind(found, "oom").items():
        video = name.startswith(("decode", "writer", "last_of_video"))
        assert (result["raised"] is None) == video, (name, result)
        assert (result["failure"] is not None) == video, (name, result)


def test_a_full_disk_is_no_success_and_is_said_first(found: dict[str, Any]):
    """While blocks can be stored all are made, so that the next run writes the video alone."""
    for name, result in of_kind(found, "disk").items():
        assert result["raised"], (name, result)
        if not name.startswith("storing"):  # where the error is the injected one
            assert result["message"].startswith("No space left") and result["blocks"] == 5, (name, result)


def test_nothing_stays_behind(found: dict[str, Any]):
    for name, result in found.items():
        if name != "message":
            assert result["made"] > 0
            assert (result["alive"], result["left"], result["threads"], result["partials"]) == (0, [], [], []), (
                name,
                result,
            )


def test_what_was_finished_is_kept_and_said(found: dict[str, Any]):
    for name, result in found.items():
        if name == "message" or result["raised"] is None:
            continue
        finished = {"mid_step": 3, "clean_pass": 2, "cache_update": 3, "storing": 3, "decode": 3, "writer": 3}
        stage = name.split()[0]
        at_least = finished.get(stage, 5 if stage == "last_of_video" else 0)
        assert result["blocks"] >= at_least, (name, result)
        assert result["reused"] == result["blocks"], (name, result)
        if stage != "before_block_0":
            assert "stopped in block" in result["said"], (name, result)


def test_the_next_run_completes_the_same_video(found: dict[str, Any]):
    for name, result in found.items():
        if name != "message":
            assert result["same"] and result["saved"], (name, result)


def test_running_out_of_memory_is_explained_with_numbers_and_stays_such_an_error(found: dict[str, Any]):
    message = found["message"]
    assert message["kind"] and "KV cache" in message["text"] and "queue again to go on" in message["text"]
