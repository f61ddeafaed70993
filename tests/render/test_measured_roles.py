"""Roles that are measured before the first render of a model: kept, used, asked for once, and how
much memory and time that takes. The demo's model, float32 on CPU, and counts for the 1.3B model.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from threading import Thread

import pytest
import torch
from headforcing.cli.cards import MODELS
from headforcing.headforcing_core.demo import assets, word_hash
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.files import claimed
from headforcing.headforcing_core.head_profiles.auto import AutoProfile, store_found_profile
from headforcing.headforcing_core.head_profiles.profile import (
    HeadProfile,
    bundled_profiles,
    classify,
    load_profile,
)
from headforcing.headforcing_core.head_profiles.profiler import profile_heads
from headforcing.headforcing_core.head_profiles.rules import with_rule
from headforcing.headforcing_core.head_profiles.shares import HeadShares
from headforcing.headforcing_core.plan.options import RenderOptions
from headforcing.headforcing_core.plan.request import RenderJob, RenderRequest
from headforcing.headforcing_core.plan.resources import needs_of, pass_bytes
from headforcing.headforcing_core.render import measured_roles
from headforcing.headforcing_core.render.measured_roles import (
    MeasuredRoles,
    Measuring,
    beside_list,
    setup_for,
    with_found_roles,
    with_measured_roles,
)
from headforcing.headforcing_core.render.render import make_video
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from headforcing.headforcing_core.video.memory import DecoderMemory
from headforcing.tests.benchmarks.gains import CARDS
from headforcing.tests.benchmarks.measuring import (
    WAN,
    WAN_VAE,
    needs_and_setup,
    seconds_on,
    table,
)
from torch.utils.flop_counter import FlopCounterMode
from toy_renders import toy_model

NAME = "0123456789abcdef"  # of the weights


@pytest.fixture(scope="module")
def model() -> WanVideoModel:
    return WanVideoModel(toy_model(), torch.float32)


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(measured_roles, "VIDEOS", 1)


def test_what_a_measurement_kept_of_a_gpu_is_given_back_before_the_render(
    short, model, tmp_path, monkeypatch
):
    emptied = []
    monkeypatch.setattr(measured_roles, "empty_cache", emptied.append)
    measured_for(job_for(), model, tmp_path)
    assert emptied == ["cpu"]


def job_for(auto: AutoProfile | None = None, prompt: str = "", width: int = 64) -> RenderJob:
    """A video of the demo's model, whose roles are not known."""
    auto = auto or AutoProfile(rule="quota")
    options = RenderOptions(width=width, height=64, seconds=0.75, profile=auto, seed=3)
    text = prompt or word_hash.sample_prompts(1)[0]
    timeline = parse_timeline(text, **options.timeline_arguments)
    embeds = {text: word_hash.encode(text) for text in timeline.texts}
    return RenderRequest(assets.TOY_CONFIG, options, timeline, embeds, weights=NAME).job()


def measured_for(job: RenderJob, model: WanVideoModel, *folders: Path, **measuring):
    """The job with its roles, kept in these folders, and how they were found."""
    return with_measured_roles(job, model, Measuring(folders=folders, **measuring))


def made_for(job: RenderJob, model: WanVideoModel, *folders: Path):
    """A video with measured roles, and how they were found."""
    job, measured = measured_for(job, model, *folders)
    return make_video(job, model), measured


class Stop(Exception):
    """Ends a measurement."""


def stop_at(block: int):
    def on_step(now: int, step: int, latents: torch.Tensor | None) -> None:
        if now == block and step == 1:
            raise Stop

    return on_step


