"""Runs recorded with other methods' own inference code come out again, with the same tokens, chunks
and heads chosen.

Every test id names set, method and run. Latents agree to 1e-4 of their standard deviation; a wrong
choice or position moves at least one run by 5e-3.
"""

import pytest
import torch
from headforcing.headforcing_core.methods.deep_forcing import DeepForcingCache
from headforcing.headforcing_core.methods.dummy_forcing import DummyForcingCache
from headforcing.headforcing_core.methods.echo_forcing import EchoForcingCache
from headforcing.headforcing_core.methods.forcing_kv import ForcingKVCache
from headforcing.headforcing_core.methods.id_forcing import IdForcingCache
from headforcing.headforcing_core.methods.memflow import MemFlowCache
from headforcing.headforcing_core.methods.memrope import MemRoPECache
from headforcing.headforcing_core.methods.method import VideoFacts
from headforcing.headforcing_core.methods.pyramid_forcing import ANCHOR, VEIL, WAVE, LabelState
from headforcing.headforcing_core.methods.registry import method_named
from headforcing.headforcing_core.methods.tethercache import TetherCacheSlots
from headforcing.headforcing_core.model import rope
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from headforcing.headforcing_core.rollout.schedule import schedule
from headforcing.research.recordings.authors import AuthorsLabelState, AuthorsPyramidForcing
from headforcing.research.recordings.replay import Case, read_run, replay
from recorded_cases import apart, each_run, kept_cache, needs, noted, open_case, replayed

TOLERANCE = 1e-4
METHODS = (
    "longlive commit_forcing infinity_rope deep_forcing forcing_kv dummy_forcing memflow rolling_sink memrope "
    "reward_forcing pyramid_forcing echo_forcing id_forcing causal_forcing rolling_forcing causvid "
    "tethercache swift"
).split()


def full_runs_of(*methods: str):
    return each_run(*(f"peers/{method}" for method in methods), sets=("full",))


# of the full set only what is not replayed by a test below
@each_run(*(f"peers/{method}" for method in METHODS), sets=("subset",))
def test_a_replay_gives_the_recorded_latents(which, name, run):
    replayed(open_case(which, name), run)


@full_runs_of("causal_forcing", "causvid", "tethercache")
def test_a_replay_gives_all_recorded_latents(which, name, run):
    replayed(open_case(which, name), run)


@needs("peers")
@pytest.mark.parametrize(
    ("name", "method", "run"),
    [
        ("infinity_rope", "infinity_rope", "cut_w6_s1"),
        ("deep_forcing", "deep_forcing", "ds_pc_sink10_budget16_recent4"),
        ("deep_forcing_sink_only", "deep_forcing", "ds_only_sink14"),
        ("memflow", "memflow", "single_bank3_interval3"),
        ("memflow", "memflow", "switch_late_bank3"),
        ("memflow_sma", "memflow", "single_bank3_interval3_sma"),
        ("rolling_sink", "rolling_sink", "w21"),
        ("reward_forcing", "reward_forcing", "w9_s3"),
        ("echo_forcing", "echo_forcing", "single"),
        ("pyramid_forcing", "pyramid_forcing", "mixed"),
        ("tethercache", "tethercache", "k21_s3_r4"),
        ("swift", "swift", "bridge_micro_full"),
    ],
)
def test_what_people_choose_by_name_is_what_was_recorded(name, method, run):
    case = open_case("full", f"peers/{method}")
    facts = VideoFacts(
        schedule("self_forcing"), 9, prompts=1 + len(case.run(run).get("switch", []))
    )
    assert method_named(name).for_video(facts) == read_run(case, run).method


def by_head(stored: torch.Tensor, frame_tokens: int) -> torch.Tensor:
    """`[1, tokens, heads, d]` as it was recorded -> `[heads, frames, s, d]`."""
    return rope.by_head(stored[0], frame_tokens)


