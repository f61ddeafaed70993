"""What a render takes of memory and disk: said, held against what it really takes, refused where it cannot fit."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from counted_memory import CountsMemory, NoLaunch
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.model import wan
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.headforcing_core.render.describe import format_bytes
from headforcing.headforcing_core.render.options import RenderOptions
from headforcing.headforcing_core.render.plan import RenderPlan
from headforcing.headforcing_core.render.remedies import check_decoder, too_large
from headforcing.headforcing_core.render.resources import (
    COMFYUI,
    COMMAND_LINE,
    Needs,
    check_disk,
    check_growth,
    in_turn,
    needs_of,
)  # fmt: skip
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from headforcing.headforcing_core.video.memory import DecoderMemory
from headforcing.kernels import modulate, write
from headforcing.kernels.dispatch import using

WEIGHTS = 2_838_000_000  # of the 1.3B model in bf16
DECODER = DecoderMemory(weights=150_000_000, held=2_000_000_000, peak=6_000_000_000)


def plan(config=None, seconds=60.0, width=832, height=480, method="head_forcing", **memory):
    options = RenderOptions(method=method, width=width, height=height, **memory)
    return options.plan(config or WanConfig(), parse_timeline("a minute", seconds))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "dtype", "kernels"), [((832, 480), torch.bfloat16, "triton"), ((480, 832), torch.float32, "reference")]
)
def test_activations_are_those_of_a_pass_at_real_size(size, dtype, kernels, monkeypatch):
    """The released model's widths on tensors without data, counted operation by operation; two layers say it all."""
    monkeypatch.setattr(write, "_write_kernel", NoLaunch())
    monkeypatch.setattr(modulate, "_norm_kernel", NoLaunch())
    attention = SimpleNamespace(scaled_dot_product_attention=lambda q, k, v: torch.empty_like(q))
    monkeypatch.setattr(wan, "F", attention)  # a fused kernel's memory: its output
    render = plan(width=size[0], height=size[1], seconds=5.0)
    with torch.device("meta"):
        model = wan.WanModel(WanConfig(num_layers=2)).to(dtype).requires_grad_(False)
        keys = torch.empty(1, 12, 512, 128, dtype=dtype)
    model.patch_embedding.float()
    cache = render.make_cache(dtype, "meta", lambda q, k, v: torch.empty_like(q))
    prompt = wan.PromptKV([(keys, keys)] * 2, 20)
    latents = torch.empty(render.block_shape, dtype=dtype, device="meta")
    known = (*model.state_dict().values(), *cache.flat, keys, latents)
    with torch.no_grad(), using(kernels), CountsMemory(known) as memory:
        cache.begin_block()
        for _ in range(2):
            wan.forward_block(model, latents, torch.tensor([1000.0] * 3), prompt, cache)
    expected = needs_of(render, dtype, 0).activations
    assert 0.95 * memory.peak < expected < 1.02 * memory.peak, (memory.peak, expected)


def test_the_parts_of_a_minute_at_full_size():
    """Sampling and decoding take turns, so the larger counts; nothing is counted that is not done."""
    render = plan()

    def of(**options):
        return needs_of(render, torch.bfloat16, WEIGHTS, **options)

    needs, less = of(decoder=DECODER, kept=True, state=True, writes_video=True), of()
    assert needs.cache == needs.state == render.shape.bytes(torch.bfloat16)
    assert needs.prompt == 2 * 30 * 512 * 1536 * 2
    assert needs.run_folder == 81 * 3 * 16 * 60 * 104 * 4 and needs.video == 960 * 832 * 480 * 0.5 // 8
    assert needs.memory == WEIGHTS + needs.cache + needs.prompt + DECODER.weights + DECODER.peak
    memory, disk = needs.describe().splitlines()
    assert "weights 2.84 GB" in memory and "VAE features 2.00 GB; while decoding 6.00 GB" in memory
    assert f"finished blocks {format_bytes(needs.run_folder)}" in disk and "video" in disk
    assert (less.decode, less.run_folder, less.state, less.video) == (0, 0, 0, 0)
    assert not any(word in less.describe() for word in ("disk", "decoding", "CUDA graph"))
    parked = of(decoder=DecoderMemory(DECODER.weights, 0, DECODER.peak))
    assert needs.memory == parked.memory == less.memory + DECODER.weights + DECODER.peak - less.activations
    long_pass = replace(needs, activations=30 * needs.activations)
    assert long_pass.working == long_pass.cache + long_pass.prompt + long_pass.activations + DECODER.held
    graph, encoder = of(decoder=DECODER, cuda_graph=True), of(text_encoder=20_000_000_000)
    assert graph.memory - needs.memory == graph.graph == needs.activations, "reserved while decoding, too"
    assert encoder.memory == 20_000_000_000 > encoder.rendering and "the text encoder 20.00 GB" in encoder.describe()


def test_length_and_number_of_videos_cost_disk_and_no_memory():
    def of(seconds=60.0, **options):
        return needs_of(plan(seconds=seconds), torch.bfloat16, WEIGHTS, kept=True, writes_video=True, **options)

    minute, hour, four, resumed = of(), of(3600.0), of(videos=4), of(videos=4, finished_blocks=81 * 3)
    assert minute.memory == hour.memory == four.memory and hour.disk > 50 * minute.disk
    assert four.disk == 4 * minute.disk and resumed.run_folder == minute.run_folder
    assert of(scale=2).video == 4 * minute.video
    both = in_turn([minute, replace(hour, activations=10**12)])
    assert both.disk == minute.disk + hour.disk and both.memory > 10**12