def test_a_render_measures_the_roles_of_its_weights_once(model, tmp_path, short):
    job = job_for()
    assert with_found_roles(job, [tmp_path]).plan.heads.auto is not None
    made, measured = made_for(job, model, tmp_path)
    assert measured is not None and "measured which head is what in" in measured.line
    kept = load_profile(tmp_path / f"{NAME}.json")
    assert [path.name for path in tmp_path.iterdir()] == [f"{NAME}.json"]
    assert kept.roles == made.plan.shape.roles == classify(kept.shares)
    assert kept.measured["fingerprint"] == NAME and kept.measured["window_frames"] == 21
    assert made.plan.heads.auto is None and made.plan.heads.name.startswith(
        "profile 'measured on 20"
    )

    steps = []
    found, again = measured_for(
        job, model, tmp_path, on_step=lambda block, step, latents: steps.append(block)
    )
    assert (again, steps) == (None, []) and found.plan.shape.roles == kept.roles
    assert with_found_roles(job, [tmp_path]).plan.shape.roles == kept.roles
    assert made_for(job, model, tmp_path)[1] is None

    other = with_found_roles(job_for(AutoProfile(0.5, 0.125, "quota")), [tmp_path])
    assert other.plan.shape.roles == classify(kept.shares, 0.5, 0.125)
    by_function = with_found_roles(job_for(AutoProfile()), [tmp_path])
    assert AutoProfile().rule == "auto"
    assert by_function.plan.shape.roles == with_rule(kept, "auto").roles


def test_a_render_refuses_roles_that_nobody_has_measured(model):
    with pytest.raises(HeadForcingError, match="head roles: they are not known before the render"):
        make_video(job_for(), model)


def test_a_measurement_that_is_stopped_goes_on_to_the_same_numbers(model, tmp_path, short):
    straight, whole = measured_for(job_for(), model)
    job = job_for()
    with pytest.raises(Stop):
        measured_for(job, model, tmp_path, on_step=stop_at(3))
    assert [path.name for path in tmp_path.iterdir()] == [f"{NAME}.safetensors"]
    denoised = []
    resumed, measured = measured_for(
        job,
        model,
        tmp_path,
        on_step=lambda block, step, latents: denoised.append(block) if step else None,
    )
    assert min(denoised) == 3, "finished blocks are only written to the cache again"
    assert measured.profile.shares == whole.profile.shares
    assert resumed.plan.shape.roles == straight.plan.shape.roles
    assert [path.name for path in tmp_path.iterdir()] == [f"{NAME}.json"]


def test_what_a_stopped_measurement_left_is_not_used_for_another_one(model, tmp_path, short):
    with pytest.raises(Stop):
        measured_for(job_for(), model, tmp_path, on_step=stop_at(3))
    partial = tmp_path / f"{NAME}.safetensors"
    for damaged in (partial.read_bytes()[:200], b""):
        partial.write_bytes(damaged)
        _, measured = measured_for(job_for(), model, tmp_path)
        assert measured is not None and measured.kept.stem == NAME and not partial.exists()
        measured.kept.unlink()


@pytest.mark.parametrize("changed", ["prompt", "size", "length", "seed", "encoder", "dtype"])
def test_what_a_stopped_measurement_left_is_not_used_for_another_setup(
    model, tmp_path, short, monkeypatch, changed
):
    """A partial measurement depends on its whole setup: each part of it is changed alone."""
    with pytest.raises(Stop):
        measured_for(job_for(), model, tmp_path, on_step=stop_at(3))
    setup = {}
    if changed == "prompt":
        setup["prompt"] = word_hash.sample_prompts(2)[1]
    elif changed == "size":
        setup["width"] = 96
    elif changed == "length":
        monkeypatch.setattr(measured_roles, "VIDEOS", 2)
    elif changed == "seed":
        monkeypatch.setattr(measured_roles, "SEED", 1)
    job = job_for(**setup)
    more = {}
    if changed == "encoder":
        more["embeds"] = {text: embed.flip(0) for text, embed in job.request.embeds.items()}
    elif changed == "dtype":
        more["dtype"] = torch.bfloat16
        model = WanVideoModel(toy_model(dtype=torch.bfloat16), torch.bfloat16)
    _, expected = measured_for(job.with_request(**more), model)
    _, measured = measured_for(job.with_request(**more), model, tmp_path)
    assert measured.profile.shares == expected.profile.shares


def test_a_damaged_file_is_measured_again(model, tmp_path, short, caplog):
    measured_for(job_for(), model, tmp_path)
    kept = tmp_path / f"{NAME}.json"
    whole = kept.read_bytes()
    kept.write_bytes(whole[:200])
    assert measured_for(job_for(), model, tmp_path)[1] is not None
    assert kept.name in caplog.text and kept.read_bytes() == whole


