"""Takes: a seed before a prompt re-rolls the video from there on, in the run folder that holds all
takes.
"""

import json

import pytest
import torch
from headforcing.cli.cli import main
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.files import lock, unlock
from headforcing.headforcing_core.runs.folder import RunFolder
from headforcing.headforcing_core.runs.stored import find_video, stored_videos
from headforcing.headforcing_core.runs.takes import (
    Label,
    pictured_blocks,
    prune,
    read_label,
    remove_take,
    take_bytes,
    thumbnail,
    write_label,
)
from toy_renders import Render

SIX = ("a red ball", "a blue cube", "a pink star", "a yellow ring", "a green cone", "a white disc")


def story(**tags):
    """Six scenes of two blocks, with tags such as `scene_4="[seed 7]"`."""
    return "\n".join(
        f"0:{1.5 * n:04.1f} {tags.get(f'scene_{n + 1}', '')} {text}" for n, text in enumerate(SIX)
    )


def six(backbone, folder, **tags):
    return Render(backbone, folder, story(**tags), seed=3)


def test_a_seed_holds_until_the_next_one_and_on_the_first_prompt_it_is_that_of_the_render(
    backbone, tmp_path
):
    plain = six(backbone, tmp_path)
    rolled = six(backbone, tmp_path, scene_3="[seed 7]", scene_5="[seed 3]")
    assert [row.seed for row in rolled.plan.rows] == [3] * 4 + [7] * 4 + [3] * 5
    assert (
        six(backbone, tmp_path, scene_1="[seed 3]", scene_4="[seed 3]").keys
        == plain.keys
        != rolled.keys
    )
    take = Render(backbone, tmp_path, story(scene_4="[seed 7]"), start=torch.zeros(6, 16, 8, 8))
    assert [row.seed for row in take.plan.rows] == [3] * (2 + 6) + [7] * 6
    rolled = six(backbone, tmp_path, scene_1="[seed 7]")
    assert rolled.setup == plain.setup
    assert torch.equal(rolled.straight(), Render(backbone, tmp_path, story(), seed=7).straight())


# --- numbers, and the list


def numbers(folder):
    return {video.name: video.take.number for video in stored_videos(folder)}


def test_takes_of_a_story_are_numbered_as_they_were_begun_whatever_is_rendered_again(
    backbone, tmp_path
):
    """Seed and length make no other story, though a run folder of its own; another first prompt
    does.
    """
    takes = [six(backbone, tmp_path), six(backbone, tmp_path, scene_6="[seed 7]")]
    takes += [
        Render(backbone, tmp_path, story(), seed=4),
        Render(backbone, tmp_path, story(), seed=5, seconds=3.0),
    ]
    names = [f"{take.setup[:16]}/{take.keys[-1][:16]}" for take in takes]
    for take in takes[:3]:
        take.go(stop_after=1)
    begun = {video.take.number: video.take.begun for video in stored_videos(tmp_path)}
    for take in (
        takes[1],
        takes[0],
        takes[3],
        takes[2],
        other := Render(backbone, tmp_path, "a white disc", seed=3),
    ):
        take.go(stop_after=1)
    expected = {name: number for number, name in enumerate(names, 1)}
    assert numbers(tmp_path) == expected | {f"{other.setup[:16]}/{other.keys[-1][:16]}": 1}
    after = {
        video.take.number: video.take.begun
        for video in stored_videos(tmp_path)
        if video.name in names
    }
    assert begun.items() <= after.items() and after[4] > 1e9
    next(tmp_path.glob(f"*/video-{takes[0].keys[-1][:16]}-*")).unlink()
    six(backbone, tmp_path, scene_6="[seed 10]").go(stop_after=1)
    assert sorted(numbers(tmp_path).values()) == [1, 2, 3, 4, 5], (
        "no take gets the number of another that is there"
    )


def test_takes_of_a_workflow_are_numbered_among_themselves_and_keep_their_numbers(tmp_path):
    def begin(key: str, workflow: str) -> None:
        about = {
            "prompts": ["a red ball"],
            "starts_seconds": [0.0],
            "video_frames": 9,
            "workflow": workflow,
        }
        with RunFolder(tmp_path, "0" * 32, about) as folder:
            folder.save_video([key * 32], about)

    def numbered() -> dict[str, int]:
        return {video.keys[0][0]: video.take.number for video in stored_videos(tmp_path)}

    for key, workflow in (("1", ""), ("2", "A"), ("3", "A"), ("4", "B"), ("5", ""), ("3", "A")):
        begin(key, workflow)
    assert numbered() == {"1": 1, "2": 1, "3": 2, "4": 1, "5": 2}
    remove_take(next(video for video in stored_videos(tmp_path) if video.keys == ["2" * 32]))
    assert numbered() == {"1": 1, "3": 2, "4": 1, "5": 2}
    begin("3", "C")  # made again in another workflow, whose first take it is
    assert numbered()["3"] == 1


