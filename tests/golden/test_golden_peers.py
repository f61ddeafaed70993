"""Runs recorded with other methods' own inference code come out again, with the same tokens, chunks and heads chosen.

Every test id names set, method and run: `subset` lies in tests/golden/peers, `full` in ../shared/golden/peers (skipped
where that folder is missing). Rolling Forcing and CausVid have theirs in test_golden_rollouts.py. Weights are random,
sizes tiny, float32 on CPU; latents agree to 1e-4 of their standard deviation. A wrong choice or position moves at least
one run by 5e-3.
"""

from pathlib import Path

import pytest
import torch
from headforcing.headforcing_core.cache.method import RolloutInputs, VideoFacts
from headforcing.headforcing_core.commands.cli import main
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods.base import MethodCache
from headforcing.headforcing_core.methods.deep_forcing import DeepForcingCache
from headforcing.headforcing_core.methods.dummy_forcing import DummyForcingCache
from headforcing.headforcing_core.methods.echo_forcing import EchoForcingCache
from headforcing.headforcing_core.methods.forcing_kv import ForcingKVCache
from headforcing.headforcing_core.methods.id_forcing import IdForcingCache
from headforcing.headforcing_core.methods.memflow import MemFlowCache
from headforcing.headforcing_core.methods.memrope import MemRoPECache
from headforcing.headforcing_core.methods.pyramid_forcing import ANCHOR, VEIL, WAVE, Heads
from headforcing.headforcing_core.methods.registry import method_policy
from headforcing.headforcing_core.recorded.replay import Case, new_cache, read_run, replay
from headforcing.headforcing_core.rollout.loop import WanVideoModel, rollout
from headforcing.headforcing_core.rollout.schedule import schedule
from safetensors.torch import load_file