@full_runs_of("longlive", "infinity_rope", "memflow", "rolling_sink", "memrope", "reward_forcing")
def test_the_window_ends_with_the_recorded_keys_and_values(monkeypatch, which, name, run):
    case = open_case(which, name)
    caches = kept_cache(monkeypatch)
    chosen = noted(monkeypatch, MemFlowCache, "choose")
    replayed(case, run)
    (cache,) = caches
    method = case.config["method"]
    recorded = {}
    for part in ("cache_k", "cache_v", "bank_k"):
        tensor = case.tensors.get(f"{part}_last_layer/{run}")
        if tensor is not None:
            recorded[part] = by_head(tensor, cache.rope.frame_tokens)
    if method == "memflow":  # the frames that its bank keeps
        frames_of_bank = []
        for event in case.config["facts"][run]["bank_events"]:
            frames_of_bank += event.get("selected_per_layer", [])
        assert [frames.tolist() for frames in chosen] == frames_of_bank
        assert (cache.bank[-1][0] - recorded["bank_k"]).abs().max() < TOLERANCE
        recorded["cache_v"] = cache.slots[-1][1]
    if "cache_k" in recorded:
        k = recorded["cache_k"]
        # recorded without any rotation, in slot 0 of Infinity-RoPE with it; MemRoPE stores keys
        # like that, too
        if cache.method.rope == "contiguous" and not isinstance(cache, MemRoPECache):
            rotated = cache.rope.rotate_spatial(k)
            if method == "infinity_rope":
                rotated = torch.cat((k[:, :1], rotated[:, 1:]), dim=1)
            k = rotated
        assert (cache.slots[-1] - torch.stack((k, recorded["cache_v"]))).abs().max() < TOLERANCE


def attended_frames(heads, sinks, recent, middle) -> list:
    """The position of the first frame that is far, -1 for none, and the frames of each part."""
    far = list(sinks.at)
    if heads.label != VEIL:
        far += middle.at
    first = far[0] if far else -1
    parts = (sinks, recent, middle)
    return [first, *(frames_of_part(part) for part in parts)]


def frames_of_part(part) -> list[int]:
    return sorted(entry.at for entry in part.entries)


def recorded_frames(passes: list) -> list:
    """The frames of a recorded pass as `attended_frames` has them."""
    return [[first, *map(sorted, parts)] for first, *parts in passes]


@full_runs_of("pyramid_forcing")
def test_pyramid_forcing_attends_to_the_recorded_frames_at_the_recorded_positions(
    monkeypatch, which, name, run
):
    case = open_case(which, name)
    seen = {}
    authors = isinstance(read_run(case, run).method, AuthorsPyramidForcing)
    state = AuthorsLabelState if authors else LabelState
    read = state.read

    def noting(self, frame):
        parts = read(self, frame)
        seen.setdefault((self.label, frame), []).append(attended_frames(self, *parts))
        return parts

    monkeypatch.setattr(state, "read", noting)
    replayed(case, run)
    if case.run(run)["stale_readout"]:  # what it holds shows in the latents alone
        return
    recorded = case.config["facts"][run]["attended"]
    labels = case.run(run)["labels"]
    checked = 0
    for number, label in ((-1, WAVE), (1, ANCHOR), (2, VEIL)):
        holding = sum(number in layer for layer in labels)
        for block, passes in enumerate(recorded.get(str(number), [])):
            clean = recorded_frames(passes["clean"])
            for place in range(3):
                found = seen[label, 3 * block + place]
                noisy = 0
                if len(found) > len(labels):  # given frames have a clean pass alone
                    noisy = 4 * holding
                    expected = recorded_frames(passes["noisy"])[place]
                    assert found[:noisy] == [expected] * noisy
                # the last layer's output of a clean pass is not needed, so that nothing is read
                # there
                assert all(frames == clean[place] for frames in found[noisy:])
                checked += len(found)
    assert checked == sum(map(len, seen.values()))


