"""Tables of a model of the world of rooms: one command measures them and goes on where it stopped."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import islice

import pytest
import torch
from headforcing.headforcing_core.cache.memory import candidate_frame
from headforcing.headforcing_core.cache.policy import preset
from headforcing.headforcing_core.demo import assets
from headforcing.headforcing_core.demo.rooms_autoencoder import RoomsAutoencoder
from headforcing.headforcing_core.demo.words import Look
from headforcing.headforcing_core.head_profiles.profile import HeadProfile, classify
from headforcing.headforcing_core.methods.registry import method_policy
from headforcing.headforcing_core.model.wan import WanConfig, WanModel
from headforcing.headforcing_core.render.comparison import Entry
from headforcing.headforcing_core.render.video import begin_render
from headforcing.headforcing_core.rollout.wan_video_model import WanVideoModel
from headforcing.research.__main__ import main
from headforcing.research.ablations import EvenMemory, RandomAdmission
from headforcing.research.answers import packed
from headforcing.research.rooms import judge as rooms_judge
from headforcing.research.rooms import measure as rooms
from headforcing.research.rooms.judge import STORIES, RoomsJudge, given_last_visits, timeline_of
from headforcing.research.rooms.scenes import CLOCK
from headforcing.research.rooms.stories import last_visits, returns, visits
from headforcing.research.rooms.tables import ROOMS_TABLES
from headforcing.research.rooms.verdicts import GATE_BASE, GATE_STUDENT
from headforcing.research.training import gate as rooms_gate
from headforcing.research.training.training import STRUCTURE, save
from stored_answers import read_answer, unpacked

TINY = WanConfig(dim=64, ffn_dim=64, num_layers=2, num_heads=2, freq_dim=32, text_dim=64, text_len=12)
SHARES = (((0.2, 0.75, 0.05), (0.05, 0.6, 0.35)), ((0.1, 0.2, 0.7), (0.02, 0.08, 0.9)))
ROLES = classify(SHARES, 0.25, 0.25)
TEAL = Look("red", "ball", "gliding", "teal", "striped")
SAND, NAVY = replace(TEAL, background="sand"), replace(TEAL, background="navy")


def remembers(folder, name, effect):
    """Store an effect of memory as the training does."""
    measured = rooms_gate.measured_on(folder / f"{name}.safetensors", folder / "autoencoder.safetensors")
    rooms_gate.write(folder / f"{name}.gate.json", {"0": [0.9, 0.8], "1": [effect]}, measured)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a training that has passed its gate, with a model that has learnt nothing."""
    folder = tmp_path_factory.mktemp("trained")
    torch.manual_seed(0)
    model = WanModel(TINY)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1)
    save(model.state_dict(), folder / "student-20.safetensors", metadata=STRUCTURE)
    save(RoomsAutoencoder().state_dict(), folder / "autoencoder.safetensors")
    (folder / "base.safetensors").write_bytes(b"a base")
    (folder / "chosen.json").write_text('{"chosen": "student-20.safetensors"}')
    for name, effect in (("student-20", 0.5), ("base", 0.7)):
        remembers(folder, name, effect)
    write_profile(folder / "profile.json", folder / "student-20.safetensors")
    return folder


def write_profile(path, weights, local_fraction=0.25):
    """Write a head profile of these weights."""
    measured = {"fingerprint": assets.inspect_toy(weights).fingerprint}
    HeadProfile("probe", 2, 2, ROLES, SHARES, 0.25, local_fraction, measured=measured).save(path)
    return path


@pytest.fixture(scope="module")
def judge(trained):
    files = (str(trained / name) for name in ("student-20.safetensors", "autoencoder.safetensors"))
    return RoomsJudge(*files, rooms.load_profile(trained / "profile.json"))


