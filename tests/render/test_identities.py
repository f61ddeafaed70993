"""What a stored thing depends on is in its name: each part is changed alone."""

import json
import os
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from headforcing.cli.batch_jobs import COMMANDS_OWN, _parser, read_jobs
from headforcing.headforcing_core.head_profiles.shares import ProfileSetup
from headforcing.headforcing_core.model import attention_timing
from headforcing.headforcing_core.model.attention_backends import Operands
from headforcing.headforcing_core.model.attention_timing import LayerSizes
from headforcing.headforcing_core.plan.options import RenderOptions
from headforcing.headforcing_core.plan.request import RenderJob, RenderRequest, StartLatents
from headforcing.headforcing_core.plan.speech import Speech
from headforcing.headforcing_core.plan.start import Start
from headforcing.headforcing_core.render.measured_roles import roles_files
from headforcing.headforcing_core.rollout.rows import Picture
from headforcing.headforcing_core.runs.folder import RunFolder
from headforcing.headforcing_core.runs.stored import StoredVideo, find_stored
from headforcing.headforcing_core.runs.takes import Label, read_label, thumbnail, write_label
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from headforcing.headforcing_core.video.sound import Sound, sound_of_samples
from headforcing.headforcing_core.video.soundtrack import Soundtrack
from headforcing.headforcing_core.video.speech_features import speech_keys
from headforcing.headforcing_core.video.writer import VideoSettings, VideoWriter
from headforcing.headforcing_core.weights.identity import file_identity
from method_renders import CONFIG, PROFILE, STRIPES, causvid_plan, job_of, repeated


@pytest.mark.parametrize("place", [(1.0, 0.0), (0.0, 6.0), (0.0, -6.0)])
def test_a_sound_in_another_place_or_louder_is_another_sound(place: tuple[float, float]) -> None:
    sound = Soundtrack.of_samples(torch.linspace(-0.5, 0.5, 800)[None], 8000)
    assert sound.placed(0.0, 0.0).identity == sound.identity
    assert sound.placed(*place).identity != sound.identity


def test_the_vae_that_encodes_the_last_picture_of_a_rollout_is_in_the_keys_of_the_next_one() -> (
    None
):
    plan = causvid_plan(seconds=18.0)
    first_restart = plan.vae_use.first_block

    def keys(vae: str) -> list[str]:
        return job_of(plan, codec=SimpleNamespace(reencode=repeated, fingerprint=lambda: vae)).keys

    assert plan.vae_use and keys("one") == keys("one")
    pairs = list(zip(keys("one"), keys("another"), strict=True))
    assert all(one == another for one, another in pairs[:first_restart])
    assert all(one != another for one, another in pairs[first_restart:])
    assert len(pairs) > first_restart


# ---------------------------------------------------------------------------------- keys of blocks

STORY = "0:00 a red ball\n0:01.5 {} a yellow ring @hero"
SEGMENT = 2  # the first block of the second prompt


def job(
    text: str = STORY.format(""), *, video: int = 0, embed=None, picture="", **more
) -> RenderJob:
    """A video of four blocks, two for each prompt; other fields of the request and its options."""
    asked = {
        "width": 96,
        "height": 64,
        "seconds": 3.0,
        "seed": 3,
        "sigmas": "1, 0.6",
        "profile": PROFILE,
    }
    names = {field.name for field in fields(RenderOptions)}
    options = RenderOptions(**asked | {name: more.pop(name) for name in names & set(more)})
    timeline = parse_timeline(text, references=("hero",), **options.timeline_arguments)
    embeds = {each: torch.full((4, 8), float(n)) for n, each in enumerate(timeline.texts)}
    if embed is not None:
        embeds[timeline.texts[-1]] = embed
    pictures = {"hero": Picture(torch.zeros(3, 16, 8, 12), picture)}
    request = RenderRequest(
        CONFIG, options, timeline, embeds, pictures=pictures, **{"weights": "toy", **more}
    )
    return request.job(video=video)