def test_the_command_line_lists_takes(backbone, tmp_path, capsys):
    rolled = six(backbone, tmp_path, scene_4="[seed 7]")
    six(backbone, tmp_path).go()
    rolled.go(stop_after=8)
    assert main(["runs", "takes", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["take", "date", "length", "size", "name", "prompts"]
    assert lines[2].startswith("1 ") and " 0:09 " in lines[2] and lines[2].endswith("  a red ball")
    name = f"{rolled.setup[:16]}/{rolled.keys[-1][:16]}"
    assert lines[1].startswith("2 ") and " 0:05 of 0:09 " in lines[1] and f" {name} " in lines[1]
    assert lines[1].endswith("  a red ball / [seed 7] a yellow ring")
    assert main(["runs", "takes", str(tmp_path), "--json"]) == 0
    newest, _ = json.loads(capsys.readouterr().out)["takes"]
    expected = {
        "take": 2,
        "name": name,
        "finished": 8,
        "blocks": 13,
        "seeds": [None, None, None, 7, None, None],
    }
    assert newest.items() >= (expected | {"prompts": list(SIX)}).items()
    (empty := tmp_path / "empty").mkdir()
    assert main(["runs", "takes", str(empty)]) == 0 and "no runs" in capsys.readouterr().out


def test_one_video_is_found_by_its_name_and_by_nothing_else(backbone, tmp_path):
    six(backbone, tmp_path).go(stop_after=1)
    (video,) = stored_videos(tmp_path)
    found = find_video(tmp_path, video.name)
    assert (found.name, found.keys, found.take) == (video.name, video.keys, video.take)
    folder, key = video.name.split("/")
    for name in (
        "",
        key,
        folder,
        f"{folder}/",
        f"../{tmp_path.name}/{video.name}",
        f"./{video.name}",
        f"{key}/{key}",
    ):
        assert find_video(tmp_path, name) is None


def test_pictures_are_made_once_kept_in_the_run_folder_and_made_again_where_damaged(
    backbone, tmp_path
):
    rolled = six(backbone, tmp_path, scene_4="[seed 7]")
    drawn = []

    def draw(latents):
        drawn.append(tuple(latents.shape))
        return b"a picture of %d" % len(drawn)

    six(backbone, tmp_path).go()
    rolled.go(stop_after=8)
    second, first = stored_videos(tmp_path)
    assert (pictured_blocks(first), pictured_blocks(second)) == ([0, 3, 6, 9, 12], [0, 3, 6])
    pictures = [thumbnail(first, block, draw) for block in pictured_blocks(first)]
    assert pictures == [b"a picture of %d" % number for number in (1, 2, 3, 4, 5)] and set(
        drawn
    ) == {(16, 8, 8)}
    shared = [thumbnail(second, block, draw) for block in pictured_blocks(second)]
    assert shared == [*pictures[:2], b"a picture of 6"], "two of the blocks that both have"
    assert thumbnail(second, 9, draw) is None, "a block that is not finished"
    next(first.folder.glob(f"thumbnail-{first.keys[0][:16]}-*.jpg")).write_bytes(b"something else")
    assert thumbnail(first, 0, draw) == b"a picture of 7" == thumbnail(second, 0, draw)
    assert prune(tmp_path, 0).removed == [first.folder], "thumbnails go with their folder"


def test_a_take_that_is_removed_leaves_every_block_of_the_others(backbone, tmp_path):
    first = six(backbone, tmp_path)
    second = six(backbone, tmp_path, scene_4="[seed 7]")
    shared = first.plan.timeline.segments[3].start_block
    expected = first.go()
    second.go()
    folder = tmp_path / first.setup[:16]
    key = first.keys[-1]
    write_label(folder, key, title="the red one", starred=True)
    write_label(folder, key, file="video/red_00001_.mp4")
    rolled, plain = takes = stored_videos(tmp_path)
    written = Label("the red one", True, "video/red_00001_.mp4")
    assert read_label(folder, key) == written and read_label(folder, second.keys[-1]) == Label()
    sizes = [take_bytes(take, takes) for take in takes]
    assert all(every > own > 0 for every, own in sizes)

    held = lock(folder / "lock")
    with pytest.raises(HeadForcingError, match="being rendered"):
        remove_take(rolled)
    unlock(held)
    assert remove_take(rolled) == sizes[0][1]
    (left,) = stored_videos(tmp_path)
    assert (left.name, left.finished, read_label(folder, key)) == (
        plain.name,
        first.plan.new_blocks,
        written,
    )
    assert torch.equal(first.go(), expected) and first.reused == first.plan.new_blocks
    second.go(stop_after=shared)
    assert second.reused == shared, "the blocks that both had"

    half = stored_videos(tmp_path)[0]
    note = next(folder.glob(f"video-{key[:16]}-*"))
    assert half.name == rolled.name
    note.write_bytes(b"{}")
    with pytest.raises(HeadForcingError, match="until then no take"):
        remove_take(half)
    note.unlink()
    remove_take(half)
    assert not folder.exists(), "the last one takes its folder with it"