TOLERANCE = 1e-4
_RUNS = {
    "longlive": """
        single_w12_s3 single_w6_s1 single_w7_s4 switch_w12_s3_globalsink switch_w12_s3_noglobalsink
        switch_late_w12_s3_globalsink infinity_single_w12_s3 infinity_switch_w12_s3_globalsink
    """,
    "infinity_rope": "single_w6_s1 single_w12_s3 switch_w6_s1 cut_w6_s1 two_cuts_w12_s1 early_switch_w12_s1",
    "deep_forcing": """
        ds_only_sink14 ds_only_sink10 ds_pc_sink10_budget16_recent4 ds_pc_sink10_budget18_recent4_reuse2
        ds_pc_sink3_budget12_recent5
    """,
    "forcing_kv": """
        selfforcing_like_dynamic static_only wide_sink3_spatial2_temporal3 dynamic_temporal2_keep2
        realtime_like_sink0 interactive_globalsink interactive_noglobalsink
    """,
    "dummy_forcing": "ar2_mid1 ar1_mid1 ar2_mid2 interactive_ar2_mid2",
    "memflow": """
        single_bank3_interval3 single_bank3_interval3_sma single_bank2_interval2 switch_early_bank3
        switch_late_bank3 switch_bank3_noglobalsink
    """,
    "rolling_sink": "w21 w21_fresh_noise w12 w9 w15_s3 w9_from12",
    "memrope": "w12_s3 w12_s3_adaptive w12_s3_strong w9_s1_adaptive w10_s4 eviction_w12_s3",
    "reward_forcing": "w9_s3 w12_s3 w9_s3_alpha09 w9_s1 w12_s6 w10_s3 w9_s3_from12",
    "pyramid_forcing": """
        mixed mixed_two_prompts all_wave all_anchor all_veil mixed_from_3_frames mixed_odd_grid
        mixed_other_constants all_anchor_leftover all_wave_stale_readout mixed_leftover_and_stale_readout mixed_mega
        all_wave_mega
    """,
    "echo_forcing": """
        single single_reuse2 single_cycle6_sink9_comp6 single_nogate_max smooth smooth_early hardcut recall
        mixed_manual
    """,
    "id_forcing": """
        sf sf_prompt1 sf_native2 sf_native3_prompt1 sf_native9_roll12 sf_native8_roll15_sink3 sf_short sf_framewise
        ll ll_prompt1 ll_window9 ll_window15
    """,
    "causal_forcing": """
        chunkwise chunkwise_from3 framewise_4step framewise_2step framewise_1step framewise_4step_i2v
        framewise_2step_i2v
    """,
}
RUNS = {method: runs.split() for method, runs in _RUNS.items()}
SUBSET = [
    ("longlive", "switch_w12_s3_globalsink"), ("longlive", "infinity_switch_w12_s3_globalsink"),
    ("longlive", "single_w7_s4"), ("infinity_rope", "cut_w6_s1"), ("infinity_rope", "early_switch_w12_s1"),
    ("forcing_kv", "dynamic_temporal2_keep2"), ("dummy_forcing", "ar1_mid1"),
    ("deep_forcing", "ds_pc_sink10_budget18_recent4_reuse2"), ("memflow", "single_bank2_interval2"),
    ("memflow", "single_bank3_interval3_sma"), ("memflow", "switch_early_bank3"), ("rolling_sink", "w9"),
    ("memrope", "w9_s1_adaptive"), ("reward_forcing", "w9_s3_alpha09"), ("echo_forcing", "single"),
    ("echo_forcing", "smooth_early"), ("pyramid_forcing", "mixed"),
    ("pyramid_forcing", "mixed_leftover_and_stale_readout"), ("causal_forcing", "framewise_1step"),
    ("causal_forcing", "framewise_2step_i2v"),
]  # fmt: skip
# of the full set only what is not rolled out by a test below, which compares latents, too
REPLAYED = [("subset", *pair) for pair in SUBSET] + [("full", "causal_forcing", run) for run in RUNS["causal_forcing"]]
REPLAYED += [("full", "pyramid_forcing", run) for run in RUNS["pyramid_forcing"] if "stale" in run]
EVERY_METHOD = pytest.mark.parametrize("method", RUNS)
EVERY_RUN = pytest.mark.parametrize(("which", "method", "run"), REPLAYED, ids=["-".join(case) for case in REPLAYED])


@pytest.fixture(scope="session")
def peers(repo_root: Path, shared_dir: Path | None):
    def open_case(method: str, which: str = "full") -> Case:
        if which == "subset":
            return Case.open(repo_root / "tests" / "golden" / "peers" / method)
        if shared_dir is None or not (shared_dir / "golden" / "peers" / method).is_dir():
            pytest.skip("the full set (../shared/golden/peers) is not here; only the subset was checked")
        return Case.open(shared_dir / "golden" / "peers" / method)

    return open_case


def assert_as_recorded(case: Case, run: str, latents: torch.Tensor) -> None:
    expected = case.tensors[f"latents/{run}"][0]
    assert latents.shape == expected.shape
    worst = float((latents - expected).abs().max() / expected.std())
    tolerance = 1e-5 if case.config.get("method") == "id_forcing" else TOLERANCE
    assert worst < tolerance, f"latents differ by {worst:.1e} of their standard deviation"


@EVERY_METHOD
def test_every_recorded_run_of_a_method_is_in_the_list_of_these_tests(peers, method):
    assert set(peers(method).config["runs"]) == set(RUNS[method])


@EVERY_RUN
def test_a_replay_gives_the_recorded_latents(peers, which, method, run):
    case = peers(method, which)
    assert_as_recorded(case, run, replay(case, run).latents)


