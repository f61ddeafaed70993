"""LiveTalk, which a portrait and speech drive: runs recorded with its authors' own code come out
again, latents and cached frames, and mistakes that are easily made do not.
"""

from dataclasses import replace
from itertools import chain

import pytest
import torch
from headforcing.headforcing_core.cache.head_cache import HeadCache
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods.registry import method_named
from headforcing.headforcing_core.model import wan
from headforcing.headforcing_core.model.speech import speech_rows
from headforcing.headforcing_core.plan import speech as inputs
from headforcing.headforcing_core.plan.speech import Speech, SpeechInputs, TalkingPortrait
from headforcing.headforcing_core.rollout import solvers
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from headforcing.headforcing_core.rollout.schedule import LIVETALK
from headforcing.research.recordings.replay import read_run, replay
from recorded_cases import apart, each_run, open_case
from safetensors.torch import load_file
from torch import nn

TOLERANCE = 1e-4


def differs(run: str) -> float:
    """The largest difference of a run of the subset to what was recorded."""
    case = open_case("subset", "livetalk")
    return apart(replay(case, run).latents, case.tensors[f"latents/{run}"])


@each_run("livetalk")
def test_latents_are_the_recorded_ones_and_so_is_the_frame_in_every_slot(
    monkeypatch, which, name, run
):
    case = open_case(which, name)
    held: list[list[int]] = []
    begun = HeadCache.begin_block

    def note(self):
        begun(self)
        held.append(list(chain.from_iterable(self.groups[0].sources)))

    monkeypatch.setattr(HeadCache, "begin_block", note)
    assert apart(replay(case, run).latents, case.tensors[f"latents/{run}"]) < TOLERANCE
    blocks = case.config["facts"][run]
    assert len(held) == case.run(run)["frames"] // 3
    assert held == [block["cached_frames"] for block in blocks[: len(held)]]


def test_rows_channels_time_steps_and_window_are_the_recorded_ones():
    case = open_case("subset", "livetalk")
    run = read_run(case, "one_block")
    model = case.model()
    rows = speech_rows(model, run.conditions.speech.of_frames(0, 3))
    assert list(rows) == case.config["audio_layers"]
    recorded = case.tensors["audio_rows/one_block"]
    assert apart(torch.stack(list(rows.values())), recorded) < TOLERANCE
    channels = case.tensors["image_channels/one_block"].transpose(0, 1)
    assert torch.equal(run.conditions.channels(0, 3), channels)
    asked = case.config["facts"]["one_block"][0]["timesteps"]
    assert [solvers.bf16_timestep(sigma) for sigma in LIVETALK.sigmas] == asked[:4]
    assert list(LIVETALK.sigmas) == case.config["schedule"]["sigmas"]
    assert read_run(case, "rolling").method == method_named("livetalk")


@pytest.mark.parametrize("sound", ["speech_long", "speech_short"])
def test_recorded_states_of_the_audio_encoder_become_the_recorded_rows_and_latents(sound):
    case = open_case("subset", "livetalk")
    recorded = load_file(case.folder / case.config["audio_tensors_file"])
    states = recorded[f"{sound}/hidden_states"]
    features = torch.cat((states[-1:], states)).transpose(0, 1).flatten(1)
    rows = speech_rows(case.model(), Speech(features).of_frames(0, 6))
    assert apart(torch.stack(list(rows.values())), recorded[f"{sound}/audio_rows"]) < TOLERANCE
    run = {**case.run("rolling"), "frames": 6, "audio": sound}
    changed = replace(
        case,
        config={**case.config, "runs": {sound: run}},
        tensors={**case.tensors, f"audio_features/{sound}": features},
    )
    assert apart(replay(changed, sound).latents, recorded[f"{sound}/latents"]) < TOLERANCE


def test_a_scale_multiplies_the_rows_and_passes_of_a_block_share_theirs():
    case = open_case("subset", "livetalk")
    run = read_run(case, "three_blocks")
    louder = replace(run.conditions, speech=replace(run.conditions.speech, scale=2.0))
    model = case.model()
    latents = torch.zeros(3, 16, 4, 6)
    plain = SpeechInputs(run.conditions, model)
    twice = SpeechInputs(louder, model).of(3, latents)
    for layer, row in plain.of(3, latents).rows.items():
        assert torch.allclose(2 * row, twice.rows[layer])
    first = plain.of(3, latents)
    assert plain.of(3, latents) is first and plain.of(0, latents) is not first


# --- mistakes, each in place of what it is named after


