"""Many videos named in a file: what is asked for is checked first, made once, and told in a
table.
"""

import importlib.util
import json

import pytest
from headforcing.cli import batch as batch_command
from headforcing.cli.batch_jobs import read_jobs
from headforcing.cli.cli import main
from headforcing.cli.texts import read_text
from headforcing.headforcing_core.distributed.ray_farm import farm_named
from headforcing.headforcing_core.distributed.workers import Workers
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.files import claimed
from headforcing.headforcing_core.video.writer import VideoWriter

BALL = "a red ball bouncing in the teal plain room"
SHORT = {"demo": True, "seconds": 1, "scale": 1, "device": "cpu", "sigmas": "1", "prompts": BALL}


@pytest.fixture
def batch(tmp_path, capsys):
    """Run `batch` on some lines; returns the exit code and what it says as JSON, or on stderr."""

    def run(*lines, more=()):
        file = tmp_path / "jobs.jsonl"
        file.write_text(
            "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines),
            "utf-8",
        )
        code = main(["batch", str(file), "--out", str(tmp_path / "out"), "--json", *more])
        said = capsys.readouterr()
        return code, json.loads(said.out) if said.out else said.err

    return run


def states(found):
    return {video["name"]: video["state"] for video in found["videos"]}


def test_videos_are_named_after_their_lines_and_made_once(batch, tmp_path):
    lines = [
        {**SHORT, "name": "ball", "seeds": [1, 2], "latents": True},
        {**SHORT, "prompts": "a pink square"},
    ]
    code, found = batch(*lines)
    names = ["ball-seed1", "ball-seed2", "line-0002"]
    assert code == 0 and states(found) == dict.fromkeys(names, "done")
    files = sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_file())
    assert files == [
        "ball-seed1.mp4",
        "ball-seed1.safetensors",
        "ball-seed2.mp4",
        "ball-seed2.safetensors",
        "line-0002.mp4",
    ]
    hashes = [video["files"] for video in found["videos"]]
    assert hashes[0]["ball-seed1.mp4"] != hashes[1]["ball-seed2.mp4"]
    code, again = batch(*lines)
    assert code == 0 and states(again) == dict.fromkeys(names, "finished before")
    assert again["seconds"]["all"] < len(names), "asking again takes less than a second a video"
    (tmp_path / "out" / "ball-seed1.mp4").write_bytes(b"other")
    (tmp_path / "out" / "runs" / "ball-seed2" / "finished.json").write_text("[1]", encoding="utf-8")
    code, third = batch(lines[0], {**lines[1], "prompts": "a cyan cross"})
    assert states(third) == dict.fromkeys(names, "done")
    for video, files in zip(third["videos"][:2], hashes, strict=False):
        assert video["reused_blocks"] == video["blocks"] == 2 and video["files"] == files
    assert third["videos"][2]["reused_blocks"] == 0, "another story is another video"


def test_a_line_that_begins_with_a_video_takes_no_blocks_of_the_same_line_without_it(
    batch, tmp_path
):
    line = {**SHORT, "name": "ball", "seconds": 2}
    assert batch(line)[0] == 0
    clip = (tmp_path / "out" / "ball.mp4").rename(tmp_path / "clip.mp4")
    code, found = batch({**line, "start_video": str(clip), "start_seconds": 0.6})
    assert (
        code == 0 and states(found) == {"ball": "done"} and found["videos"][0]["reused_blocks"] == 0
    )


