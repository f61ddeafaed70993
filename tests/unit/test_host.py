"""The nodes' host folder without ComfyUI: names of files where two servers share a folder, and the queued graph."""

import os
import sys
import time
from contextlib import ExitStack
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from headforcing.headforcing_core.files import replacing
from host_alone import host_module


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """`nodes/host/folders.py` on a ComfyUI of which only the paths are there."""

    def get_save_image_path(prefix, output, width, height):
        """The counter as ComfyUI has it: one more than the highest number of the files that are there."""
        folder, name = os.path.split(os.path.join(output, prefix))
        os.makedirs(folder, exist_ok=True)
        numbers = [file[len(name) + 1 :].split("_")[0] for file in os.listdir(folder) if file.startswith(f"{name}_")]
        counter = max((int(number) for number in numbers if number.isdecimal()), default=0) + 1
        return folder, name, counter, os.path.dirname(prefix), prefix

    host = ModuleType("folder_paths")
    vars(host).update(
        folder_names_and_paths={},
        models_dir=str(tmp_path / "models"),
        get_output_directory=lambda: str(tmp_path / "output"),
        get_save_image_path=get_save_image_path,
    )
    monkeypatch.setitem(sys.modules, "folder_paths", host)
    return host_module("folders")


def write(path):
    with replacing(path) as temporary:
        temporary.write_text("video")


def test_two_files_that_are_written_at_once_get_two_numbers_and_none_is_that_of_a_link(folders, tmp_path):
    with folders.output_file("video/x", ".mp4", 64, 64) as one, folders.output_file("video/x", ".mp4", 64, 64) as other:
        assert (one.name, other.name) == ("x_00001_.mp4", "x_00002_.mp4")
        write(other.path)
    loaded = tmp_path / "loaded.mp4"
    loaded.write_text("loaded")
    other.path.with_name("x_00003_.mp4").symlink_to(loaded)
    other.path.with_name("x_00004_.mp4").hardlink_to(loaded)
    with folders.output_file("video/x", ".mp4", 64, 64) as next_one:
        write(next_one.path)
    assert next_one.label == "video/x_00005_.mp4" and loaded.read_text() == "loaded" and not one.path.exists()


def test_a_video_that_grows_in_two_servers_has_two_names_and_one_when_it_is_made_again(folders):
    with ExitStack() as stack:
        one, other = (stack.enter_context(folders.growing_file("x", "0123abcd", 64, 64)) for _ in range(2))
        assert (one.name, other.name) == ("x_v0123abcd.part.mp4", "x_v0123abcd-2.part.mp4")
        one.path.write_text("video")
        other.path.write_text("video")
        with folders.output_file("x", ".mp4", 64, 64) as numbered:
            assert numbered.name == "x_00001_.mp4", "ComfyUI does not count from the name of a growing file"
    with folders.growing_file("x", "0123abcd", 64, 64) as again:
        assert again == one and again.path.exists()


def test_growing_videos_that_nobody_went_on_with_for_a_day_are_removed(folders):
    kept = ["x_vffffffff.part.mp4", "y_v0123abcd.part.mp4", "x_v0123abcd.mp4", "x_vacation.part.mp4"]
    with folders.growing_file("x", "aaaaaaaa", 64, 64) as file:
        folder = file.path.parent
    for name in (*kept, "x_v0123abcd.part.mp4", "x_v0123abcd-2.part.mp4"):
        (folder / name).write_text("video")
        age = 3600 if name == kept[0] else 25 * 3600
        os.utime(folder / name, (time.time() - age,) * 2)
    with folders.growing_file("x", "aaaaaaaa", 64, 64):
        pass
    assert sorted(path.name for path in folder.iterdir()) == sorted(kept)


STORY = {"prompts": "a", "seconds": 7.0, "switch": "reset"}


def hidden(prompt: Any) -> SimpleNamespace:
    """What a sampler of this graph sees."""
    return SimpleNamespace(prompt=prompt, unique_id="sampler", extra_pnginfo=None)


def two_timelines() -> dict[str, Any]:
    """A graph whose `positive` comes through another node from one of two."""
    return {
        "first": {"class_type": "Timeline", "inputs": STORY | {"clip": ["loader", 0]}},
        "second": {"class_type": "Timeline", "inputs": STORY | {"prompts": "b", "seconds": ["length", 0]}},
        "apart": {"class_type": "Timeline", "inputs": STORY},
        "choice": {"class_type": "Switch", "inputs": {"off": ["first", 0], "on": ["second", 0]}},
        "sampler": {"class_type": "Sampler", "inputs": {"positive": ["choice", 0], "seed": 1}},
    }


def test_the_node_that_a_value_comes_from_is_the_one_with_the_values_it_ran_with():
    find, graph = host_module("queued_graph").find_source, two_timelines()
    other, cut = STORY | {"prompts": "b", "seconds": 9.0}, {"sampler": {"inputs": {"positive": ["gone", 0]}}}
    for prompt, name, values, source in (
        (graph, "positive", STORY, "first"), (graph, "positive", other, "second"), (graph, "seed", STORY, None),
        (graph, "positive", STORY | {"prompts": "c"}, None), (None, "positive", STORY, None),
        (cut, "positive", STORY, None), ({"sampler": {}}, "positive", STORY, None),
    ):  # fmt: skip
        assert find(hidden(prompt), name, "Timeline", values) == source


def test_the_graph_and_the_workflow_are_told_what_has_changed_and_nothing_else():
    seen, rewrite = hidden({}), host_module("queued_graph").rewrite
    values, named = ["kept", "a", 7, "reset", None], {"prompts": "a", "seconds": 7, "more": 1}
    inner = {"id": 5, "type": "Timeline", "widgets_values": values, "widgets_values_named": named}
    outer = {"id": 12, "type": "graph"}
    workflow = {"nodes": [outer], "definitions": {"subgraphs": [{"id": "graph", "nodes": [inner]}]}}
    seen.extra_pnginfo = {"workflow": workflow}
    seen.prompt["12:5"] = {"inputs": STORY | {"clip": ["loader", 0]}}
    rewrite(seen, "12:5", STORY, STORY | {"prompts": "b", "seconds": 9.0})
    assert seen.prompt["12:5"]["inputs"] == {"prompts": "b", "seconds": 9.0, "switch": "reset", "clip": ["loader", 0]}
    assert values == ["kept", "b", 9.0, "reset", None] and named == {"prompts": "b", "seconds": 9.0, "more": 1}
    rewrite(seen, "gone", STORY, STORY | {"prompts": "b"})  # of a graph that a script queued