def test_the_stories_are_those_of_the_pre_registration():
    looks = STORIES["second_away_30"](84_000)
    assert looks[4:8] == looks[38:] and len({look.room for look in looks}) == 4 and max(returns(looks)) == 30
    for name, blocks, gap in (("away_15", 23, 15), ("away_30", 38, 30), ("away_60", 68, 60), ("twelve_blocks", 12, 6)):
        looks = STORIES[name](80_000)
        assert len(looks) == blocks and max(returns(looks)) == gap and len({look.room for look in looks}) == 3
        assert len(set(map(len, (visits(looks)[0], visits(looks)[-1])))) == 1
    looks = STORIES["eight_rooms"](83_000)
    assert len({look.room for look in looks}) == 8 and looks[0:48:3] == looks[48:] and len(visits(looks)) == 16


def test_every_one_of_eight_rooms_can_be_remembered_and_not_all_of_them():
    """Each has two candidates before it is left, and there are more than entries before the first one comes back."""
    policy, looks = preset("head_forcing"), STORIES["eight_rooms"](83_000)
    options = CLOCK.frames_per_block, policy.memory.recent_frames, policy.episodic.update_interval
    firsts = visits(looks)[:8]
    candidates = [
        [frame for block in visit if (frame := candidate_frame(block, *options)) is not None] for visit in firsts
    ]
    for visit, frames in zip(firsts, candidates, strict=True):
        assert sum(frame // CLOCK.frames_per_block in visit for frame in frames) >= 2
    assert sum(map(len, candidates)) > policy.memory.episodic_frames


@pytest.mark.parametrize("name", STORIES)
def test_a_timeline_shows_the_story(name, judge):
    looks = STORIES[name](80_001)
    plan = judge.plan(preset("head_forcing"), "profile", timeline_of(looks), 0)
    assert [row.prompt for row in plan.rows] == [look.prompt for look in looks]


def test_the_rendered_row_keeps_everything(judge):
    found = judge.measure_truth(STORIES["twelve_blocks"](82_001), 82_001, encoded=False, ahead=True)
    kept = ("layout", "identity", "background", "pattern", "shape", "single", "moves", "camera")
    assert {name: found[name] for name in kept} == dict.fromkeys(kept, 1.0)
    assert found["layout_by_chance"] < 0.4 and found["outline"] > 0.9 and found["place_error"] < 1.5


def test_another_room_on_return_is_seen(judge):
    """The first two blocks of one video and the last one of another: other pictures, another marking."""
    looks = (TEAL, SAND, TEAL)
    one, other = (rooms_judge.render(looks, seed).video_frames for seed in (3, 4))
    mixed = torch.cat((one[:21], other[21:]))
    whole, found = (rooms_judge.story_numbers(video, looks, 3) for video in (one, mixed))
    assert whole["layout"] == 1 and found["layout"] < 0.5
    assert whole["background"] == found["background"] == 1


def test_a_camera_that_should_stand_still_and_pans_is_seen():
    looks = (TEAL,) * 4
    panned = rooms_judge.render([replace(TEAL, camera="panning left")] * 4, 3).video_frames
    assert rooms_judge.story_numbers(panned, looks, 3)["camera"] == 0.0


def test_identity_is_the_colour_of_the_marking_of_the_first_block():
    """Of a video, of one that goes on as the video that stands for chance, and of one that begins turned away."""
    looks, cut = STORIES["twelve_blocks"](82_000), CLOCK.start_video_frame(1)
    colours = {number: rooms_judge.Marking.draw(looks, number).colour for number in range(4)}
    others = {number: rooms_judge.Marking.draw(looks, number + rooms_judge.OTHER_VIDEO).colour for number in colours}
    number = next(number for number in colours if colours[number] != others[number])
    clip, other = rooms_judge.render(looks, number), rooms_judge.render(looks, number + rooms_judge.OTHER_VIDEO)
    away = int((clip.facing == 0).nonzero()[0])
    videos = (
        clip.video_frames,
        torch.cat((clip.video_frames[:cut], other.video_frames[cut:])),
        torch.cat((clip.video_frames[away].expand(cut, -1, -1, -1), clip.video_frames[cut:])),
    )
    found = [rooms_judge.story_numbers(video, looks, number) for video in videos]
    assert [numbers["identity"] for numbers in found] == [1.0, 0.0, None]
    assert [numbers["identity_by_chance"] for numbers in found] == [0.0, 1.0, None]


def test_given_frames_are_those_of_the_visit_before():
    looks = (TEAL, TEAL, SAND, TEAL, NAVY, SAND)
    assert [list(visit) for visit in last_visits(looks)] == [[], [], [], [0, 1], [], [2]]
    assert given_last_visits(looks).given == ((), (), (), (0, 1, 2, 4, 5), (), (6, 7, 8))


def roll(judge, policy, looks, blocks, tag=""):
    """The rollout's cache after so many blocks, its events, and the latents."""
    plan = judge.plan(policy, "profile", timeline_of(looks, tag), 0)
    with begin_render(rooms_judge.job_of(plan), WanVideoModel(judge.backbone, torch.float32)) as render:
        made = [block.latents for block in islice(render.blocks(), blocks)]
        return render.run.cache, render.run.events, made


def test_given_frames_change_nothing_before_the_return_and_are_the_memory_after_it(judge):
    looks = (TEAL, TEAL, SAND, NAVY, TEAL, TEAL)
    given, _, shown = roll(judge, given_last_visits(looks), looks, 6)
    _, _, plain = roll(judge, preset("head_forcing"), looks, 6)
    assert all(torch.equal(a, b) for a, b in zip(shown[:4], plain[:4], strict=True))
    assert not torch.equal(shown[4], plain[4])
    assert given.memory.sources == given.memory_group.sources[:5] == [[0], [1], [2], [4], [5]]


@pytest.mark.parametrize("tag", ["[recall 1]", "[recall]"])
def test_after_a_recall_the_memory_heads_hold_frames_of_the_first_visit_alone(tag, judge):
    """Frames of blocks 0 to 3 are the entries when block 8 is made; without the tag they are not."""
    looks = (*(TEAL,) * 4, SAND, SAND, NAVY, NAVY, TEAL)
    recalled, _, shown = roll(judge, preset("head_forcing"), looks, 9, tag)
    without, _, plain = roll(judge, preset("head_forcing"), looks, 9)
    assert [recall.to_dict() for recall in recalled.recalls] == [{"block": 8, "scene": 1, "frames": (0, 1, 2, 3, 6, 9)}]
    assert (
        recalled.memory.sources
        == recalled.memory_group.sources[: recalled.memory_group.entries]
        == [[0], [3], [6], [9]]
    )
    visit, _, _ = roll(judge, preset("head_forcing"), looks, 4)
    then, now = (cache.memory_group for cache in (visit, recalled))
    for layer in range(len(then.v)):  # values are not rotated, so those of the visit are the same wherever they stand
        slots = [group.sources.index([9]) for group in (then, now)]
        assert torch.equal(then.v[layer][:, slots[0]], now.v[layer][:, slots[1]])
    assert not without.recalls and without.memory.sources != recalled.memory.sources
    assert all(torch.equal(a, b) for a, b in zip(shown[:8], plain[:8], strict=True))
    assert not torch.equal(shown[8], plain[8])


def test_echo_forcing_recalls_the_first_visit(judge):
    looks = (TEAL, TEAL, SAND, NAVY, TEAL)
    recalled, _, shown = roll(judge, method_policy("echo_forcing"), looks, 5, "[recall 1]")
    without, _, plain = roll(judge, method_policy("echo_forcing"), looks, 5)
    assert [(recall.block, recall.scene, recall.frames) for recall in recalled.recalls] == [(4, 1, (0, 4))]
    assert not without.recalls and torch.equal(shown[3], plain[3]) and not torch.equal(shown[4], plain[4])


def test_likeness_finds_the_first_visit_in_every_video_of_the_table(judge):
    table = ROOMS_TABLES["recall"]
    for number in table.numbers(64):
        looks = STORIES[table.question.story](number)
        plan = judge.plan(preset("head_forcing"), "profile", timeline_of(looks, "[recall]"), number)
        assert rooms_judge.job_of(plan).script.rows[38].switch.recall == 2


def test_rows_with_a_tag_are_measured_with_it_and_no_others(judge, monkeypatch):
    """Compare what each row's plan says before the return; the video itself is not made."""
    told = {}

    def latents(self, plan):
        told[row.label] = [str(segment.switch) for segment in plan.timeline.segments]
        return torch.zeros(plan.frames, 16, 8, 8)

    monkeypatch.setattr(RoomsJudge, "latents", latents)
    monkeypatch.setattr(judge.autoencoder, "decode", lambda latents: latents)
    monkeypatch.setattr(rooms_judge, "story_numbers", lambda *video: {})
    monkeypatch.setitem(STORIES, "second_away_30", lambda number: (NAVY, TEAL, SAND, TEAL))
    for row in ROOMS_TABLES["recall"].entries(deciding=False):
        if isinstance(row, Entry):
            rooms.measured(judge, rooms.VideoJob("recall", row, 84_000))
    tags = {"[recall 2]": "recall 2", "[recall]": "recall"}
    assert told == {label: ["reset"] * 3 + [tags.get(label.split(", ")[-1], "reset")] for label in told}
    assert sum(switches[-1] != "reset" for switches in told.values()) == 3 and list(told)[-1] == "Head Forcing"


def test_even_memory_has_the_frame_slots_of_head_forcing(judge):
    story = STORIES["away_15"](80_000)
    ours, even = (
        judge.plan(policy, "profile", timeline_of(story), 0).shape for policy in (preset("head_forcing"), EvenMemory())
    )
    assert even.frame_slots == ours.frame_slots
    assert {policy.recent_frames for policy in even.groups} == {3}
    assert sorted(policy.episodic_frames for policy in even.groups) == [2, 3]
    cache, _, _ = roll(judge, EvenMemory(), (TEAL, SAND, NAVY) * 3, 9)
    held = [group.entries for group in cache.groups]
    assert held == [len(cache.memory.entries), len(cache.others[0][1].entries)] and min(held) >= 1


def test_random_admission_admits_some(judge):
    policy = RandomAdmission()
    policy = replace(policy, episodic=replace(policy.episodic, update_interval=1))
    _, events, _ = roll(judge, policy, (TEAL, SAND, NAVY) * 4, 12)
    assert {event.admitted for event in events} == {True, False}


def test_a_model_is_judged_one_block_ahead_of_a_true_past(judge):
    looks = (TEAL, SAND, TEAL)
    rows = {row.label: row for row in ROOMS_TABLES["h3"].question.rows}
    found = [
        judge.measure_story(rows[label].policy, "profile", looks, 5, ahead=True)
        for label in ("Head Forcing", "local heads see their own block alone")
    ]
    assert found[0]["loss_0.9375"] != found[1]["loss_0.9375"]
    assert all(0 <= numbers["place_error"] <= 32 for numbers in found)


# ------------------------------------------------------------------------------------------------------ the command


def call(trained, out, *more):
    given = ["--profile", str(trained / "profile.json"), "--json", "--tables", "h3", "--shuffles", "2"]
    return main(["rooms", str(trained), "--out", str(out), *given, *more])


@pytest.fixture
def counted(monkeypatch):
    """Measurements that cost nothing, and how many there were."""
    made = []

    def measured(judge, job):
        made.append(job.key)
        layout = random.Random(job.key).uniform(0.1, 0.3) + 0.6 * (not job.row.label.startswith("memory heads"))
        return {"layout": round(layout, 5), "identity": None if job.number % 2 else 1.0, "place_error": 2.0}

    monkeypatch.setattr(rooms, "measured", measured)
    return made


def test_the_command_goes_on_where_it_stopped_and_divides_the_work(trained, tmp_path, counted, capsys):
    assert call(trained, tmp_path, "--videos", "3", "--shard", "1/2", "--deciding") == 0
    first = len(counted)
    assert first in (6, 12)  # four rows decide, two are the truth, and one or two videos are in the first half
    journal = next(tmp_path.glob("measured-*.jsonl"))
    journal.write_text(journal.read_text() + '{"video": "cut o')
    assert call(trained, tmp_path, "--videos", "3", "--deciding") == 0
    assert len(counted) == 18 and len(set(counted)) == 18 and first < 18
    assert call(trained, tmp_path, "--videos", "3") == 0
    stored = json.loads((tmp_path / "h3.json").read_text())
    rows = {row["label"]: row for row in stored["rows"]}
    assert len(counted) == 3 * 15 and all(len(row["videos"]["layout"]) == 3 for row in rows.values())
    assert [len(part["layout"]) for part in rows["Head Forcing, shuffled roles"]["shuffles"]] == [3, 3]
    again = read_answer(ROOMS_TABLES["h3"].with_shuffles(2).question, unpacked(stored))
    assert again.table() in (tmp_path / "h3.md").read_text()
    assert packed({**again.to_dict(), "weights": stored["weights"]}) == stored, "means of shuffles are not rounded"
    kept = rows["Head Forcing"]["videos"]["identity"]
    assert kept == [1.0, None, 1.0]
    verdicts = json.loads((tmp_path / "verdicts.json").read_text())["verdicts"]
    assert [verdict["name"] for verdict in verdicts] == ["H0", "H1", "H2", "H3", "H4", "H5"]
    assert verdicts[3]["outcome"] == "undecided" and verdicts[1]["outcome"] == "not measured"
    page = (tmp_path / "verdicts.md").read_text()
    assert "gaps of 1 to 3 frames: +0.850" in page and "| memory heads | +0.000" in page
    assert call(trained, tmp_path, "--videos", "3", "--tables", "recall") == 0
    assert json.loads((tmp_path / "verdicts.json").read_text())["verdicts"] == verdicts, "of all that was measured"
    other = write_profile(tmp_path / "other.json", trained / "student-20.safetensors", 0.5)
    assert call(trained, tmp_path, "--videos", "3", "--profile", str(other)) == 2
    assert "another model, autoencoder or head profile, or by other code" in capsys.readouterr().err


def test_what_decides_is_measured_first_and_other_shuffles_last():
    tables = {name: table.with_shuffles(2) for name, table in ROOMS_TABLES.items()}
    order = list(rooms.jobs(tables, [0, 1], deciding=False))

    def turn(job: rooms.VideoJob) -> int:
        if job.row.label in tables[job.table].deciding:
            return 0
        return 1 if "rendered" in job.row.label else 3 if "shuffled" in job.row.label else 2

    turns = [turn(job) for job in order]
    assert turns == sorted(turns) and set(turns) == {0, 1, 2, 3} and len({job.key for job in order}) == len(order)
    assert [job.key for job in rooms.jobs(tables, [0, 1], deciding=True)] == [
        job.key for job in order[: turns.index(2)]
    ]


def test_the_table_of_recalls_decides_nothing(trained, tmp_path, counted):
    given = "--tables", "recall", "--videos", "3"
    assert call(trained, tmp_path, *given, "--deciding") == 0 and len(counted) == 3 * 2, "the truth"
    counted.clear()
    assert call(trained, tmp_path, *given, "--shard", "2/2") == 0 and len(counted) in (11, 22)
    assert call(trained, tmp_path, *given) == 0 and len(counted) == len(set(counted)) == 3 * 11
    table = (tmp_path / "recall.md").read_text()
    assert all(f"| {row.label} |" in table for row in ROOMS_TABLES["recall"].question.rows)
    assert "ours, not the paper's" in table and "**" not in table
    found = json.loads((tmp_path / "verdicts.json").read_text())
    assert {verdict["outcome"] for verdict in found["verdicts"][1:]} == {"not measured"}
    assert [line.split(",")[0] for line in found["secondary"]] == ["- H0"]


def test_below_the_gate_no_table_is_made(trained, tmp_path, capsys):
    for path in trained.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    remembers(tmp_path, "student-20", 0.39)
    assert call(tmp_path, tmp_path / "out") == 2
    assert "student 0.390 of at least 0.4" in capsys.readouterr().err
    (tmp_path / "chosen.json").write_text('{"chosen": null}')
    assert call(tmp_path, tmp_path / "out") == 2
    assert "no student in" in capsys.readouterr().err
    (tmp_path / "chosen.json").unlink()
    assert call(tmp_path, tmp_path / "out") == 2


@pytest.mark.parametrize("changed", ["student-20", "base", "autoencoder"])
def test_what_the_gate_found_of_other_files_is_refused(changed, trained, tmp_path, capsys):
    for path in trained.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    file = tmp_path / f"{changed}.safetensors"
    file.write_bytes(file.read_bytes() + b" ")
    assert call(tmp_path, tmp_path / "out") == 2
    assert "as they are now; give the training's command again" in capsys.readouterr().err


def test_measurements_by_other_code_are_refused(trained, tmp_path, counted, monkeypatch, capsys):
    assert call(trained, tmp_path, "--videos", "1") == 0
    monkeypatch.setattr(rooms, "MEASURED_BY", (rooms_gate, *rooms.MEASURED_BY[1:]))
    assert call(trained, tmp_path, "--videos", "1") == 2
    assert "judge" in capsys.readouterr().err


@pytest.mark.slow
def test_a_table_of_real_videos(trained, tmp_path, monkeypatch):
    """An untrained model, one short story: every row of H2 is measured, and nothing is decided."""
    monkeypatch.setitem(rooms.STORIES, "away_15", lambda number: (TEAL, SAND, TEAL))
    profile = ["--profile", str(trained / "profile.json")]
    given = [*profile, "--tables", "h2_h5", "--videos", "1", "--shuffles", "1", "--json"]
    assert main(["rooms", str(trained), "--out", str(tmp_path), *given]) == 0
    table = (tmp_path / "h2_h5.md").read_text()
    assert all(f"| {row.label} |" in table for row in ROOMS_TABLES["h2_h5"].question.rows)
    assert "| – | – | – | – |" not in table and "sure" not in table


def test_the_head_profile_of_a_training_has_to_be_its_own(trained, tmp_path, capsys):
    other = write_profile(tmp_path / "other.json", assets.model_path())
    for more in ([], ["--profile", str(other)]):
        assert main(["rooms", str(trained), "--out", str(tmp_path), *more]) == 2
        assert "headforcing profile profile.json --demo --demo-weights" in capsys.readouterr().err


def test_training_and_verdict_ask_the_same_of_the_gate():
    assert (rooms_gate.BASE_LEAST, rooms_gate.STUDENT_LEAST) == (GATE_BASE, GATE_STUDENT)


def test_without_a_folder_the_embedded_model_is_measured_and_its_gate_is_not(tmp_path, counted):
    given = ["--tables", "h3", "--videos", "1", "--shuffles", "1", "--json"]
    assert main(["rooms", "--out", str(tmp_path), *given]) == 0
    verdicts = json.loads((tmp_path / "verdicts.json").read_text())["verdicts"]
    assert len(counted) == 14 and [verdict["name"] for verdict in verdicts] == ["H1", "H2", "H3", "H4", "H5"]