def test_a_video_that_fails_says_why_and_does_not_end_the_others(batch, tmp_path, monkeypatch):
    """One that is written elsewhere, and one of which only the latents could be written, which
    stay.
    """
    remux = VideoWriter._remux

    def full(writer, *args):
        if writer.settings.path.name == "full.mp4":
            raise HeadForcingError("no space left")
        return remux(writer, *args)

    names = ("held", "full", "free")
    latents = tmp_path / "out" / "full.safetensors"
    lines = [{**SHORT, "name": name, "latents": name == "full"} for name in names]
    with claimed(tmp_path / "out" / "held.mp4"), monkeypatch.context() as patch:
        patch.setattr(VideoWriter, "_remux", full)
        code, found = batch(*lines)
    assert code == 1 and states(found) == {"held": "failed", "full": "failed", "free": "done"}
    held, short, _ = found["videos"]
    assert "another process is writing" in held["why"] and latents.is_file()
    assert f"no space left; the latents are complete: {latents}" in short["why"]
    code, found = batch(*lines)
    assert code == 0 and states(found) == {
        "held": "done",
        "full": "done",
        "free": "finished before",
    }


def test_an_interrupted_batch_says_what_is_finished_and_goes_on(batch, monkeypatch, tmp_path):
    make = batch_command.make_one
    made = []

    def pressed(job):
        if made:
            raise KeyboardInterrupt
        made.append(make(job))
        return made[0]

    lines = [{**SHORT, "seeds": [1, 2]}]
    with monkeypatch.context() as patch:
        patch.setattr(batch_command, "make_one", pressed)
        code, said = batch(*lines)
    kept = f"what is made of the others is kept in {tmp_path / 'out' / 'runs'}"
    assert (
        code == 130
        and said == f"interrupted; 1 of 2 videos are finished, {kept}, the same command goes on\n"
    )
    assert sorted(states(batch(*lines)[1]).values()) == ["done", "finished before"]


WRONG = {
    "[1]": "expected a JSON object",
    "{": "not valid JSON",
    '{"demo": true, "sed": 1}': "did you mean seed?",
    '{"demo": true, "seed": true}': "expected one argument",
    '{"demo": true, "prompts": {}}': "must be a text, a number, true or false",
    '{"demo": true, "seeds": []}': "seeds must be a list",
    '{"demo": true, "seeds": [1, 1]}': "two videos named",
    '{"demo": true, "name": "../x"}': "a name has up to 80",
    '{"demo": true, "out": "x.mp4"}': "'out' is no option of a line",
    '{"demo": 1}': "demo must be true or false",
    '{"weights": "nowhere.pt", "prompts": "a fox"}': "nowhere.pt",
    '{"prompts": "a fox"}': "required: --weights",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_mistake_is_refused_with_its_line_before_anything_is_made(line, batch, tmp_path):
    code, said = batch({**SHORT, "name": "right"}, line)
    assert code == 2 and WRONG[line] in said and said.count("\n") == 1
    assert "line 2" in said or "line-0002" in said
    assert not list((tmp_path / "out").glob("*.mp4"))


def test_shards_make_every_video_once_and_a_person_reads_a_table(tmp_path, capsys):
    (tmp_path / "jobs.jsonl").write_text(
        json.dumps({**SHORT, "name": "ball", "seeds": [*range(3)]}), encoding="utf-8"
    )
    command = ["batch", str(tmp_path / "jobs.jsonl"), "--out", str(tmp_path / "out")]
    made = []
    for part in ("1/2", "2/2"):
        assert main([*command, "--shard", part]) == 0
        made.append({path.name for path in (tmp_path / "out").glob("*.mp4")})
    assert [len(names) for names in made] == [2, 3]
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0].startswith("| video | state |") and lines[2].startswith(
        "| ball-seed0 | done | 0 |"
    )
    assert "2 done" in lines and any(
        line.startswith("farm     one after the other") for line in lines
    )
    assert "ball-seed0: done, 0 of 2 blocks reused" in said.err and "2/2" in said.err
    assert main([*command, "--shard", "3/2"]) == 2


