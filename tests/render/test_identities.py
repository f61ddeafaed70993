"""What a stored thing depends on is in its name: each part is changed alone."""

import os
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
import torch
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
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from headforcing.headforcing_core.video.soundtrack import Soundtrack
from headforcing.headforcing_core.video.speech_features import speech_keys
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
    assert job(runs=tmp_path, notes={"x": 1}, patience=1.0).keys == keys


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
