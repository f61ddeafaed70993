"""Names of files that the nodes write, when two servers share an output folder; without ComfyUI."""

import importlib.util
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pytest
from headforcing.headforcing_core.files import replacing

FOLDERS = Path(__file__).resolve().parents[2] / "nodes" / "host" / "folders.py"


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """`nodes/host/folders.py` on a ComfyUI of which only the paths are there."""
    host = ModuleType("folder_paths")

    def get_save_image_path(prefix, output, width, height):
        """The counter as ComfyUI has it: one more than the highest number of the files that are there."""
        folder, name = os.path.split(os.path.join(output, prefix))
        os.makedirs(folder, exist_ok=True)
        numbers = [file[len(name) + 1 :].split("_")[0] for file in os.listdir(folder) if file.startswith(f"{name}_")]
        counter = max((int(number) for number in numbers if number.isdecimal()), default=0) + 1
        return folder, name, counter, os.path.dirname(prefix), prefix

    vars(host).update(
        folder_names_and_paths={},
        models_dir=str(tmp_path / "models"),
        get_output_directory=lambda: str(tmp_path / "output"),
        get_save_image_path=get_save_image_path,
    )
    monkeypatch.setitem(sys.modules, "folder_paths", host)
    spec = importlib.util.spec_from_file_location("headforcing.nodes.host.folders", FOLDERS)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def write(path):
    with replacing(path) as temporary:
        temporary.write_text("video")


def test_two_files_that_are_written_at_once_get_two_numbers(folders):
    with folders.output_file("video/x", ".mp4", 64, 64) as one, folders.output_file("video/x", ".mp4", 64, 64) as other:
        assert (one.name, other.name) == ("x_00001_.mp4", "x_00002_.mp4")
        write(other.path)
    with folders.output_file("video/x", ".mp4", 64, 64) as next_one:
        assert next_one.label == "video/x_00003_.mp4"
    assert [path.name for path in one.path.parent.iterdir()] == ["x_00002_.mp4"]


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


def test_no_number_is_taken_whose_name_is_a_link_to_another_file(folders, tmp_path):
    folder, loaded = tmp_path / "output", tmp_path / "loaded.mp4"
    folder.mkdir()
    loaded.write_text("loaded")
    (folder / "x_00001_.mp4").symlink_to(loaded)
    (folder / "x_00002_.mp4").hardlink_to(loaded)
    with folders.output_file("x", ".mp4", 64, 64) as file:
        write(file.path)
    assert file.name == "x_00003_.mp4" and loaded.read_text() == "loaded"


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
