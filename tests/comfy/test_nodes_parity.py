"""The bridge to ComfyUI inside a process of its own: same numbers as the core, and nothing left behind.

One process per ComfyUI version runs all of programs/parity_probes.py; each test reads what its probe found.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from comfy_harness import run_in_comfy
from comfy_setup import FLOOR, NEWEST, installed
from tiny_checkpoints import wan_lora, wan_t2v, wan_vae

pytestmark = pytest.mark.comfy

PROBES = Path(__file__).parent / "programs" / "parity_probes.py"
SMOKE = ("importing", "plain", "with_lora", "decoder", "fingerprints", "memory_after_interrupt", "memory_asked_for")


@pytest.fixture(scope="session")
def tiny_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-files")
    wan_t2v(folder / "tiny.safetensors")
    wan_lora(folder / "lora.safetensors")
    wan_lora(folder / "toy_lora.safetensors", dim=192, layers=8, strength=0.3)
    wan_vae(folder / "vae.safetensors")
    return folder


@pytest.fixture(scope="session")
def run_probes(tiny_files: Path, repo_root: Path) -> Callable[[str], dict[str, Any]]:
    """What all probes found in a version, in the oldest those of `SMOKE`."""

    @cache
    def run(version: str) -> dict[str, Any]:
        install = installed(version)
        told = run_in_comfy(install, PROBES, tiny_files, repo_root, *(SMOKE if version == FLOOR else ()), timeout=400)
        return json.loads(told.rsplit("RESULTS", 1)[1]) | {"version": version, "tree": str(install.tree)}

    return run


@pytest.fixture(scope="session", params=[NEWEST])
def probes(request: pytest.FixtureRequest, run_probes: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return run_probes(request.param)


@pytest.fixture(scope="session", params=[NEWEST, FLOOR])
def in_both(request: pytest.FixtureRequest, run_probes: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return run_probes(request.param)


def of(probes: dict[str, Any], name: str) -> Any:
    """What a probe found, or its traceback as the failure."""
    found = probes[name]
    if "error" in found:
        pytest.fail(found["error"], pytrace=False)
    return found


def test_importing_the_pack_pulls_in_nothing_heavy(in_both: dict[str, Any]):
    found = of(in_both, "importing")
    assert found["light"] == []  # importing the pack itself imports nothing at all
    assert found["during"] == [] and found["loaded"] == []
    assert found["spied"] == sorted(["triton", "flash_attn", "sageattention", "xformers"])


def test_comfys_own_modules_keep_their_names(in_both: dict[str, Any]):
    found = of(in_both, "importing")
    assert Path(found["nodes"]) == Path(in_both["tree"]) / "nodes.py"
    assert not found["root_on_path"]


def test_a_rollout_on_the_native_model_equals_the_cores_own(in_both: dict[str, Any]):
    found = of(in_both, "plain")
    assert (found["dtype"], found["frames"]) == ("torch.float32", 33)
    assert found["difference"] < 1e-4
    assert found["same_events"] and found["merges"] >= 2
    assert found["other_seed"] > 0.1 and found["other_video"] > 0.1
    assert found["one_prompt_before"] == 0 and found["one_prompt_after"] > 1e-3


def test_a_model_that_is_to_be_compiled_is_run_as_it_is_and_the_report_says_so(probes: dict[str, Any]):
    found = of(probes, "compiled")
    assert found["graphs"] == 0 and found["difference"] == 0
    assert len(found["told"]) == 1 and "torch.compile" in found["told"][0]


def test_fused_kernels_on_the_native_model_leave_alone_what_comfyui_casts(probes: dict[str, Any]):
    found = of(probes, "fused")
    assert found["difference"] < 1e-4 and found["cast"] < 1e-4
    norms = [["norm_modulate", False], ["residual_norm_modulate", False]]
    assert found["own_norms"] == [*norms, ["write_block", False]]
    assert found["held_norms"] == found["own_norms"] and found["held"] < 1e-4
    assert found["cast_norms"] == [*norms, ["write_block", True]]  # those with weights are ComfyUI's own layers'


def test_an_extension_on_the_native_model_equals_the_cores_own(probes: dict[str, Any]):
    found = of(probes, "extended")
    assert found["frames"] == [6, 12]
    assert found["difference"] < 1e-4 and found["begins_with_given"] < 1e-5
    assert found["other_start"] > 1e-3  # the cache was really written from the given frames


def test_prompt_switches_on_the_native_model_equal_the_cores_own(probes: dict[str, Any]):
    for tag, (difference, before, after) in of(probes, "switched").items():
        assert difference < 1e-4 and before == 0 and after > 1e-3, tag


def test_every_method_on_the_native_model_equals_the_cores_own(probes: dict[str, Any]):
    found = of(probes, "other_methods")
    assert {"longlive", "memflow", "rolling_forcing", "causvid"} <= set(found)
    assert {name: difference for name, difference in found.items() if difference > 1e-4} == {}


def test_a_cancelled_rolling_render_stops_at_once_and_goes_on_to_the_same_latents(probes: dict[str, Any]):
    found = of(probes, "rolling_cancelled")
    assert found["raised"] and found["calls"] == [3, 6, 9, 12, 3, 12, 3, 12, 3, 12]
    assert found["reused"] == 3 and found["apart"] == 0 and found["frames"] == 33
    assert found["steps"][0] == found["steps"][1]


def test_a_native_lora_equals_one_merged_by_the_core(in_both: dict[str, Any]):
    found = of(in_both, "with_lora")
    assert found["difference"] < 1e-4 < 1e-2 < found["effect"]
    assert found["plain_after"] < 1e-4


def test_comfyuis_fp8_storage_and_products_work_and_are_told_apart(probes: dict[str, Any]):
    found = of(probes, "fp8_paths")
    stored, fast = found["stored"], found["fast"]
    assert 1e-3 < stored["apart"] < 0.3 and 1e-3 < fast["apart"] < 0.3
    assert stored["again"] == fast["again"] == 0
    assert stored["inexact"] == ["weights stored in 8-bit floating point (float8_e4m3fn)"]
    assert fast["inexact"] == ["linear layers in 8-bit floating point (float8_e4m3fn, ComfyUI's products)"]
    assert found["exact"] == []
    assert len({found["fingerprint"], stored["fingerprint"], fast["fingerprint"]}) == 3


def test_models_of_wan_2_2_from_any_loader_are_refused_by_name(probes: dict[str, Any]):
    found = of(probes, "expert")
    assert found["expert"].startswith("wan2.2_t2v_low_noise_14B.safetensors is one expert of Wan2.2 A14B")
    assert found["krea"] == [40, 40]
    assert "got 48: Wan2.2 TI2V 5B" in found["5b"]


def test_attention_goes_through_what_nodes_put_in_its_place(probes: dict[str, Any]):
    found = of(probes, "attention_override")
    assert found["watched"] == 0 and found["without"] > 1e-3
    assert found["calls"] > 25 and found["shapes"]


def test_attention_is_what_was_fastest_unless_somebody_has_chosen_and_comfyuis_on_a_cpu(
    probes: dict[str, Any],
):
    found = of(probes, "chosen_attention")
    assert found["default"] and found["none better"]
    for name in ("quad_cross", "split_cross"):
        difference, kept = found[name]
        assert difference < 1e-5 and kept
    assert found["better"] and found["overridden"]
    assert found["sizes"] == [16, "the sizes of the render"], "else the first that works is taken, not the fastest"


def test_a_preview_is_made_of_a_copy_in_the_hosts_memory(probes: dict[str, Any]):
    found = of(probes, "moving_preview")
    assert found["asked"] == ["cpu"] and found["images"] == [None, "image", "image"]
    assert found["shown"] == [["Tensor", [1, 16, 3, 2, 2]], ["Tensor", [1, 16, 2, 2, 2]]]


def test_the_model_is_unchanged_for_normal_samplers(probes: dict[str, Any]):
    found = of(probes, "aftermath")
    assert found["spread"] > 0.01
    assert found["same"] and found["inert"]
    assert found["keys"] and not found["options"] and found["attributes"] == [[], []]


def test_caches_are_freed_at_once_after_sampling(probes: dict[str, Any]):
    found = of(probes, "memory_after_sampling")
    assert found["made"] > 4
    assert (found["left"], found["left_after_gc"]) == (0, 0)  # 2.5 GB at real size: must not wait for the collector


def test_caches_are_freed_at_once_after_roles_were_found(probes: dict[str, Any]):
    found = of(probes, "memory_after_finding_roles")
    assert found["made"] > 8  # the caches of the warm-up, and those that follow
    assert (found["left"], found["left_after_gc"]) == (0, 0)
    flat = [role for layer in found["roles"] for role in layer]
    assert sorted(flat) == ["anchor", "local", "memory", "memory"]
    assert found["frames"] == [33, 33] and found["other_caches"] > 1e-3  # the warm-up sees every frame
    assert [after for after, _ in found["events"]] == list(range(1, 11))  # those of the warm-up among them


def test_measuring_on_the_native_model_equals_the_cores_own_and_frees_its_caches(probes: dict[str, Any]):
    found = of(probes, "memory_after_measuring")
    assert found["made"] > 8 and (found["left"], found["left_after_gc"]) == (0, 0)
    assert found["missing"] == [] and found["difference"] < 1e-5 < 1e-2 < found["spread"]


def test_a_model_can_be_loaded_once_more_for_another_device(probes: dict[str, Any]):
    found = of(probes, "loaded_again")
    assert found["again"] == [[True, False, True]] * 2 and found["difference"] == 0


def test_the_open_sampler_is_given_the_memory_of_our_own_and_leaves_no_caches(probes: dict[str, Any]):
    found = of(probes, "open_sampler")
    assert found["asked"] == [found["own"]] * 2, "one block and its caches, whatever the length and the batch"
    assert found["made"] > 4 and (found["left"], found["left_after_gc"]) == (0, 0)
    assert found["difference"] == 0
    assert found["handed"] == [3], "our own sampler keeps the video in main memory: ComfyUI gets one block of zeros"
    told = "patches of attention or blocks (attn2_patch)", "torch.compile"
    assert found["said"] == [f"Apply Head Forcing: not used in a rollout: {what}" for what in told]


def test_options_of_a_split_over_gpus_do_not_reach_the_calls(probes: dict[str, Any]):
    found = of(probes, "split_over_gpus")
    assert found["seen"] == ["other", "transformer_options"]
    assert "multigpu_clones" in found["left"], "the options of the graph are not changed"


def test_the_sampler_works_behind_the_node_that_splits_guidance_over_gpus(probes: dict[str, Any]):
    found = of(probes, "behind_the_split_node")
    assert found["clones"] == 1, "the graph's MODEL keeps its copy for another GPU"
    assert not found["pools"], "and a render has none, nor loads anything there"
    assert found["difference"] == 0


def test_a_fingerprint_names_weights_and_loras(in_both: dict[str, Any]):
    found = of(in_both, "fingerprints")
    assert found["plain"] == found["again"] == found["clone"]
    assert found["lora"] == found["same_lora"] == found["loaded"]
    assert found["merged"], "the LoRA was not merged, so loading proves nothing"
    distinct = [found[name] for name in ("plain", "lora", "weaker", "other_lora", "other_weights")]
    assert len(set(distinct)) == 5, found


def test_cancel_stops_within_one_model_call_and_frees_the_cache(in_both: dict[str, Any]):
    found = of(in_both, "memory_after_interrupt")
    assert found["kind"] == ("Exception" if in_both["version"] == FLOOR else "BaseException")
    assert found["calls"] == 7
    assert found["made"] > 4 and (found["left"], found["left_after_gc"]) == (0, 0)
    assert found["again"] < 1e-4


@pytest.mark.parametrize("method", ["head_forcing", "self_forcing"])
def test_comfyui_is_asked_for_the_memory_of_the_estimate(in_both: dict[str, Any], method: str):
    """What it must keep free, exactly; what it likes to have free is not twice that, but one pass more."""
    found = of(in_both, "memory_asked_for")
    assert found["estimate"]["self_forcing"] > 5 * found["estimate"]["head_forcing"]
    wished, needed = found["asked"][method]
    once, twice = found["own"]
    assert needed == pytest.approx(max(found["estimate"][method], once))
    assert wished - needed == pytest.approx(twice - once)


def test_a_model_that_is_loaded_again_is_not_asked_to_make_room_for_what_is_allocated(in_both: dict[str, Any]):
    """Else a change of a story would push weights off the card for the rest of the render."""
    found = of(in_both, "memory_asked_for")
    before_the_first_block = found["of_a_pass"] + found["of_a_prompt"]  # which the cache has by then
    assert found["again"] == [pytest.approx(before_the_first_block), pytest.approx(found["of_a_pass"])]
    assert before_the_first_block < 0.5 * found["estimate"]["self_forcing"]


def test_toy_objects_behave_like_native_ones(probes: dict[str, Any]):
    found = of(probes, "toy_objects")
    assert found["text"] == [1, 12, 64]
    assert (found["clone"], found["patched_clip"], found["model_clone"], found["after_lora"]) == (0, 0, 0, 0)
    assert found["lora"] > 1e-2
    assert found["pictures"] == [1, 9, 64, 64, 3] and found["back"] == [1, 16, 3, 8, 8]
    assert 0 <= found["range"][0] < found["range"][1] <= 1
    assert found["there_and_back"] < 0.5


def test_streaming_decode_equals_decoding_at_once(in_both: dict[str, Any]):
    found = of(in_both, "decoder")
    assert found["spread"] > 0.01
    assert len(found["exact"]) == 6 and max(found["exact"].values()) < 1e-4, found["exact"]


def test_our_decoder_on_comfyuis_weights_equals_comfyuis_and_leaves_changed_vaes_to_it(in_both: dict[str, Any]):
    """A patched VAE and one with a hook go ComfyUI's way."""
    found = of(in_both, "decoder")
    assert found["kind"] == "WanVideoDecoder" and found["others"] == ["WanStreamingDecoder"] * 2
    assert len(found["own"]) == 6 and max(found["own"].values()) < 1e-4, found["own"]