def test_another_process_that_measures_the_same_weights_is_waited_for(model, tmp_path, short):
    _, first = measured_for(job_for(), model, tmp_path)
    text = first.kept.read_text()
    first.kept.unlink()
    found = []
    with claimed(first.kept):
        waiting = Thread(target=lambda: found.append(measured_for(job_for(), model, tmp_path)))
        waiting.start()
        waiting.join(0.5)
        assert not found
        first.kept.write_text(text)
    waiting.join(60)
    ((job, measured),) = found
    assert measured is None and job.plan.shape.roles == first.profile.roles


# Measures in a process of its own, whose number it says; pauses in the second block.
ANOTHER = """
import os, signal, sys
from itertools import chain
from pathlib import Path
import test_measured_roles as tests

def pause(block, step, latents):
    if (block, step) == (1, 1):
        os.kill(os.getpid(), signal.SIGSTOP)

tests.measured_roles.VIDEOS = 1
model = tests.WanVideoModel(tests.toy_model(), tests.torch.float32)
tests.measured_for(tests.job_for(), model, Path(sys.argv[1]), on_step=pause)
"""


def wait_for(condition) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


@contextmanager
def paused_process(folder) -> Iterator[subprocess.Popen]:
    """Another process that measures the same weights, paused within it."""
    here = Path(__file__).resolve().parent
    path = os.pathsep.join(map(str, [here, here.parent / "helpers"]))
    environment = {**os.environ, "PYTHONPATH": path}
    process = subprocess.Popen([sys.executable, "-c", ANOTHER, folder], env=environment)
    try:
        wait_for(lambda: _state(process.pid) in "TZ")
        assert process.poll() is None
        yield process
    finally:
        process.kill()
        process.wait()


def _state(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0]


linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")


@linux
def test_stop_ends_the_wait_for_another_process(model, tmp_path, short, caplog):
    caplog.set_level("INFO")
    asked = []

    def stop() -> None:
        asked.append(time.monotonic())
        if len(asked) == 3:
            raise Stop

    with paused_process(tmp_path):
        with pytest.raises(Stop):
            measured_for(job_for(), model, tmp_path, on_step=stop_at(0), while_waiting=stop)
        assert asked[-1] - asked[0] < 5
    assert caplog.text.count(measured_roles.WAITING) == 1
    assert not (tmp_path / f"{NAME}.json").exists()


@linux
def test_a_process_that_makes_no_progress_is_not_waited_for_and_takes_the_roles_that_are_kept(
    model, tmp_path, short, monkeypatch
):
    monkeypatch.setattr(measured_roles, "PATIENCE", 1.0)
    _, alone = measured_for(job_for(), model)
    with paused_process(tmp_path) as other:
        job, measured = measured_for(job_for(), model, tmp_path)
        kept = tmp_path / f"{NAME}.json"
        assert measured.kept == kept and measured.profile.shares == alone.profile.shares
        assert job.plan.shape.roles == measured.profile.roles
        stored = kept.stat()
        other.send_signal(signal.SIGCONT)
        assert other.wait(120) == 0
        now = kept.stat()
        assert (now.st_ino, now.st_mtime_ns) == (stored.st_ino, stored.st_mtime_ns)
    assert [path.name for path in tmp_path.iterdir()] == [kept.name]


def test_a_process_that_makes_progress_is_waited_for(model, tmp_path, short, monkeypatch):
    monkeypatch.setattr(measured_roles, "PATIENCE", 1.0)
    monkeypatch.setattr(measured_roles, "ASK_AGAIN_SECONDS", 0.1)
    _, first = measured_for(job_for(), model, tmp_path)
    whole = first.kept.read_bytes()
    first.kept.unlink()
    partial = first.kept.with_suffix(".safetensors")
    until = time.monotonic() + 3
    with claimed(first.kept) as claim:

        def progress() -> None:
            partial.touch()
            if time.monotonic() > until and not first.kept.exists():
                first.kept.write_bytes(whole)

        waiting = Thread(
            target=lambda: found.append(
                measured_for(job_for(), model, tmp_path, while_waiting=progress)
            )
        )
        found = []
        waiting.start()
        wait_for(first.kept.exists)
        assert claim is None and not found
    waiting.join(60)
    ((job, measured),) = found
    assert measured is None and job.plan.shape.roles == first.profile.roles


@linux
def test_who_waits_measures_when_the_other_process_is_killed(model, tmp_path, short):
    waited = []
    with paused_process(tmp_path) as other:

        def kill() -> None:
            waited.append(other.pid)
            other.kill()

        _, measured = measured_for(job_for(), model, tmp_path, while_waiting=kill)
    assert waited and measured.kept == tmp_path / f"{NAME}.json"
    assert [path.name for path in tmp_path.iterdir()] == [f"{NAME}.json"]


