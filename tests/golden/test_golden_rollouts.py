"""Rolling Forcing and CausVid, which need an order of passes of their own, leave what their
authors' code leaves.

Their latents are compared in test_golden_peers.py, too.
"""

import pytest
import torch
from headforcing.headforcing_core.methods.rolling_forcing import SCHEDULE
from headforcing.headforcing_core.model import rope
from headforcing.research.recordings.replay import read_run
from recorded_cases import apart, each_run, kept_cache, open_case, replayed


@each_run("peers/rolling_forcing", sets=("full",))
def test_a_rolling_window_gives_the_recorded_latents_and_leaves_the_recorded_cache(
    monkeypatch, which, name, run
):
    case = open_case(which, name)
    caches = kept_cache(monkeypatch)
    replayed(case, run)
    (cache,) = caches
    frames = []
    for block in cache.past[-1]:
        frames += [3 * block, 3 * block + 1, 3 * block + 2]
    slots = case.config["cache_states_last_layer"][run][-1]["slots"]
    assert frames == [slot[0] for slot in slots]
    keys, values = torch.cat([*cache.past[-1].values()], dim=2)
    frame_tokens = cache.rope.frame_tokens
    recorded_keys = rope.by_head(case.tensors[f"cache_k_last_layer/{run}"][0], frame_tokens)
    recorded_values = rope.by_head(case.tensors[f"cache_v_last_layer/{run}"][0], frame_tokens)
    k = recorded_keys[:, : len(frames)]
    v = recorded_values[:, : len(frames)]
    # the anchor's keys are recorded without any rotary embedding
    k = torch.cat((cache.rope.rotate_spatial(k[:, :3]), k[:, 3:]), dim=1)
    assert apart(cache.rope.rotate_temporal(keys, [0, 0, 0, *frames[3:]]), k) < 1e-4
    assert apart(values, v) < 1e-4
    schedule = read_run(case, run).schedule
    assert [1000 * sigma for sigma in schedule.sigmas] == pytest.approx(
        case.tensors[f"denoising_steps/{run}"].tolist(), abs=1e-4
    )
    assert (schedule == SCHEDULE) == run.startswith("steps5")


@each_run("peers/causvid", sets=("full",))
def test_the_causvid_schedules_are_the_recorded_ones(which, name, run):
    case = open_case(which, name)
    expected = case.tensors[f"denoising_steps/{run}"].tolist()
    warped = case.run(run)["warp"]
    timesteps = [1000 * sigma for sigma in read_run(case, run).schedule.sigmas]
    assert [t if warped else round(t) for t in timesteps] == pytest.approx(expected, abs=1e-4)