@pytest.mark.parametrize(
    ("changed", "first"),
    [
        pytest.param({"weights": "others"}, 0, id="weights"),
        pytest.param({"dtype": torch.bfloat16}, 0, id="dtype"),
        pytest.param({"profile": STRIPES}, 0, id="roles"),
        pytest.param({"method_options": (("memory.recent_frames", "4"),)}, 0, id="method"),
        pytest.param({"sigmas": "1, 0.5"}, 0, id="noise levels"),
        pytest.param({"model_family": "causal_forcing_framewise"}, 0, id="schedule"),
        pytest.param({"width": 64}, 0, id="width"),
        pytest.param({"height": 96}, 0, id="height"),
        pytest.param({"seed": 4}, 0, id="seed"),
        pytest.param({"video": 1}, 0, id="video of a batch"),
        pytest.param({"start": StartLatents(torch.ones([1, 3, 16, 8, 12]))}, 0, id="start"),
        pytest.param({"text": STORY.format("[recache]")}, SEGMENT, id="switch"),
        pytest.param({"text": STORY.format("[re-anchor]")}, SEGMENT, id="anchors"),
        pytest.param({"text": STORY.format("[seed 9]")}, SEGMENT, id="seed of a prompt"),
        pytest.param({"embed": torch.ones(4, 8) / 2}, SEGMENT, id="embedding"),
        pytest.param({"picture": "another"}, SEGMENT, id="picture"),
        pytest.param({"text": STORY.format("").replace("01.5", "02.2")}, SEGMENT, id="time"),
    ],
)
def test_a_block_has_a_key_of_all_that_it_depends_on(changed, first):
    keys = job().keys
    others = job(**changed).keys
    assert job().keys == keys and len(keys) >= 4 and len(set(keys)) == len(keys)
    same = [one == other for one, other in zip(keys, others, strict=False)]
    assert same == [True] * first + [False] * (len(same) - first)


def test_a_block_does_not_depend_on_what_comes_later_nor_on_where_it_is_stored(tmp_path):
    keys = job().keys
    longer = job(seconds=4.5).keys
    assert longer[: len(keys)] == keys
    assert job(runs=tmp_path, about={"x": 1}, patience=1.0).keys == keys


def test_what_drives_a_block_is_in_its_key():
    """The sound of its video frames, its encoder, and how strongly it drives the model."""
    features = torch.arange(24.0)[:, None]
    speech = Speech(features, scale=1.0)
    key = speech.block_key(0, 3)
    assert Speech(features, scale=1.5).block_key(0, 3) != key
    louder = features.clone()
    louder[2] += 1
    assert Speech(louder, scale=1.0).block_key(0, 3) != key
    assert Speech(louder, scale=1.0).block_key(3, 3) == speech.block_key(3, 3)


def test_features_of_speech_are_named_by_the_sound_the_encoder_and_their_places():
    wave = torch.linspace(-1, 1, 16000)
    keys = speech_keys(wave, 25, SimpleNamespace(key="one"))
    assert len(set(keys)) == len(keys) == 25
    others = [
        speech_keys(wave / 2, 25, SimpleNamespace(key="one")),
        speech_keys(wave, 25, SimpleNamespace(key="another")),
        speech_keys(wave, 25, SimpleNamespace(key="one"), stretch_seconds=1.0),
    ]
    for other in others:
        assert set(other).isdisjoint(keys)


def test_encoded_frames_are_named_by_the_frames_and_the_vae():
    frames = torch.zeros(1, 8, 8, 3, dtype=torch.uint8)
    vae = SimpleNamespace(fingerprint=lambda: "one")
    key = Start(frames, "").key(vae)
    assert Start(frames + 1, "").key(vae) != key
    assert Start(frames, "").key(SimpleNamespace(fingerprint=lambda: "another")) != key


# ----------------------------------------------------------------------------------- other files