def test_a_command_says_that_it_waits_and_shows_no_bar_before_it_measures(tmp_path):
    command = (
        "demo --device cpu --scale 1 --seconds 0.5 --profile auto --measure-seconds 900".split()
    )
    command = [sys.executable, "-m", "headforcing", *command]
    command += ["--out", tmp_path / "a", "--found-profiles", tmp_path]
    first = subprocess.run(command, capture_output=True, text=True)
    assert first.returncode == 0 and "measuring heads" in first.stderr, first.stderr
    assert measured_roles.WAITING not in first.stderr
    (kept,) = tmp_path.glob("*.json")
    whole = kept.read_bytes()
    kept.unlink()
    with claimed(kept):
        second = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        said = b""
        while measured_roles.WAITING.encode() not in said:
            line = second.stderr.readline()
            assert line, said
            said += line
        time.sleep(1.5)  # it asks three times more, and says nothing
        kept.write_bytes(whole)
    said += second.communicate(timeout=120)[1]
    assert second.returncode == 0
    assert len(re.findall(rb"waiting", said)) == 1 and b"measuring heads" not in said


def unwritable(folder: Path, kind: str) -> Path:
    """A folder of the user's that nothing can be written to; root may write everywhere else."""
    place = folder / "home"
    if kind == "a file":
        place.write_text("")
    elif kind == "a loop":
        place.symlink_to(place)
    else:
        place = Path("/proc/none")
    return place / "profiles"


@pytest.mark.parametrize("kind", ["a file", "a loop", pytest.param("a system", marks=linux)])
def test_a_home_that_cannot_be_written_refuses_no_render_and_its_runs_keep_the_roles(
    model, tmp_path, short, kind
):
    home = unwritable(tmp_path, kind)
    runs = tmp_path / "runs"
    job = job_for().with_request(runs=runs)
    made, measured = made_for(job, model, home, runs)
    kept = runs / f"{NAME}.json"
    line = measured.line
    assert measured.kept == kept and line.count("--found-profiles") == 1
    assert f"for renders with run folders in {kept.parent}, in {kept.name}; {home}" in line

    again, measured = made_for(job, model, home, runs)
    assert measured is None and again.reused_blocks == again.plan.new_blocks > 0
    assert again.plan.shape.roles == made.plan.shape.roles
    with pytest.raises(Stop):
        kept.unlink()
        measured_for(job, model, home, runs, on_step=stop_at(3))
    steps = []
    measured_for(job, model, home, runs, on_step=lambda block, *_: steps.append(block))
    assert kept.exists() and not kept.with_suffix(".safetensors").exists()

    _, unkept = measured_for(job, model, home)
    assert unkept.kept is None and unkept.line.count("--found-profiles") == 1


def test_a_disk_that_is_full_when_the_roles_are_there_keeps_them_elsewhere(
    model, tmp_path, short, monkeypatch
):
    def full(path: Path, profile: HeadProfile) -> HeadProfile:
        if path.parent.name == "home":
            raise HeadForcingError(f"{path} cannot be written: No space left on device")
        return store_found_profile(path, profile)

    monkeypatch.setattr(measured_roles, "store_found_profile", full)
    found, measured = measured_for(job_for(), model, tmp_path / "home", tmp_path / "runs")
    assert measured.kept.parent.name == "runs" and "No space left" in measured.line
    assert found.plan.heads.auto is None


def test_nan_is_no_role(model, tmp_path, short):
    job = job_for()
    embeds = {text: embed * float("nan") for text, embed in job.request.embeds.items()}
    with pytest.raises(HeadForcingError, match="NaN or infinity while they were measured"):
        measured_for(job.with_request(embeds=embeds), model, tmp_path)
    assert not list(tmp_path.iterdir()), "nothing of it is gone on with"


