"""What is kept of measured head shares: averages, files and profiles."""

import itertools
import json
from dataclasses import replace

import pytest
import torch
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.profile import classify, stability
from headforcing.headforcing_core.head_profiles.profiler import pick_part
from headforcing.headforcing_core.head_profiles.shares import HeadShares, ProfileSetup
from safetensors import safe_open
from safetensors.torch import load_file, save_file

WIDTH, HEIGHT = 48, 32  # pixels
SETUP = ProfileSetup(
    "ab12cd34", 2, 3, ("one", "two", "three"), 6, (1.0, 0.8, 0.6, 0.3), 3, WIDTH, HEIGHT, window_frames=10, seed=5
)


@pytest.fixture(scope="module")
def measured() -> HeadShares:
    shares = HeadShares(SETUP)
    for prompt, block, step in itertools.product(range(3), range(2, 6), range(4)):
        drawn = torch.rand(2, 3, 3, generator=torch.Generator().manual_seed(prompt)).double()
        shares.add(prompt, block, step, drawn / drawn.sum(dim=-1, keepdim=True))
    return shares


def test_shards_part_the_prompts_evenly_and_a_shard_that_is_none_is_refused():
    for parts, count in itertools.product((1, 3, 30), range(26)):
        shares = [pick_part(count, f"{part}/{parts}") for part in range(1, parts + 1)]
        assert sorted(itertools.chain(*shares)) == list(range(count))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert pick_part(8, "2/4") == [1, 5]
    for text in ("", "2", "0/4", "5/4", "1/0", "-1/4", "1/4/2", "a/b", "1 / 4", "1/99999", "²/4"):
        with pytest.raises(HeadForcingError, match="a shard must look like 2/4"):
            pick_part(8, text)


def test_measurements_of_different_setups_do_not_merge(measured):
    changes = {"prompts": ("one", "two", "four"), "seed": 6, "first_block_sigmas": (1.0, 0.5), "first_block": 3}
    with pytest.raises(HeadForcingError) as error:
        HeadShares(replace(SETUP, **changes)).merge(measured)
    assert sorted(str(error.value).rpartition("differ in ")[2].split(", ")) == sorted(changes)