def test_roles_are_kept_by_the_weights_that_they_were_measured_on(tmp_path):
    folders = [tmp_path, tmp_path / "runs"]
    one = roles_files(folders, "weights")
    other = roles_files(folders, "others")
    assert len(one) == 2 and set(one).isdisjoint(other)


@pytest.mark.parametrize("name", [each.name for each in fields(ProfileSetup)])
def test_a_measurement_is_of_its_whole_setup(name):
    """Measurements are gone on with and merged if their setups are equal."""
    setup = ProfileSetup(
        fingerprint="toy",
        num_layers=3,
        num_heads=3,
        prompts=("a", "b"),
        blocks=7,
        sigmas=(1.0, 0.5),
        frames_per_block=3,
        width=64,
        height=64,
    )
    other = {str: "other", int: 9, tuple: (1.0, 0.25), type(None): (1.0,)}[
        type(getattr(setup, name))
    ]
    assert replace(setup, **{name: other}) != setup == replace(setup)


@pytest.mark.parametrize("changed", ["queries", "groups", "dtype", "head_dim", "names", "torch"])
def test_times_of_backends_are_named_by_what_is_timed(changed, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def file():
        return attention_timing._file(names, sizes, operands)

    names = ["sdpa", "flex"]
    sizes = LayerSizes(12, ((2, 40), (1, 12)))
    operands = Operands(torch.device("cpu"), torch.float32, 16)
    before = file()
    if changed == "queries":
        sizes = LayerSizes(24, sizes.groups)
    elif changed == "groups":
        sizes = LayerSizes(12, ((1, 40), (2, 12)))
    elif changed == "dtype":
        operands = Operands(operands.device, torch.bfloat16, 16)
    elif changed == "head_dim":
        operands = Operands(operands.device, torch.float32, 32)
    elif changed == "names":
        names = ["sdpa"]
    else:
        monkeypatch.setattr(torch, "__version__", "0.0.1")
    assert file() != before


@pytest.mark.parametrize("changed", ["content", "size", "part", "place"])
def test_the_identity_of_a_file_is_computed_again_when_the_file_has_changed(
    changed, monkeypatch, tmp_path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"one")
    os.utime(path, (1e9, 1e9))
    made = iter(f"{number:016x}" for number in range(9))

    def ask(part: str = "wan") -> str:
        return file_identity(path, part, lambda: next(made))

    first = ask()
    assert ask() == first
    part = "wan"
    if changed == "content":  # of the same size and time: its time of change is another one
        path.write_bytes(b"two")
        os.utime(path, (1e9, 1e9))
    elif changed == "size":
        path.write_bytes(b"longer")
        os.utime(path, (1e9, 1e9))
    elif changed == "part":
        part = "vae"
    else:
        path = path.rename(tmp_path / "other.safetensors")
    assert ask(part) != first


@pytest.mark.parametrize("changed", ["name", "driver", "package"])
def test_times_of_backends_on_a_gpu_are_named_by_gpu_driver_and_packages(
    changed, monkeypatch, tmp_path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told = {"name": "a GPU", "driver": "1.0", "package": "1.0"}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: told["name"])
    monkeypatch.setattr(attention_timing, "driver_version", lambda: told["driver"])
    monkeypatch.setattr(attention_timing.metadata, "version", lambda package: told["package"])
    operands = Operands(torch.device("cuda"), torch.float32, 16)

    def file():
        return attention_timing._file(["sdpa"], LayerSizes(12, ((2, 40),)), operands)

    before = file()
    told[changed] = "another"
    assert file() != before


@pytest.fixture
def stored(tmp_path):
    """A function that gives a stored video of these keys, in one folder."""

    def make(*keys: str) -> StoredVideo:
        about = {"prompts": ["a"], "starts_seconds": [0.0], "video_frames": 9}
        with RunFolder(tmp_path / "runs", "0" * 32, about) as folder:
            folder.save_video(keys, about)
            for place, key in enumerate(keys):
                previous = keys[place - 1] if place else None
                latents = torch.full((3, 16, 4, 4), float(int(key[0], 16)))
                folder.save_block(place, key, latents, None, previous=previous)
        return find_stored(folder.folder)

    return make


def test_a_small_picture_is_that_of_its_block(stored):
    """A later take with another first block gets its own, one with the same block the same."""

    def picture(video: StoredVideo) -> bytes | None:
        return thumbnail(video, 0, lambda latents: str(latents.mean().item()).encode())

    assert picture(stored("1" * 32)) == b"1.0"
    assert picture(stored("2" * 32)) == b"2.0"
    assert picture(stored("1" * 32, "3" * 32)) == b"1.0"


def test_a_label_is_that_of_the_last_block_of_its_take(stored):
    first = stored("1" * 32)
    write_label(first.folder, first.keys[-1], title="mine", starred=True)
    longer = stored("1" * 32, "3" * 32)
    assert read_label(longer.folder, longer.keys[-1]) == Label()
    assert read_label(first.folder, first.keys[-1]).title == "mine"


# ------------------------------------------------------------------------ finished video of a batch

OPTIONS = {  # a line of a batch, and for each option another value
    "prompts": ("a red ball", "a blue cross"),
    "seconds": (3, 4.5),
    "seed": (1, 2),
    "size": ("64x64", "96x64"),
    "start_part": ("first", "last"),
    "audio_offset": (0.0, 1.0),
    "audio_gain": (0.0, -3.0),
    "switch": ("reset", "flush"),
    "re_anchor": (False, True),
    "method": ("head_forcing", "longlive"),
    "set": ("memory.recent_frames=3", "memory.recent_frames=4"),
    "sigmas": ("1, 0.5", "1, 0.6"),
    "attention": ("auto", "sdpa"),
    "dtype": ("bf16", "fp32"),
    "fp8_linears": (False, True),
    "rule": ("quota", "function"),
    "decoder": ("auto", "wan"),
    "latents": (False, True),
    "start_seconds": (1.0, 2.0),
    "blend_blocks": (0, 1),
    "num_heads": (4, 8),
    "model_family": ("auto", "longlive"),
    "roles": ("profile", "shuffled"),
    "shuffle": (0, 1),
    "alpha": (0.5, 0.6),
    "tau_local": (0.5, 0.6),
    "found_profiles": ("found", "others"),
    "measure_seconds": (60.0, 90.0),
    "episodic_frames": (2, 3),
    "recent_frames": (3, 4),
    "novelty_threshold": (0.5, 0.6),
    "update_interval": (1, 2),
    "state_seconds": (300.0, 60.0),
    "speech_scale": (1.0, 2.0),
    "speech_segment": (0.0, 1.5),
    "compile": (False, True),
    "device": ("auto", "cpu"),
    "vae_device": ("cpu", "cuda:1"),
    "park_features": (False, True),
}
FILES = {  # options that name a file, and a file that is read
    "weights": "w.safetensors",
    "lora": "lora.safetensors",
    "text_encoder": "t.safetensors",
    "vae": "v.safetensors",
    "live_decoder": "d.safetensors",
    "start_image": "image.png",
    "start_video": "start.mp4",
    "start_latents": "start.safetensors",
    "reference": "hero.png",
    "audio": "sound.wav",
    "profile": "mine.json",
    "shares of the profile": "mine.safetensors",
    "speech": "speech.wav",
    "speech_encoder": "encoder/model.safetensors",
    "its description": "encoder/config.json",
    "embeddings": "embeddings.safetensors",
}


STARTS = {"start_image", "start_video", "start_latents"}  # a line has one of them


def identity_of(folder: Path, start: str = "start_image", **changed: object) -> str:
    """That of a line with all of these options, whatever a render says of them together."""
    line = {name: value for name, (value, _) in OPTIONS.items()}
    for name, file in FILES.items():
        if " " not in name and name not in STARTS - {start}:
            line[name] = str(folder / file)
    line |= {"speech_encoder": str(folder / "encoder"), "reference": f"hero={folder / 'hero.png'}"}
    jobs = folder / "jobs.jsonl"
    jobs.write_text(json.dumps({**line, **changed}))
    (args,) = read_jobs(jobs, folder / "out").values()
    return args.identity


@pytest.fixture
def files_of_a_batch(tmp_path):
    (tmp_path / "encoder").mkdir()
    for file in FILES.values():
        (tmp_path / file).write_bytes(b"one")
        os.utime(tmp_path / file, (1e9, 1e9))
    return tmp_path


def test_these_are_all_options_of_a_line():
    options = {action.dest for action in _parser("generate")._actions} - COMMANDS_OWN
    named = {name for name in (*OPTIONS, *FILES) if " " not in name}
    assert named == options | {"latents"}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_finished_video_of_a_batch_is_of_each_option_of_its_line(name, files_of_a_batch):
    before = identity_of(files_of_a_batch)
    assert identity_of(files_of_a_batch) == before
    assert identity_of(files_of_a_batch, **{name: OPTIONS[name][1]}) != before


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("changed", ["size", "time", "place"])
def test_a_finished_video_of_a_batch_is_of_each_file_that_its_line_names(
    name, changed, files_of_a_batch
):
    start = name if name in STARTS else "start_image"
    before = identity_of(files_of_a_batch, start)
    path = files_of_a_batch / FILES[name]
    if changed == "size":
        path.write_bytes(b"another")
        os.utime(path, (1e9, 1e9))
    elif changed == "time":
        os.utime(path, (1e9, 1e9 + 1))
    else:
        path.rename(path.with_name(f"old-{path.name}"))
    assert identity_of(files_of_a_batch, start) != before


def test_a_finished_video_of_a_batch_does_not_depend_on_files_that_it_does_not_name(
    files_of_a_batch, monkeypatch
):
    """The text of `@story.txt` counts, not the file; a file called `sdpa` is none that is read."""
    monkeypatch.chdir(files_of_a_batch)
    story = files_of_a_batch / "story.txt"
    story.write_text("a red ball")
    before = identity_of(files_of_a_batch, prompts="@story.txt", attention="sdpa")
    os.utime(story, (1e9, 1e9))
    (files_of_a_batch / "sdpa").write_text("x")
    assert identity_of(files_of_a_batch, prompts="@story.txt", attention="sdpa") == before
    story.write_text("a red ball.")
    assert identity_of(files_of_a_batch, prompts="@story.txt", attention="sdpa") != before


def test_half_a_finished_video_goes_on_with_the_sound_that_is_given_now(tmp_path):
    """So its name need not tell the sound: that of the part which is there is not kept."""
    frames = torch.zeros(48, 64, 64, 3, dtype=torch.uint8)

    def tone(hertz: float) -> Sound:
        at = torch.arange(3 * 48_000) / 48_000
        return sound_of_samples(torch.sin(6.2832 * hertz * at)[None] / 2, 48_000)

    settings = VideoSettings(tmp_path / "v.mp4", fps=16, partial=tmp_path / "v.part.mp4")
    with (
        pytest.raises(KeyboardInterrupt),
        VideoWriter(settings, 64, 64, goes_on=True, sound=tone(220)) as writer,
    ):
        writer.write(frames[:40])
        raise KeyboardInterrupt
    with VideoWriter(settings, 64, 64, goes_on=True, sound=tone(880)) as writer:
        assert writer.video_frames > 0
        writer.write(frames[writer.video_frames :])
    heard = list(Soundtrack.of_file(tmp_path / "v.mp4").sound.pieces())
    first_second = np.concatenate(heard, axis=1)[0, :48_000]
    assert np.abs(np.fft.rfft(first_second)).argmax() == 880