def refused(needs: Needs, room: float, render: RenderPlan, host=COMFYUI) -> str:
    assert needs.wanted(host) > int(room)
    return str(too_large(needs, render, torch.bfloat16, int(room), host))


def offered(*arguments) -> list[str]:
    """The changes that the error names."""
    return re.split(r"; ", refused(*arguments).partition("cheapest first: ")[2])


def test_too_little_memory_is_refused_with_numbers_and_the_three_cheapest_remedies():
    render = plan()
    needs = needs_of(render, torch.bfloat16, WEIGHTS, decoder=DECODER)
    besides = needs.rendering - WEIGHTS
    assert needs.wanted(COMFYUI) == besides and needs.wanted(COMMAND_LINE) == needs.rendering
    assert f"832x480 needs {format_bytes(besides)} besides the weights" in refused(needs, besides - 1, render)
    assert "besides" not in refused(needs, besides, render, COMMAND_LINE), "which streams no weights"
    check_decoder(DECODER, "832x480", DECODER.weights + DECODER.peak)
    with pytest.raises(HeadForcingError, match=r"decoding 832x480 needs 6.15 GB, the device of the VAE has 6.00 GB"):
        check_decoder(DECODER, "832x480", 6_000_000_000)
    check_growth(1, None), check_growth(1, 1)
    with pytest.raises(HeadForcingError, match="needs 1 bytes more, 0 bytes is free"):
        check_growth(1, -1)
    afterwards, fewer, smaller = offered(needs, besides - 1, render)
    without = needs_of(render, torch.bfloat16, WEIGHTS).wanted(COMFYUI)
    assert afterwards == f"decode afterwards, without a vae on the sampler ({format_bytes(without)})"
    assert fewer.startswith("episodic_frames 2 (") and smaller.startswith("episodic_frames 2, recent_frames 0 (")


def needs_with(text: str, method: str) -> Needs:
    """The needs of a minute with the changes of a remedy, from a plan made with them."""
    decoder = DecoderMemory() if "decode afterwards" in text else DECODER
    if "--park-features" in text:
        decoder = replace(decoder, held=0)
    size, other = (re.search(pattern, text) for pattern in (r"(\d+)x(\d+)", r"method (\w+)"))
    width, height = map(int, size.groups()) if size else (832, 480)
    memory = {name: int(frames) for name, frames in re.findall(r"(episodic_frames|recent_frames) (\d)", text)}
    area = width * height / (832 * 480)
    scaled = replace(decoder, held=int(area * decoder.held), peak=int(area * decoder.peak))
    made = plan(width=width, height=height, method=other[1] if other else method, **memory)
    return needs_of(made, torch.bfloat16, WEIGHTS, decoder=scaled)


@pytest.mark.parametrize(("method", "host", "room"), [
    *(("head_forcing", COMFYUI, room) for room in (6e9, 2.5e9)),
    *(("head_forcing", COMMAND_LINE, room) for room in (9e9, 6e9, 4e9, 2.5e9)),
    *((method, COMFYUI, 5e9) for method in ("self_forcing", "longlive", "self_forcing_sink")),
])  # fmt: skip
def test_every_remedy_fits_and_takes_what_it_says(method, host, room):
    """Held against plans that are made anew with the changes."""
    render = plan(method=method)
    needs = needs_of(render, torch.bfloat16, WEIGHTS, decoder=DECODER)
    if host is COMMAND_LINE and room < WEIGHTS:
        assert "No setting of this video fits" in refused(needs, room, render, host)
        return
    found = offered(needs, room, render, host)
    assert 1 <= len(found) <= 3
    for text in found:
        takes = needs_with(text, method).wanted(host)
        assert takes <= room and text.endswith(f"({format_bytes(takes)})"), text


def test_a_disk_that_is_too_small_is_refused_but_not_for_the_state(tmp_path, monkeypatch):
    needs = needs_of(plan(), torch.bfloat16, WEIGHTS, kept=True, state=True, writes_video=True)
    free = needs.run_folder + needs.video
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=free))
    check_disk(needs, tmp_path, tmp_path)
    free -= 1
    check_disk(needs, None, tmp_path)  # nothing is kept, or it lies on another disk
    with pytest.raises(HeadForcingError, match=r"not enough disk: .* has .* free\. Remedies, cheapest first") as error:
        check_disk(needs, tmp_path, tmp_path)
    *_, last = remedies = str(error.value).partition("cheapest first: ")[2].split("; ")
    assert len(remedies) == 3 and "leave out --runs" in last and f"(saves {format_bytes(needs.run_folder)})" in last


def test_a_video_of_several_rollouts_needs_a_second_decoder_and_cannot_be_decoded_afterwards():
    short, long = (plan(method="causvid", seconds=seconds) for seconds in (5.0, 60.0))
    takes = [needs_of(render, torch.bfloat16, WEIGHTS, decoder=DECODER) for render in (short, long)]
    assert [needs.decode for needs in takes] == [DECODER.peak, DECODER.peak + DECODER.held]
    assert takes[0].cache == takes[1].cache == 360 * 21 * 1560 * 128 * 2 * 2
    assert "decode afterwards" in refused(takes[0], takes[0].working, short)
    assert "decode afterwards" not in refused(takes[1], takes[1].working, long)