@pytest.mark.parametrize(("name", "method", "run"), [
    ("infinity_rope", "infinity_rope", "cut_w6_s1"), ("deep_forcing", "deep_forcing", "ds_pc_sink10_budget16_recent4"),
    ("deep_forcing_sink_only", "deep_forcing", "ds_only_sink14"), ("memflow", "memflow", "single_bank3_interval3"),
    ("memflow", "memflow", "switch_late_bank3"), ("memflow_sma", "memflow", "single_bank3_interval3_sma"),
    ("rolling_sink", "rolling_sink", "w21"), ("reward_forcing", "reward_forcing", "w9_s3"),
    ("echo_forcing", "echo_forcing", "single"), ("pyramid_forcing", "pyramid_forcing", "mixed"),
    ("pyramid_forcing_cuda", "pyramid_forcing", "mixed_mega"),
    ("pyramid_forcing_python", "pyramid_forcing", "mixed_leftover_and_stale_readout"),
])  # fmt: skip
def test_what_people_choose_by_name_is_what_was_recorded(peers, name, method, run):
    case = peers(method)
    prompts = 1 + len(case.run(run).get("switch", []))
    assert (
        method_policy(name).for_video(VideoFacts(schedule("self_forcing"), 9, prompts=prompts))
        == read_run(case, run).policy
    )


def roll_out(case: Case, run_name: str) -> MethodCache:
    """The cache that a whole run ends with; the latents must be the recorded ones."""
    run = read_run(case, run_name)
    cache = new_cache(case, run)
    blocks = rollout(WanVideoModel(case.model(), torch.float32), cache, run.script, run.noise, run.start)
    assert_as_recorded(case, run_name, torch.cat([block.latents for block in blocks]))
    assert isinstance(cache, MethodCache)
    return cache


def runs_of(*methods: str) -> pytest.MarkDecorator:
    found = [(method, run) for method in methods for run in RUNS[method]]
    return pytest.mark.parametrize(("method", "run"), found, ids=["-".join(pair) for pair in found])


def noted(monkeypatch, owner: type, name: str) -> list:
    """What a method of a cache returned, call by call."""
    notes, original = [], getattr(owner, name)

    def noting(self, *args):
        notes.append(original(self, *args))
        return notes[-1]

    monkeypatch.setattr(owner, name, noting)
    return notes


def by_head(stored: torch.Tensor, frame_tokens: int) -> torch.Tensor:
    """`[1, tokens, heads, d]` as it was recorded -> `[heads, frames, s, d]`."""
    return stored[0].unflatten(0, (-1, frame_tokens)).permute(2, 0, 1, 3)


@runs_of("longlive", "infinity_rope", "memflow", "rolling_sink", "memrope", "reward_forcing")
def test_the_window_ends_with_the_recorded_keys_and_values(peers, monkeypatch, method, run):
    case = peers(method)
    chosen = noted(monkeypatch, MemFlowCache, "choose")
    cache = roll_out(case, run)
    if method == "memflow":  # the frames that its bank keeps
        events = case.config["facts"][run]["bank_events"]
        recorded = [slots for event in events for slots in event.get("selected_per_layer", [])]
        assert [c.tolist() for c in chosen] == recorded
    if f"cache_k_last_layer/{run}" not in case.tensors:
        return  # the end of this run's cache was not recorded
    k = by_head(case.tensors[f"cache_k_last_layer/{run}"], cache.rope.frame_tokens)
    # recorded without any rotation, in slot 0 of Infinity-RoPE with it; MemRoPE stores keys like that, too
    if cache.policy.rope == "contiguous" and not isinstance(cache, MemRoPECache):
        turned = cache.rope.rotate_spatial(k)
        k = torch.cat((k[:, :1], turned[:, 1:]), dim=1) if method == "infinity_rope" else turned
    assert (cache.slots[-1][0] - k).abs().max() < TOLERANCE
    if method == "memflow":
        bank = by_head(case.tensors[f"bank_k_last_layer/{run}"], cache.rope.frame_tokens)
        assert (cache.bank[-1][0] - bank).abs().max() < TOLERANCE
    else:
        v = by_head(case.tensors[f"cache_v_last_layer/{run}"], cache.rope.frame_tokens)
        assert (cache.slots[-1][1] - v).abs().max() < TOLERANCE


