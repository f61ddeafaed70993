"""What is noted about a video: times that fit the file, and the backend's name."""

import json
import re
from pathlib import Path

import pytest
import torch
from headforcing.headforcing_core.model.attention import attention_function, explicit, sdpa
from headforcing.headforcing_core.model.attention_backends import GroupedAttention
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.headforcing_core.names import VERSION
from headforcing.headforcing_core.render.job import about_video, file_tags
from headforcing.headforcing_core.render.options import RenderOptions
from headforcing.headforcing_core.render.render import attention_name
from headforcing.headforcing_core.report.video_tags import read_tags
from headforcing.headforcing_core.timeline.timeline import parse_timeline


@pytest.fixture
def about():
    timeline = parse_timeline("0:00 a red ball\n0:05 [flush] a pink star", 10.0)
    plan = RenderOptions().plan(WanConfig(), timeline)
    return about_video(plan, "head_forcing", 7, "Wan21")


def test_the_version_is_that_of_the_package(repo_root: Path):
    assert re.search(rf'^version = "{re.escape(VERSION)}"$', (repo_root / "pyproject.toml").read_text(), re.MULTILINE)


@pytest.mark.parametrize("fps", [None, 8.0])
def test_what_is_noted_is_plain_json_that_the_tag_of_a_file_tells_with_times_of_that_file(about, fps):
    assert json.loads(json.dumps(about)) == about
    assert about["starts_seconds"] == [0, 81 / 16] and about["switches"] == ["reset", "flush"]
    found = read_tags(file_tags(about, fps), fps or 16.0)
    assert (found.method, found.seed, found.frames_per_block) == ("head_forcing", 7, 3)
    assert found.prompts == ((0.0, "a red ball"), (81 / (fps or 16), "a pink star"))


def test_a_backend_has_its_own_name_or_that_of_the_choice():
    assert attention_name(explicit, "explicit") == "explicit"
    assert attention_name(attention_function("auto", "cpu", torch.float32, 32), "auto") == "sdpa"
    named = GroupedAttention(sdpa, "the host's")
    assert attention_name(named, "auto") == "the host's"