@pytest.mark.parametrize("method", ["head_forcing", "forcing_kv", "pyramid_forcing"])
@pytest.mark.parametrize("roles", ["profile", "shuffled"])
def test_every_method_that_uses_roles_can_have_measured_ones(model, tmp_path, short, method, roles):
    options = RenderOptions(
        width=64, height=64, seconds=0.75, profile=AutoProfile(), method_name=method, roles=roles
    )
    job = job_for()
    if method == "pyramid_forcing" and roles == "shuffled":
        with pytest.raises(HeadForcingError, match="rearranges head roles"):
            replace(job.request, options=options).job()
        return
    made, measured = made_for(replace(job.request, options=options).job(), model)
    assert measured is not None and made.plan.heads.auto is None


# ---------------------------------------------------------------------------- beside the bundled list


@pytest.mark.parametrize(("turned", "unusual"), [(0, False), (12, True)])
def test_the_report_says_how_many_heads_are_what_the_bundled_list_says(turned, unusual):
    """Of layers that are another layer's, too few agree."""
    listed = load_profile(bundled_profiles()["self_forcing"])
    shares = listed.shares[turned:] + listed.shares[:turned]
    found = AutoProfile().of(replace(listed, shares=shares, measured={"size": "768x432"}))
    beside = beside_list(found, AutoProfile())
    line = MeasuredRoles(found, 3.0, beside=beside).line
    count = sum(a == b for a, b in zip(chain(*found.roles), chain(*listed.roles), strict=True))
    assert f"{count} of 360 heads are what the bundled profile 'self_forcing' says" in line
    assert (count == 360) == (turned == 0) and ("unusual" in line) == unusual
    assert (count < 216) == unusual


def test_a_model_of_another_size_is_not_compared():
    toy = load_profile(bundled_profiles()["toy_world"])
    assert beside_list(toy, AutoProfile()) == ""


# ----------------------------------------------------------------------- more time than it may take


IN_NO_TIME = AutoProfile(rule="quota", measure_seconds=1e-6)


def test_measuring_that_takes_too_long_ends_after_one_block_with_the_bundled_list(model, tmp_path):
    """And later renders take the list at once, until more seconds are given: then the measurement
    goes on to the same numbers.
    """
    seen = []
    steps = []
    measuring = {
        "on_step": lambda block, step, latents: steps.append(block) if step else None,
        "on_block": lambda *told: seen.append(told),
    }
    listed, found = measured_for(job_for(IN_NO_TIME), model, tmp_path, **measuring)
    bundled = load_profile(bundled_profiles()["toy_world"])
    assert listed.plan.shape.roles == bundled.roles and listed.plan.heads.auto is None
    assert set(steps) == {0, 1, 2}, "the third block is the first that is measured"
    assert [told[:2] for told in seen] == [(0, 28), (1, 28), (2, 28), (3, 28)]
    assert [told[2] is None for told in seen] == [True, True, True, False] and seen[-1][2] > 0
    assert "roles are those of the bundled profile 'toy_world': measuring" in found.line
    assert "choose the profile `auto` with measure_seconds above" in found.line
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".safetensors", ".speed"]

    made, again = made_for(job_for(IN_NO_TIME), model, tmp_path)
    assert made.plan.shape.roles == bundled.roles
    assert again.line.startswith("roles are those of the bundled")
    steps.clear()
    measured_for(job_for(IN_NO_TIME), model, tmp_path, **measuring)
    assert steps == [], "it is known how long it takes here"

    _, straight = measured_for(job_for(), model)
    _, measured = measured_for(job_for(), model, tmp_path, **measuring)
    assert min(steps[:20]) == 0 and steps[0] == 3, "the first video goes on"
    assert measured.profile.shares == straight.profile.shares
    assert [path.name for path in tmp_path.iterdir()] == [f"{NAME}.json"]
    assert measured_for(job_for(IN_NO_TIME), model, tmp_path, **measuring)[1] is None


@pytest.mark.parametrize("note", ["", "[1]", '{"cpu": "fast"}', '{"cpu": 0}', '{"another": 1}'])
def test_a_damaged_note_of_speeds_or_one_of_another_device_says_nothing(
    model, tmp_path, short, note
):
    path = tmp_path / f"{NAME}.speed"
    path.write_text(note)
    _, measured = measured_for(job_for(), model, tmp_path)
    assert measured.kept is not None and not path.exists()


def test_a_model_that_no_list_fits_is_measured_however_long_it_takes(
    model, tmp_path, short, monkeypatch
):
    def none_fits(*_):
        raise HeadForcingError("No bundled head profile fits")

    monkeypatch.setattr(measured_roles, "bundled_profile", none_fits)
    _, measured = measured_for(job_for(IN_NO_TIME), model, tmp_path)
    assert measured.line.startswith("measured which head is what")