@runs_of("rolling_sink", "memrope", "reward_forcing")
def test_every_slot_holds_the_recorded_frame_at_the_recorded_position(peers, method, run):
    case = peers(method)
    recorded = read_run(case, run)
    cache = new_cache(case, recorded)
    made: list[tuple[torch.Tensor, torch.Tensor]] = []  # keys and values of all frames, as the last pass stored them
    held = []

    def note_pass(layer: int, k: torch.Tensor, v: torch.Tensor, write=cache.write) -> None:
        write(layer, k, v)
        if layer == cache.shape.layers - 1:
            s = cache.rope.frame_tokens
            made[cache.start :] = zip(keys_by_head(k, s).unbind(1), keys_by_head(v, s).unbind(1), strict=True)

    def note_slots(prompt, commit=cache.commit):
        event = commit(prompt)
        held.append([slot_of(cache, made, slot) for slot in range(cache.filled)])
        return event

    cache.write, cache.commit = note_pass, note_slots
    model = WanVideoModel(case.model(), torch.float32)
    for _ in rollout(model, cache, recorded.script, recorded.noise, recorded.start):
        pass
    frames, positions = (case.tensors[f"slot_{name}/{run}"].tolist() for name in ("frames", "positions"))
    first_pass = method == "memrope" and run == "w10_s4"  # frame 3 stays as its noisiest pass made it
    for slots, row, places in zip(held, frames, positions, strict=True):
        expected = [(max(frame, -2), place) for frame, place in zip(row, places, strict=True) if frame != -1]
        expected = [(-2 if frame == -3 else frame, place) for frame, place in expected]
        for slot, (found, wanted) in enumerate(zip(slots, expected, strict=True)):
            assert found == wanted or (first_pass and wanted[0] == 3), f"slot {slot}: {found} instead of {wanted}"


def keys_by_head(x: torch.Tensor, frame_tokens: int) -> torch.Tensor:
    return x.clone().unflatten(0, (-1, frame_tokens)).permute(2, 0, 1, 3)


def slot_of(cache: MethodCache, made: list, slot: int) -> tuple[int, int]:
    """The frame in a slot of the last layer, -2 for an average, and the temporal position of its keys."""
    v = cache.slots[-1][1][:, slot]
    frame = next((number for number, (_, value) in enumerate(made) if torch.equal(value, v)), -2)
    if cache.policy.rope == "contiguous":
        return frame, slot
    k = cache.rope.rotate_spatial(made[frame][0][:, None])
    for position in range(len(made)):
        if torch.allclose(cache.rope.rotate_temporal(k, [position]), cache.slots[-1][0][:, slot : slot + 1], atol=1e-6):
            return frame, position
    return frame, -1


@runs_of("pyramid_forcing")
def test_pyramid_forcing_attends_to_the_recorded_frames_at_the_recorded_positions(peers, monkeypatch, method, run):
    case = peers(method)
    if case.run(run)["stale_readout"]:
        pytest.skip("what a stale readout holds is compared through the latents alone, in the test above")
    seen: dict[tuple, list] = {}
    read = Heads.read

    def noting(self, frame):
        sinks, recent, middle = parts = read(self, frame)
        far = ([*sinks.at, *(middle.at if self.label != VEIL else [])] or [-1])[0]
        frames = [[entry.at for entry in part.entries] for part in (sinks, recent, middle)]
        seen.setdefault((self.label, frame), []).append([far, *map(sorted, frames)])
        return parts

    monkeypatch.setattr(Heads, "read", noting)
    assert_as_recorded(case, run, replay(case, run).latents)
    recorded, steps = case.config["facts"][run]["attended"], 4
    layers = len(case.run(run)["labels"])
    checked = 0
    for number, label in ((-1, WAVE), (1, ANCHOR), (2, VEIL)):
        holding = sum(number in layer for layer in case.run(run)["labels"])
        for block, passes in enumerate(recorded.get(str(number), [])):
            for place in range(3):
                found = seen[label, 3 * block + place]
                noisy = steps * holding if len(found) > layers else 0  # given frames have a clean pass alone
                if noisy:
                    assert found[:noisy] == [as_read(passes["noisy"][place])] * noisy
                # the last layer's output of a clean pass is not needed, so that nothing is read there
                assert all(entry == as_read(passes["clean"][place]) for entry in found[noisy:])
                checked += len(found)
    assert checked == sum(map(len, seen.values()))


