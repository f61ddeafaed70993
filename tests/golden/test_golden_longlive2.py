"""LongLive 2.0 on Wan 2.2: runs recorded with its authors' own code come out again, latents, windows and positions."""

from pathlib import Path

import pytest
import torch
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods.longlive2 import LongLive2Cache
from headforcing.headforcing_core.methods.registry import method_policy
from headforcing.headforcing_core.model.latents import WAN22
from headforcing.headforcing_core.recorded.replay import Case, read_run, replay
from headforcing.headforcing_core.render.family import family_of_file, with_family
from headforcing.headforcing_core.render.options import RenderOptions
from headforcing.headforcing_core.rollout.schedule import SCHEDULES, Schedule
from headforcing.headforcing_core.rollout.unipc import whole_timestep
from headforcing.headforcing_core.weights.checkpoint import convert, load_state_dict
from safetensors import safe_open

TOLERANCE = 1e-5  # of the latents' standard deviation
REFUSED = {"shots_sink4": "no whole blocks", "guidance3": "guidance must be 1"}
RUNS = """single single_plain_sink single_no_sink single_window16_sink4_block4 single_window24 single_unbounded grid_4x6
two_shots three_shots three_shots_window16_block4 shots_plain_sink shots_no_offset shots_clean_recache prompt_per_block
relative_rope relative_rope_shots i2v i2v_two_shots steps1 steps2 steps7 batch2 continue_video lora""".split()
SHOTS = [run for run in RUNS if "shot" in run and run != "shots_clean_recache"]


@pytest.fixture(scope="session")
def case(shared_dir: Path | None) -> Case:
    if shared_dir is None or not (shared_dir / "golden" / "longlive2").is_dir():
        pytest.skip("the recordings of LongLive 2.0 (../shared/golden/longlive2) are not here")
    return Case.open(shared_dir / "golden" / "longlive2")


def test_every_recorded_run_is_repeated_or_refused_by_name(case):
    assert set(case.config["runs"]) == {*RUNS, *REFUSED}


@pytest.mark.parametrize("run", RUNS)
def test_a_replay_gives_the_recorded_latents(case, run):
    latents, expected = replay(case, run).latents, case.tensors[f"latents/{run}"][0]
    assert latents.shape == expected.shape
    assert (latents - expected).abs().max() < TOLERANCE * expected.std()


@pytest.mark.parametrize(("run", "why"), REFUSED.items())
def test_a_run_without_a_meaning_here_is_refused_in_a_sentence(case, run, why):
    with pytest.raises(HeadForcingError, match=why):
        replay(case, run)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 7, 8, 12])
def test_noise_levels_and_timesteps_are_the_recorded_ones(case, steps):
    recorded, sigmas = case.config["scheduler"][str(steps)], Schedule.unipc(steps, 8).sigmas
    assert [*sigmas, 0.0] == recorded["sigmas"]
    assert list(map(whole_timestep, sigmas)) == recorded["timesteps"]
    assert SCHEDULES["longlive2"].sigmas == Schedule.unipc(4, 8).sigmas


@pytest.mark.parametrize("run", SHOTS)
def test_every_slot_has_the_recorded_frame_at_the_recorded_position(case, monkeypatch, run):
    held: list[list[int]] = []
    slots: list[int] = []
    positions: dict[int, int] = {}
    opened, dropped = LongLive2Cache.open, LongLive2Cache.drop

    def note_drop(self, first, count):
        del slots[first : first + count]
        dropped(self, first, count)

    def note(self):
        opened(self)
        slots.extend(range(self.start, self.end))
        held.append(list(slots))
        offset = 0 if self.policy.infinite else self.shots * self.policy.shot_offset
        positions.update({frame: frame + offset for frame in range(self.start, self.end)})

    monkeypatch.setattr(LongLive2Cache, "open", note)
    monkeypatch.setattr(LongLive2Cache, "drop", note_drop)
    replay(case, run)
    for found, block in zip(held, case.config["facts"][run], strict=True):
        assert found == block["cached_frames"]
        if not case.run(run)["relative_rope"]:
            assert [positions[frame] for frame in found] == block["key_positions"]


def test_the_window_of_the_last_layer_ends_with_the_recorded_keys(case, monkeypatch):
    caches = []
    begun = LongLive2Cache.begin_video
    monkeypatch.setattr(LongLive2Cache, "begin_video", lambda self: (caches.append(self), begun(self)))
    replay(case, "two_shots")
    for name, slots in zip("kv", caches[0].slots[-1], strict=True):
        recorded = case.tensors[f"cache_{name}_last_layer/two_shots"].unflatten(0, (32, 6)).permute(2, 0, 1, 3)
        assert torch.allclose(slots, recorded, atol=2e-5)


def test_a_file_as_it_is_released_gives_the_same_weights_and_converts(case, tmp_path):
    plain, _ = load_state_dict(case.folder / "model.safetensors", num_heads=4)
    released = case.folder / "merged_layout.pt"
    wrapped, info = load_state_dict(released, num_heads=4)
    assert wrapped.keys() == plain.keys() and all(torch.equal(wrapped[name], plain[name]) for name in plain)
    assert (info.layout, info.family, info.config.latents) == ("generator", "wan2.2-ti2v-custom", WAN22)
    made = convert(released, tmp_path / "x.safetensors", num_heads=4, model_family="longlive2", frames_per_block=8)
    assert made.fingerprint == info.fingerprint and made.causal_ar
    with safe_open(made.path, "pt") as file:
        assert "causal_ar" not in file.metadata()["config"], "ComfyUI would load it as a model of Wan 2.1"
    assert family_of_file(tmp_path / "x.safetensors") == ("longlive2", "stated in the file")
    assert family_of_file(released) == ("longlive2", "by its 48 latent channels")
    options, line = with_family(RenderOptions(), released)
    assert options.model_family == "longlive2" and "not self_forcing" in line


def test_the_released_settings_are_those_of_the_recordings(case):
    assert method_policy("longlive2") == read_run(case, "two_shots").policy