OTHER = "is not a file of measured head shares"
DAMAGE = {  # what is wrong, the changed tags or tensors, and what is said of it
    "no tags": ({"tags": {}}, OTHER), "tags that are no JSON": ({"tags": {"head_shares": "{"}}, OTHER),
    "a setup without a field": ({"tags": {"head_shares": '{"format_version": 1}'}}, OTHER),
    "a newer format": ({"setup": {"format_version": 2, "x": 1}}, "format version 2, this program reads 1"),
    "an impossible setup": ({"setup": {"blocks": 1}}, OTHER),
    "a setup of other size": ({"setup": {"num_layers": 3}}, "its sums do not fit its setup"),
    "one tensor missing": ({"tensors": {"counts": None}}, OTHER),
    "a wrong shape": ({"tensors": {"counts": torch.ones(3, 4, 3)}}, "its counts do not fit its setup"),
    "cut at once": (0, OTHER), "cut in its header": (7, OTHER), "cut in a tensor": (2000, OTHER),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_gives_one_clear_error(measured, tmp_path, name):
    change, expected = DAMAGE[name]
    file = tmp_path / "x.safetensors"
    measured.save(file)
    if isinstance(change, int):
        file.write_bytes(file.read_bytes()[:change])
    else:
        with safe_open(file, "pt") as opened:
            stored = json.loads(opened.metadata()["head_shares"]) | change.get("setup", {})
        kept = {
            key: tensor for key, tensor in (load_file(file) | change.get("tensors", {})).items() if tensor is not None
        }
        save_file(kept, file, metadata=change.get("tags", {"head_shares": json.dumps(stored)}))
    with pytest.raises(HeadForcingError, match=expected) as error:
        HeadShares.load(file)
    assert OTHER in str(error.value) and "\n" not in str(error.value)
    for path, why in ((tmp_path, "is a folder: choose a file in it"), (tmp_path / "no", "was not found")):
        with pytest.raises(HeadForcingError, match=why):
            HeadShares.load(path)


def handmade(prompts=2, blocks=2, steps=2, heads=1) -> HeadShares:
    names = tuple(f"prompt {i}" for i in range(prompts))
    sigmas = (1.0, 0.8, 0.6, 0.3)[:steps]
    return HeadShares(ProfileSetup("00", 1, heads, names, blocks + 2, sigmas, 3, WIDTH, HEIGHT, window_frames=10))


def add(shares: HeadShares, prompt: int, block: int, step: int, sink: float) -> None:
    shares.add(prompt, block + 2, step, torch.tensor([[[sink, 0.5, 0.5 - sink]]], dtype=torch.float64))


def with_anchor(shares: HeadShares, anchor, prompts: int) -> None:
    """Fill in shares of four heads, of which `anchor(prompt, block, step)` looks at the first frames."""
    _, blocks, steps = shares.counts.shape
    for prompt, block, step in itertools.product(range(prompts), range(blocks), range(steps)):
        chosen = anchor(prompt, block, step)
        rows = [(0.5, 0.4, 0.1) if head == chosen else (0.1, 0.8 - head / 10, 0.1 + head / 10) for head in range(4)]
        shares.add(prompt, block + 2, step, torch.tensor([rows], dtype=torch.float64))


def test_steps_are_averaged_first_then_blocks_then_prompts():
    """What is missing has no weight, and what is measured more often has no more than one."""
    shares = handmade()
    add(shares, 0, 0, 0, 0.1)
    add(shares, 0, 0, 1, 0.3)  # block 0: 0.2
    add(shares, 0, 1, 0, 0.4)  # block 1: 0.4, so prompt 0: 0.3
    add(shares, 1, 1, 1, 0.2)
    add(shares, 1, 1, 1, 0.0)  # the same cell twice: 0.1
    add(shares, 1, 1, 0, 0.4)  # prompt 1: 0.25
    assert shares.mean()[0, 0].tolist() == pytest.approx([0.275, 0.5, 0.225])
    assert shares.mean(prompts=[0])[0, 0, 0] == pytest.approx(0.3)
    assert shares.mean(blocks=[1])[0, 0, 0] == pytest.approx((0.4 + 0.25) / 2)
    assert shares.mean(steps=[0])[0, 0, 0] == pytest.approx(((0.1 + 0.4) / 2 + 0.4) / 2)
    assert shares.mean(blocks=[0], steps=[1])[0, 0, 0] == pytest.approx(0.3)


def test_a_return_story_counts_once_though_two_measurements_have_it():
    one, other = handmade(), handmade()
    one.returns[0], other.returns[0], other.returns[1] = 0.4, 0.6, 0.2
    one.merge(other)
    assert one.returns[:, 0, 0].tolist() == [0.4, 0.2]


def test_nothing_measured_is_an_error_and_not_a_division():
    shares = handmade()
    for chosen in ({}, {"prompts": [1]}):
        with pytest.raises(HeadForcingError, match="nothing has been measured yet"):
            shares.mean(**chosen)
    with pytest.raises(HeadForcingError, match="nothing has been measured yet"):
        shares.profile("x")
    assert shares.stability() == {}


def test_stability_holds_two_conditions_fixed_and_varies_the_third():
    """Two heads, one of them the anchor (half of two), none local: which one, by prompt, block and step.

    Prompts 0 and 2 are of one mind, prompt 1 of the other: of the anchor's runs no head is common to all three. Over
    blocks and steps (of the first prompt) the same head stays.
    """
    shares = handmade(prompts=4, blocks=3, steps=4, heads=4)
    with_anchor(shares, lambda prompt, block, step: 1 if prompt == 1 else 3 if step == 0 else 0, prompts=3)
    assert shares.missing_prompts() == [3]  # left out of everything
    found = shares.stability()
    assert set(found) == {"blocks", "steps", "prompts"}
    assert found["blocks"] == {"local": 1.0, "anchor": 1.0, "memory": 1.0, "mean": 1.0}
    by_step = [["memory", "memory", "local", "anchor"]] + [["anchor", "memory", "memory", "local"]] * 3
    assert found["steps"] == stability([[row] for row in by_step])
    by_prompt = [["anchor", "memory", "memory", "local"], ["memory", "anchor", "memory", "local"]]
    assert found["prompts"] == stability([[row] for row in (*by_prompt, by_prompt[0])])
    assert found["prompts"]["anchor"] == 0 and found["steps"]["anchor"] == 0 and found["steps"]["memory"] == 0.5


def test_a_measured_profile_has_the_right_numbers_of_heads_and_says_how_it_was_measured(measured):
    made = measured.profile("mine", {"source": "test"})
    assert made.counts() == {"local": 1, "anchor": 2, "memory": 3}  # 6 heads: 1.2 and 1.5, halves round up
    assert made.roles == classify(made.shares)
    torch.testing.assert_close(torch.tensor(made.shares).double(), measured.mean(), rtol=0, atol=1e-7)
    assert made.provenance == {"source": "test"}
    assert made.measured == {
        "fingerprint": "ab12cd34", "window_frames": 10, "sink_frames": 1, "rope": "absolute", "prompts": 3,
        "prompts_hash": SETUP.prompts_hash, "blocks": 6, "first_block": 2, "steps": 4, "size": "48x32", "seed": 5,
    }  # fmt: skip
    assert measured.profile("mine", {}, 0.5, 0.5).counts() == {"local": 3, "anchor": 3, "memory": 0}
    lines = measured.describe(made)
    assert lines[0] == "1 local, 2 anchor, 3 memory" and len(lines) == 4


def test_the_hash_of_prompts_depends_on_their_words_and_order():
    hashes = {replace(SETUP, prompts=names).prompts_hash for names in (("a", "b"), ("b", "a"), ("a",), ("a", "c"))}
    assert len(hashes) == 4 and replace(SETUP, seed=1).prompts_hash == SETUP.prompts_hash
