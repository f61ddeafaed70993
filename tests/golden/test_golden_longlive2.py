"""LongLive 2.0 on Wan 2.2: runs recorded with its authors' own code come out again, latents,
windows and positions.
"""

from dataclasses import replace

import pytest
import torch
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods.longlive2 import LongLive2Cache
from headforcing.headforcing_core.methods.registry import method_named
from headforcing.headforcing_core.model import rope
from headforcing.headforcing_core.model.latents import WAN22
from headforcing.headforcing_core.plan.family import family_of_file, with_family
from headforcing.headforcing_core.plan.options import RenderOptions
from headforcing.headforcing_core.rollout.schedule import SCHEDULES, Schedule
from headforcing.headforcing_core.rollout.solvers import whole_timestep
from headforcing.headforcing_core.weights.checkpoint import convert, load_state_dict
from headforcing.research.recordings.replay import read_run, replay
from recorded_cases import each_run, kept_cache, needs, open_case, replayed
from safetensors import safe_open

REFUSED = {"shots_sink4": "no whole blocks", "guidance3": "guidance must be 1"}
UNNOTED = {*REFUSED, "shots_clean_recache"}  # drops frames in a clean pass


@each_run("longlive2", wanted=lambda run: run not in REFUSED)
def test_every_slot_has_the_recorded_frame_at_the_recorded_position_and_latents_are_the_same(
    monkeypatch, which, name, run
):
    case = open_case(which, name)
    caches = kept_cache(monkeypatch)
    held: list[list[int]] = []
    slots: list[int] = []
    positions: dict[int, int] = {}
    opened = LongLive2Cache.open
    dropped = LongLive2Cache.drop

    def note_drop(self, first, count):
        del slots[first : first + count]
        dropped(self, first, count)

    def note(self):
        opened(self)
        slots.extend(range(self.start, self.end))
        held.append(list(slots))
        offset = 0 if self.method.infinite else self.shots * self.method.shot_offset
        positions.update({frame: frame + offset for frame in range(self.start, self.end)})

    monkeypatch.setattr(LongLive2Cache, "open", note)
    monkeypatch.setattr(LongLive2Cache, "drop", note_drop)
    replayed(case, run, tolerance=1e-5)
    if "shot" in run and run not in UNNOTED:
        for found, block in zip(held, case.config["facts"][run], strict=True):
            assert found == block["cached_frames"]
            if not case.run(run)["relative_rope"]:
                assert [positions[frame] for frame in found] == block["key_positions"]
    if run == "two_shots":
        keys = case.tensors[f"cache_k_last_layer/{run}"].flatten(0, -3)
        values = case.tensors[f"cache_v_last_layer/{run}"].flatten(0, -3)
        recorded = torch.stack([rope.by_head(keys, 6), rope.by_head(values, 6)])
        assert torch.allclose(caches[0].slots[-1], recorded, atol=2e-5)
        assert method_named("longlive2") == read_run(case, run).method, "the released settings"


@needs("longlive2")
@pytest.mark.parametrize(("run", "why"), REFUSED.items())
def test_a_run_without_a_meaning_here_is_refused_in_a_sentence(run, why):
    with pytest.raises(HeadForcingError, match=why):
        replay(open_case("full", "longlive2"), run)


@needs("longlive2")
@pytest.mark.parametrize(
    "changed, why",
    [
        ({"t_scale": 0.5}, "t_scale must be null, got 0.5"),
        ({"independent_first_frame": True}, "independent_first_frame needs an image"),
        ({"rope_offset": 2.5}, "rope_offset must be whole frames, got 2.5"),
        (
            {"clean_recache": True, "sink": 0, "multi_shot_sink": False},
            "clean_recache needs a sink",
        ),
        ({"sink_scale": 2}, "does not know sink_scale"),
    ],
)
def test_a_setting_that_the_replay_does_not_follow_is_refused(changed, why):
    case = open_case("full", "longlive2")
    run = {**case.run("two_shots"), **changed}
    changed_case = replace(case, config={**case.config, "runs": {"changed": run}})
    with pytest.raises(HeadForcingError, match=why):
        read_run(changed_case, "changed")


@pytest.mark.parametrize(
    "method, of_case, of_run, why",
    [
        ("deep_forcing", {}, {"fusion": "max"}, "fusion must be 'sum', got 'max'"),
        ("deep_forcing", {}, {"local_attn_size": 12}, "local_attn_size must be 21, got 12"),
        ("echo_forcing", {}, {"recent_frames": 6}, "recent_frames must be 3, got 6"),
        ("echo_forcing", {"context_noise": 5}, {}, "context_noise must be 0, got 5"),
        ("echo_forcing", {"dtype": "bfloat16"}, {}, "dtype must be 'float32', got 'bfloat16'"),
        ("echo_forcing", {"cfg_scale": 3}, {}, "does not know cfg_scale"),
        (
            "echo_forcing",
            {"method": "soulx"},
            {},
            "must be one of causal_forcing, .* 'soulx'",
        ),
    ],
)
def test_a_value_that_a_replay_does_not_follow_is_refused(method, of_case, of_run, why):
    case = open_case("subset", f"peers/{method}")
    name = next(iter(case.config["runs"]))
    runs = {name: case.run(name) | of_run}
    with pytest.raises(HeadForcingError, match=why):
        read_run(replace(case, config=case.config | {"runs": runs} | of_case), name)


@needs("longlive2")
def test_noise_levels_and_timesteps_are_the_recorded_ones():
    for steps in (1, 2, 3, 4, 5, 7, 8, 12):
        recorded = open_case("full", "longlive2").config["scheduler"][str(steps)]
        sigmas = Schedule.unipc(steps, 8).sigmas
        assert [*sigmas, 0.0] == recorded["sigmas"]
        assert list(map(whole_timestep, sigmas)) == recorded["timesteps"]
    assert SCHEDULES["longlive2"].sigmas == Schedule.unipc(4, 8).sigmas


@needs("longlive2")
def test_a_file_as_it_is_released_gives_the_same_weights_and_converts(tmp_path):
    folder = open_case("full", "longlive2").folder
    plain, _ = load_state_dict(folder / "model.safetensors", num_heads=4)
    released = folder / "merged_layout.pt"
    wrapped, info = load_state_dict(released, num_heads=4)
    assert wrapped.keys() == plain.keys()
    assert all(torch.equal(wrapped[name], plain[name]) for name in plain)
    assert (info.layout, info.family, info.config.latents) == (
        "generator",
        "wan2.2-ti2v-custom",
        WAN22,
    )
    made = convert(
        released,
        tmp_path / "x.safetensors",
        num_heads=4,
        model_family="longlive2",
        frames_per_block=8,
    )
    assert made.fingerprint == info.fingerprint
    with safe_open(made.path, "pt") as file:
        assert "causal_ar" not in file.metadata()["config"], (
            "ComfyUI would load it as a model of Wan 2.1"
        )
    assert family_of_file(tmp_path / "x.safetensors") == ("longlive2", "stated in the file")
    assert family_of_file(released) == ("longlive2", "by its 48 latent channels")
    options, line = with_family(RenderOptions(), released)
    assert options.model_family == "longlive2" and "not self_forcing" in line