@runs_of("id_forcing")
def test_id_forcing_attends_to_the_recorded_frames_at_the_recorded_positions(peers, monkeypatch, method, run):
    case = peers(method)
    frames, positions = (case.tensors[f"window_{name}/{run}"].tolist() for name in ("frames", "positions"))
    seen: dict[int, tuple[list[int], list[int]]] = {}
    context = IdForcingCache.context

    def noting(self, layer, q):
        size = self.shape.frames_per_block
        blocks = [*((entry.block, entry.place) for entry in self.read), (self.block, self.place)]
        found = [[start * size + i for start, _ in blocks for i in range(size)]]
        found += [[place + i for _, place in blocks for i in range(size)]]
        seen[self.block] = found  # of every pass; the last one that computes attention in the last layer denoises
        return context(self, layer, q)

    monkeypatch.setattr(IdForcingCache, "context", noting)
    model = WanVideoModel(case.model(), torch.float32)
    recorded = read_run(case, run)
    cache = new_cache(case, recorded)
    first: dict[int, list] = {}

    def at_first_step(block, step, latents):
        if step == 1:
            first[block] = seen[block]

    video = RolloutInputs(recorded.script, recorded.noise, recorded.schedule.frames_per_block, on_step=at_first_step)
    list(recorded.policy.rollout(model, cache, video))
    for block, (found, places) in first.items():
        wanted = [(frame, place) for frame, place in zip(frames[block], positions[block], strict=True) if frame != -1]
        assert list(zip(found, places, strict=True)) == wanted, f"block {block}"


def as_read(recorded: list) -> list:
    far, *frames = recorded
    return [far, *map(sorted, frames)]


@runs_of("echo_forcing")
def test_echo_forcing_chooses_the_recorded_tokens_and_begins_scenes_as_recorded(peers, monkeypatch, method, run):
    case = peers(method)
    chosen = noted(monkeypatch, EchoForcingCache, "choose")
    begun, slots, weights = [], [], []

    def note_scene(self, *args, switch=EchoForcingCache.switch_prompt):
        switch(self, *args)
        _, scene = self.scenes()[self.block]
        begun.append((self.block, scene.source, scene.jump, self.layers[0].kv[0][:, 0].clone()))

    def note_block(self, finish=EchoForcingCache.finish):
        weights.append([state.weights[: self.kept].flatten().clone() for state in self.layers])
        slots.append(self.filled)
        finish(self)

    monkeypatch.setattr(EchoForcingCache, "switch_prompt", note_scene)
    monkeypatch.setattr(EchoForcingCache, "finish", note_block)
    assert_as_recorded(case, run, replay(case, run).latents)
    if f"selected/{run}" in case.tensors:
        recorded = case.tensors[f"selected/{run}"].flatten(0, 1)
        assert [tokens.tolist() for tokens in chosen] == [row[row >= 0].tolist() for row in recorded]
    else:
        assert not chosen
    tokens = case.config["frame_tokens"]
    assert [filled * tokens for filled in slots] == case.tensors[f"cache_len_tokens/{run}"].tolist()
    switches = case.config["facts"][run].get("switches", [])
    expected = [(switch["block"], switch["memory_from_scene"], switch["jump"]) for switch in switches]
    assert [scene[:3] for scene in begun] == expected
    for number, (*_, memory) in enumerate(begun):
        stored = case.tensors[f"memory_k/{run}"][number, 0].transpose(0, 1)
        assert (memory - stored).abs().max() < TOLERANCE
    if f"weights/{run}" in case.tensors:
        for block, per_layer in enumerate(case.tensors[f"weights/{run}"]):
            for recorded, found in zip(per_layer, weights[block], strict=True):
                assert (recorded[: len(found)] - found).abs().max() < TOLERANCE if len(found) else True
                assert (recorded[len(found) :] == 1).all()