def test_our_decoder_has_a_copy_of_weights_under_dynamic_vram_and_leaves_those_that_are_offloaded(
    in_both: dict[str, Any],
):
    found = of(in_both, "decoder")["dynamic"]
    assert (found["lowvram"], found["kind"]) == ("WanStreamingDecoder", "WanVideoDecoder")
    assert found["difference"] < 1e-4


def test_comfyuis_networks_run_with_their_device_as_the_current_one(in_both: dict[str, Any]):
    assert of(in_both, "decoder")["current"] == {"seen": [True] * 3, "index": 1}


def test_overlapping_decode_gives_every_picture_in_its_place(in_both: dict[str, Any]):
    found = of(in_both, "decoder")["overlap"]
    assert found["pictures"] == 37
    assert found["error"] < 0.5 * found["shifted"]


def test_comfyuis_tiny_decoder_for_drafts_streams_exactly(probes: dict[str, Any]):
    found = of(probes, "draft_decoder")
    assert found["kind"] == "OverlapDecoder" and found["spread"] > 1e-3
    # the whole network in float32, fed in other portions
    assert max(found["exact"].values()) < 3e-4 * found["spread"] < 0.1 * found["short"], found
    assert found["ours"] < 3e-4 * found["spread"], "the command line's tiny decoder is the same network"


@pytest.mark.parametrize("name", ["wan", "draft", "toy"])
def test_rollouts_are_encoded_and_decoded_as_comfyui_would(probes: dict[str, Any], name: str):
    found = of(probes, "several_rollouts")
    codec = found["codecs"][name]
    assert max(codec["decoded"]) < 1e-3 < codec["without"] and codec["encoded"] < 1e-3
    assert min(codec["spread"]) > 0.01
    assert len(set(found["names"])) == 3


def test_a_start_image_is_that_of_the_native_node_and_the_video_that_of_the_native_sampler(probes: dict[str, Any]):
    found = of(probes, "native_image_start")
    assert found["start"] == 0 and found["frames"] == 5
    assert found["video"] < 1e-3 * found["spread"]


def test_models_that_are_not_wan_are_named(probes: dict[str, Any]):
    found = of(probes, "other_models")
    assert found["wan"] is None
    for name in ("sd15", "named_blocks"):
        assert "expected Wan 2.1 text-to-video weights" in found[name] and "Load Self Forcing" in found[name]