def zeros_in_front(self, first, frames):
    features = torch.cat((torch.zeros(3, self.features.shape[1]), self.features))
    return features[4 * first : 4 * (first + frames)].reshape(frames, -1)


def copies_at_the_end(self, first, frames):
    features = torch.cat((self.features, self.features[-1:].expand(3, -1)))
    return features[4 * first : 4 * (first + frames)].reshape(frames, -1)


RIGHT_FEATURES = Speech.of_frames
RIGHT_CHANNELS = TalkingPortrait.channels


def features_before_time(self, first, frames):
    return RIGHT_FEATURES(self, first, frames).unflatten(1, (4, -1)).transpose(1, 2).flatten(1)


def channels_with_mask(mask_of):
    def channels(self, first, frames):
        found = RIGHT_CHANNELS(self, first, frames)
        return torch.cat((found[:, :-1], mask_of(found[:, -1:])), dim=1)

    return channels


def portrait_in_the_first_block(self, first, frames):
    found = RIGHT_CHANNELS(self, first, frames)
    return found if first == 0 else torch.cat((0 * found[:, :-1], found[:, -1:]), dim=1)


def mask_first(self, first, frames):
    return RIGHT_CHANNELS(self, first, frames).roll(1, dims=1)


def without_norm(projection, features, scale=1.0):
    pack = projection.audio_proj
    plain = nn.Module()
    plain.audio_proj = nn.Module()
    plain.audio_proj.proj = pack.proj
    plain.audio_proj.norm_out = nn.Identity()
    plain.audio_cond_projs = projection.audio_cond_projs
    return speech_rows(plain, features, scale)


def silent_clean_pass(self, latents, cache):
    inputs = self.pass_inputs.of(cache.first_frame, latents)
    for row in inputs.rows.values():
        row.zero_()
    self.flow(latents, 0.0, cache, write_only=True)
    self.pass_inputs._inputs = None


def rows_of_layers(shift):
    def rows(projection, features, scale=1.0):
        found = speech_rows(projection, features, scale)
        return {layer + shift: row for layer, row in found.items()}

    return rows


MISTAKES = {
    "zeros in front": (Speech, "of_frames", zeros_in_front),
    "copies at the end": (Speech, "of_frames", copies_at_the_end),
    "features before time": (Speech, "of_frames", features_before_time),
    "no norm": (inputs, "speech_rows", without_norm),
    "one layer late": (inputs, "speech_rows", rows_of_layers(1)),
    "one layer early": (inputs, "speech_rows", rows_of_layers(-1)),
    "exact time steps": (solvers, "bf16_timestep", lambda sigma: 1000 * sigma),
    "mask always 1": (TalkingPortrait, "channels", channels_with_mask(torch.ones_like)),
    "mask inverted": (TalkingPortrait, "channels", channels_with_mask(lambda mask: 1 - mask)),
    "mask first": (TalkingPortrait, "channels", mask_first),
    "portrait in the first block": (TalkingPortrait, "channels", portrait_in_the_first_block),
    "first frame not held": (solvers, "hold", lambda held, latents: latents),
    "clean pass without rows": (WanVideoModel, "write_clean", silent_clean_pass),
    "no row": (wan, "_add_row", lambda x, row: x),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_that_is_easily_made_is_seen(monkeypatch, mistake):
    owner, name, wrong = MISTAKES[mistake]
    monkeypatch.setattr(owner, name, wrong)
    assert differs("three_blocks") > 100 * TOLERANCE


def test_a_frame_that_is_held_only_while_it_is_noisy_is_seen(monkeypatch):
    hold = solvers.hold
    calls = []

    def only_before_a_prediction(held, latents):
        calls.append(latents)
        return hold(held, latents) if len(calls) % 2 else latents

    # a step holds the frame in what the model is given, then in what it predicts
    monkeypatch.setattr(solvers, "hold", only_before_a_prediction)
    assert differs("three_blocks") > 100 * TOLERANCE


def test_a_window_without_its_sink_is_seen():
    case = open_case("subset", "livetalk")
    run = {**case.run("rolling"), "sink": 0, "window": 6}
    changed = replace(case, config={**case.config, "runs": {"rolling": run}})
    found = replay(changed, "rolling").latents
    assert apart(found, case.tensors["latents/rolling"]) > 100 * TOLERANCE


def test_a_setting_that_the_replay_does_not_know_is_refused():
    case = open_case("subset", "livetalk")
    run = {**case.run("rolling"), "audio_scale": 2.0}
    changed = replace(case, config={**case.config, "runs": {"changed": run}})
    with pytest.raises(HeadForcingError, match="does not know audio_scale"):
        read_run(changed, "changed")