@full_runs_of("id_forcing")
def test_id_forcing_attends_to_the_recorded_frames_at_the_recorded_positions(
    monkeypatch, which, name, run
):
    case = open_case(which, name)
    windows = {}  # by block, the frames that it attends to, each with its position
    first = {}
    context = IdForcingCache.context
    denoise = WanVideoModel.denoise

    def note_context(self, layer, q):
        size = self.shape.frames_per_block
        window = []
        for entry in (*self.read, self):
            frames = range(entry.block * size, (entry.block + 1) * size)
            positions = range(entry.place, entry.place + size)
            window += zip(frames, positions, strict=True)
        windows[self.block] = window
        return context(self, layer, q)

    # its own window, not that of an entry that is made before it
    def note_first(self, latents, sigma, cache):
        clean = denoise(self, latents, sigma, cache)
        first.setdefault(cache.block, windows[cache.block])
        return clean

    monkeypatch.setattr(IdForcingCache, "context", note_context)
    monkeypatch.setattr(WanVideoModel, "denoise", note_first)
    replayed(case, run, tolerance=1e-5)
    frames = case.tensors[f"window_frames/{run}"].tolist()
    positions = case.tensors[f"window_positions/{run}"].tolist()
    for block, found in first.items():
        recorded = zip(frames[block], positions[block], strict=True)
        assert found == [pair for pair in recorded if pair[0] != -1], block


@full_runs_of("echo_forcing")
def test_echo_forcing_chooses_the_recorded_tokens_and_begins_scenes_as_recorded(
    monkeypatch, which, name, run
):
    case = open_case(which, name)
    chosen = noted(monkeypatch, EchoForcingCache, "choose")
    begun = []
    slots = []
    weights = []

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
    replayed(case, run)
    assert [tokens.tolist() for tokens in chosen] == selected(case, run)
    lengths = case.tensors[f"cache_len_tokens/{run}"].tolist()
    assert [filled * case.config["frame_tokens"] for filled in slots] == lengths
    switches = case.config["facts"][run].get("switches", [])
    expected = [
        (switch["block"], switch["memory_from_scene"], switch["jump"]) for switch in switches
    ]
    assert [scene[:3] for scene in begun] == expected
    for number, (*_, memory) in enumerate(begun):
        recorded = case.tensors[f"memory_k/{run}"][number, 0].transpose(0, 1)
        assert (memory - recorded).abs().max() < TOLERANCE
    for block, per_layer in enumerate(case.tensors.get(f"weights/{run}", ())):
        for recorded, found in zip(per_layer, weights[block], strict=True):
            assert torch.allclose(recorded[: len(found)], found, atol=TOLERANCE)
            assert (recorded[len(found) :] == 1).all()


def selected(case: Case, run: str) -> list[list[int]]:
    """The recorded choices of tokens, layer by layer in every block; none where nothing was
    chosen.
    """
    rows = case.tensors.get(f"selected/{run}")
    if rows is None:
        return []
    return [row[row >= 0].tolist() for row in rows.flatten(0, 1)]


@full_runs_of("deep_forcing")
def test_deep_forcing_keeps_the_recorded_tokens_and_moves_its_sinks_as_recorded(
    monkeypatch, which, name, run
):
    case = open_case(which, name)
    caches = kept_cache(monkeypatch)
    chosen = noted(monkeypatch, DeepForcingCache, "choose")
    replayed(case, run)
    last = caches[0].layers[-1]
    sinks = caches[0].method.sink_frames * caches[0].rope.frame_tokens
    assert last.sink_start == int(case.tensors[f"sink_start_frame/{run}"][-1])
    length = int(case.tensors[f"cache_len_tokens/{run}"][-1])
    keys = case.tensors[f"cache_k_last_layer/{run}"][0, :length]
    values = case.tensors[f"cache_v_last_layer/{run}"][0, :length]
    stored = torch.stack([keys, values]).transpose(1, 2)
    assert last.kv.shape == stored.shape
    assert (last.kv - stored).abs().max() < 2 * TOLERANCE, "sinks turn again and again"
    assert [(sinks + tokens).tolist() for tokens in chosen] == selected(case, run)