@runs_of("deep_forcing")
def test_deep_forcing_keeps_the_recorded_tokens_and_moves_its_sinks_as_recorded(peers, monkeypatch, method, run):
    case = peers(method)
    chosen = noted(monkeypatch, DeepForcingCache, "choose")
    cache = roll_out(case, run)
    last = cache.layers[-1]
    assert last.sink_start == int(case.tensors[f"sink_start_frame/{run}"][-1])
    length = int(case.tensors[f"cache_len_tokens/{run}"][-1])
    assert last.kv.shape[2] == length
    for name, held in zip("kv", last.kv, strict=True):
        stored = case.tensors[f"cache_{name}_last_layer/{run}"][0, :length].transpose(0, 1)
        assert (held - stored).abs().max() < 2 * TOLERANCE  # the sinks are turned again and again
    if f"selected/{run}" in case.tensors:
        recorded = case.tensors[f"selected/{run}"].flatten(0, 1)
        sinks = cache.policy.sink_frames * cache.rope.frame_tokens
        assert [(sinks + c).tolist() for c in chosen] == [row[row >= 0].tolist() for row in recorded]
    else:
        assert not chosen


@runs_of("forcing_kv")
def test_forcing_kv_keeps_the_recorded_chunks(peers, monkeypatch, method, run):
    case = peers(method)
    chosen = noted(monkeypatch, ForcingKVCache, "choose")
    cache = roll_out(case, run)
    if f"kept_chunks/{run}" in case.tensors:
        recorded = case.tensors[f"kept_chunks/{run}"].tolist()
        assert [c.tolist() for c in chosen] == [row for row in recorded if row[0] >= 0]
    else:
        assert not chosen
    for name, kind in (("spatial", cache.static_last), ("temporal", cache.dynamic_last)):
        stored = by_head(case.tensors[f"group_{name}_k_last_layer/{run}"], cache.rope.frame_tokens)
        assert (kind[3][0] - stored).abs().max() < TOLERANCE


@runs_of("dummy_forcing")
def test_dummy_forcing_finds_the_recorded_groups_of_heads(peers, monkeypatch, method, run):
    case = peers(method)
    groups = noted(monkeypatch, DummyForcingCache, "classify")
    shares = noted(monkeypatch, DummyForcingCache, "_shares")
    roll_out(case, run)
    recorded = case.config["facts"][run]["head_groups"]
    assert groups == [[{kind: layer[kind] for kind in ("first", "mid", "last")} for layer in recorded]]
    assert (torch.stack(shares) - case.tensors[f"attention_shares/{run}"]).abs().max() < 1e-5


def test_the_command_line_replays_a_case_of_another_method(peers, tmp_path):
    case = peers("infinity_rope", "subset")
    out = tmp_path / "latents.safetensors"
    assert main(["replay", str(case.folder), "--run", "cut_w6_s1", "--out", str(out), "--attention", "explicit"]) == 0
    assert_as_recorded(case, "cut_w6_s1", load_file(out)["latents"])


def test_a_case_that_cannot_be_used_is_refused_in_one_sentence(peers, tmp_path):
    case = peers("longlive", "subset")
    run = {"frames": 15, "prompt_order": [0]}
    for config, words in (
        ({**case.config, "method": "nobodys"}, "must be one of longlive.*got 'nobodys'"),
        ({**case.config, "runs": {"short": run}}, "'window' is missing"),
    ):
        broken = Case(case.folder, config, case.tensors)
        with pytest.raises(HeadForcingError, match=words):
            replay(broken, next(iter(config["runs"])))