def test_paths_mean_the_same_in_another_folder_and_files_count_by_their_contents(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    fields = {"weights": "w.pt", "vae": "v.pt", "prompts": "@story.txt", "profile": "mine.json"}
    line = json.dumps(fields | {"reference": ["hall=hall.png", "hero=hero.png"]})
    for name, text in (
        ("story.txt", "@ a fox"),
        ("jobs.jsonl", line),
        ("hall.png", "1"),
        ("hero.png", "2"),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
    (args,) = read_jobs(tmp_path / "jobs.jsonl", tmp_path / "out").values()
    assert (args.weights, args.vae) == (tmp_path / "w.pt", tmp_path / "v.pt")
    assert args.profile == str(tmp_path / "mine.json") and args.prompts == "\n@ a fox"
    assert args.reference == [f"{name}={tmp_path / name}.png" for name in ("hall", "hero")]
    assert args.out == tmp_path / "out" / "line-0001.mp4" and args.latents is None
    (tmp_path / "hero.png").write_text("another picture", encoding="utf-8")
    (changed,) = read_jobs(tmp_path / "jobs.jsonl", tmp_path / "out").values()
    assert changed.identity != args.identity


def test_a_tilde_in_a_line_is_the_home_of_a_person(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "story.txt").write_text("a red ball")
    line = {
        "weights": "~/w.safetensors",
        "prompts": "@~/story.txt",
        "embeddings": "~/e.safetensors",
        "reference": ["hero=~/hero.png"],
        "profile": "~/roles.json",
    }
    (tmp_path / "jobs.jsonl").write_text(json.dumps(line))
    (args,) = read_jobs(tmp_path / "jobs.jsonl", tmp_path / "out").values()
    assert args.weights == tmp_path / "w.safetensors"
    assert args.embeddings == tmp_path / "e.safetensors"
    assert args.prompts == "a red ball" and args.profile == str(tmp_path / "roles.json")
    assert args.reference == [f"hero={tmp_path / 'hero.png'}"]


def test_a_model_in_several_files_counts_by_all_of_them(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for number in (1, 2):
        (folder / f"m-0000{number}-of-00002.safetensors").write_text("1")
    jobs = tmp_path / "jobs.jsonl"
    places = (folder, folder / "m-00001-of-00002.safetensors")
    lines = [json.dumps({"weights": str(place), "prompts": "a fox"}) for place in places]
    jobs.write_text("\n".join(lines), encoding="utf-8")
    before = [args.identity for args in read_jobs(jobs, tmp_path / "out").values()]
    (folder / "m-00002-of-00002.safetensors").write_text("another shard")
    after = [args.identity for args in read_jobs(jobs, tmp_path / "out").values()]
    assert not {*before} & {*after}


def test_a_prompt_of_a_line_can_begin_with_the_name_of_a_picture(tmp_path):
    fields = {
        "demo": True,
        "prompts": "@hero a red ball",
        "reference": f"hero={tmp_path / 'hero.png'}",
    }
    (tmp_path / "jobs.jsonl").write_text(json.dumps(fields), encoding="utf-8")
    (args,) = read_jobs(tmp_path / "jobs.jsonl", tmp_path / "out").values()
    assert read_text(args.prompts, ["hero"]).strip() == "@hero a red ball"


def test_a_farm_that_cannot_be_is_refused_and_without_ray_videos_are_made_one_after_the_other(
    monkeypatch, caplog
):
    for arguments in (("ray://head",), ("local", -1.0), ("local", None, 0), ("auto", None, 2)):
        with pytest.raises(HeadForcingError, match="--farm"):
            farm_named(*arguments)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert type(farm_named("local")) is Workers and "one after the other" in caplog.text
    with pytest.raises(HeadForcingError, match="needs Ray, which is not installed"):
        farm_named("auto")


FARM = type("AtTheSameTime", (Workers,), {"parallel": True})()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda:1"}, "on a farm the device is auto, cuda or cpu"),
    ],
)
def test_what_a_farm_cannot_do_is_refused_before_it_starts(
    options, message, batch, monkeypatch, tmp_path
):
    monkeypatch.setattr(batch_command, "workers_of", lambda args: FARM)
    code, said = batch({**SHORT, "found_profiles": str(tmp_path / "found"), **options})
    assert code == 2 and message in said
    assert not list((tmp_path / "out").glob("*.mp4"))