@full_runs_of("forcing_kv")
def test_forcing_kv_keeps_the_recorded_chunks(monkeypatch, which, name, run):
    case = open_case(which, name)
    caches = kept_cache(monkeypatch)
    chosen = noted(monkeypatch, ForcingKVCache, "choose")
    replayed(case, run)
    recorded = case.tensors.get(f"kept_chunks/{run}", torch.zeros(0, 1)).tolist()
    assert [chunks.tolist() for chunks in chosen] == [row for row in recorded if row[0] >= 0]
    (cache,) = caches
    for kind, kept in zip(("spatial", "temporal"), cache.kinds[3], strict=True):
        stored = case.tensors[f"group_{kind}_k_last_layer/{run}"]
        expected = by_head(stored, cache.rope.frame_tokens)
        assert (kept.last[0] - expected).abs().max() < TOLERANCE


@full_runs_of("dummy_forcing")
def test_dummy_forcing_finds_the_recorded_groups_of_heads(monkeypatch, which, name, run):
    case = open_case(which, name)
    classified = noted(monkeypatch, DummyForcingCache, "classify")
    shares = noted(monkeypatch, DummyForcingCache, "_shares")
    replayed(case, run)
    recorded = case.config["facts"][run]["head_groups"]
    (kinds,) = classified
    for found, groups in zip(kinds.tolist(), recorded, strict=True):
        for number, kind in enumerate(("first", "mid", "last")):
            assert [head for head, own in enumerate(found) if own == number] == groups[kind]
    assert (torch.stack(shares) - case.tensors[f"attention_shares/{run}"]).abs().max() < 1e-5


@full_runs_of("tethercache")
def test_tethercache_keeps_the_recorded_frames_by_the_recorded_scores(
    monkeypatch, which, name, run
):
    case = open_case(which, name)
    scores = noted(monkeypatch, TetherCacheSlots, "scores")
    memories = []
    finish = TetherCacheSlots.finish

    def noting(self):
        memories.append([list(numbers) for numbers in self.numbers])
        finish(self)

    monkeypatch.setattr(TetherCacheSlots, "finish", noting)
    replayed(case, run)
    assert memories == [block["memory"] for block in case.config["facts"][run]["blocks"]]
    recorded = case.tensors[f"scores/{run}"]
    assert (torch.stack(scores).view_as(recorded) - recorded).abs().max() < 1e-4


TETHER_MISTAKES = {
    "the memory is chosen after the pass has read it": (
        "context",
        lambda self, layer, q: chosen_after_reading(self, layer, q),
    ),
    "each layer keeps what the first one chose": (
        "choose",
        lambda self, layer, q, k, numbers: [0, 1, 2, 3, 4],
    ),
    "the memory is in the order of its scores": (
        "choose",
        lambda self, layer, q, k, numbers: (
            self.scores(q, k, numbers).topk(self.memory).indices.tolist()
        ),
    ),
    "frames are not aligned": ("_aligned", lambda self, frames, trusted: frames),
    "values are not aligned": (
        "_aligned",
        lambda self, frames, trusted: torch.stack(
            (aligned(self, frames, trusted)[0], frames[1].float())
        ),
    ),
}
aligned = TetherCacheSlots._aligned


def chosen_after_reading(self, layer, q):
    clean, self.clean = self.clean, False
    made = read_context(self, layer, q)
    self.clean = clean
    read_context(self, layer, q)
    return made


read_context = TetherCacheSlots.context


@needs("peers")
@pytest.mark.parametrize("mistake", TETHER_MISTAKES)
def test_a_mistake_in_tethercache_is_seen(monkeypatch, mistake):
    case = open_case("full", "peers/tethercache")
    name, wrong = TETHER_MISTAKES[mistake]
    monkeypatch.setattr(TetherCacheSlots, name, wrong)
    made = replay(case, "k12_s3_r4").latents
    assert apart(made, case.tensors["latents/k12_s3_r4"][0]) > 50 * TOLERANCE