def test_the_list_of_a_real_model_has_its_own_roles():
    """Those of `self_forcing`, in a file by the rule that `auto` would choose."""
    options = RenderOptions(seconds=60)
    timeline = parse_timeline("a fox", **options.timeline_arguments)
    job = RenderRequest(WAN, options, timeline).job()
    assert job.plan.heads.auto == AutoProfile()
    listed = measured_roles._bundled_list(job)
    assert listed.roles == load_profile(bundled_profiles()["self_forcing"]).roles


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_seconds_that_no_measurement_can_take_are_refused(seconds):
    with pytest.raises(HeadForcingError, match="measure_seconds must be a number of seconds above"):
        AutoProfile(measure_seconds=seconds)


# ------------------------------------------------------------------------ memory and time, by count


@pytest.mark.parametrize(
    ("decoder", "options", "size"),
    [
        (WAN_VAE, {}, (768, 432)),
        (DecoderMemory(), {}, (544, 304)),
        (DecoderMemory(), {"width": 416, "height": 240}, (272, 144)),
    ],
)
def test_measuring_takes_no_more_memory_than_the_render(decoder, options, size):
    needs, setup = needs_and_setup(decoder, **options)
    assert (setup.width, setup.height) == size
    shape = setup.shape(WAN)
    tokens = setup.frames_per_block * shape.frame_tokens
    taken = shape.bytes(torch.bfloat16) + pass_bytes(WAN, tokens, torch.bfloat16) + needs.prompt
    assert taken <= needs.working


@pytest.mark.parametrize(
    ("family", "blocks"), [("self_forcing", 7), ("causal_forcing_framewise", 21), ("longlive2", 3)]
)
def test_no_head_is_measured_at_distances_that_a_render_has_not(family, blocks):
    """At most 21 latent frames in a context, and positions of at most 21 frames; three blocks at
    least, of which the third is measured.
    """
    model = MODELS.get(family, WAN)
    options = RenderOptions(seconds=60, model_family=family)
    timeline = parse_timeline("a fox", **options.timeline_arguments)
    job = RenderRequest(model, options, timeline, dtype=torch.bfloat16).job()
    setup = setup_for(job, needs_of(job.plan, torch.bfloat16, 0))
    assert (setup.blocks, setup.window_frames) == (blocks, 21)
    assert (blocks - 1) * setup.frames_per_block < 21


def test_the_prompts_of_the_render_are_measured_in_turn(model, monkeypatch):
    one, two = word_hash.sample_prompts(2)
    job = job_for(prompt=f"0:00 {one}\n0:00.5 {two}")
    needs = needs_of(job.plan, torch.float32, 0)
    assert setup_for(job, needs).prompts == (one, two, one, two)
    assert setup_for(job_for(prompt=one), needs).prompts == (one,) * 4
    _, measured = measured_for(job, model)
    (heads,) = {len(rows) for rows in measured.profile.shares}
    assert measured.profile.measured["prompts"] == 4 and heads == 6


def test_measuring_takes_at_most_20_seconds_on_a_4090():
    """By operations and the rates of cards, as the table on the page of head profiles has it."""
    _, setup = needs_and_setup(WAN_VAE)
    seconds = {card.name: seconds_on(card, setup) for card in CARDS}
    assert 5 < seconds["4090"] <= 20
    page = (Path(__file__).parents[2] / "docs/head_profiles.md").read_text("utf-8")
    assert table() in page
    assert (seconds["3060"] > AutoProfile().measure_seconds) and "than the minute" in page


def test_operations_are_those_of_the_calls(model):
    """Of a measurement with the demo's model, counted by PyTorch."""
    setup = setup_for(job_for(), needs_of(job_for().plan, torch.float32, 0))
    setup = replace(setup, prompts=setup.prompts[:1])
    embed = word_hash.encode(setup.prompts[0])
    with FlopCounterMode(display=False) as counted:
        profile_heads(model, assets.TOY_CONFIG, HeadShares(setup), {0: embed}, dtype=torch.float32)
    linear, attention = map(sum, zip(*setup.flops(assets.TOY_CONFIG), strict=True))
    assert counted.get_total_flops() == pytest.approx(linear + attention, rel=0.15)
