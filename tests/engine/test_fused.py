"""The transformer with fused kernels in place of norms, gates, rotary embedding and cache writes:
the same video.

Plain torch stands in for the kernels here, with the arguments that they would get;
`kernels_interpreted.py` runs the engine with the kernels themselves.
"""

from dataclasses import replace

import pytest
import torch
import torch._dynamo
from headforcing.cli.compiled import compiled_forward
from headforcing.headforcing_core.cache import head_group
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods.head_forcing import HeadForcing
from headforcing.headforcing_core.model.norms import add_norm
from headforcing.headforcing_core.model.wan import PromptKV, WanModel
from small_engine import BUSY, latents, make_blocks, measure, new_cache, wan

ROLES = [["memory", "local", "anchor", "local"], ["anchor", "local", "local", "anchor"]]
BLOCKS = 8
PASSES = BLOCKS * 3
# one before each of three parts of a layer and one before the head; the clean pass ends behind the
# last keys and values
NORMS = PASSES * (3 * len(ROLES) + 1) - BLOCKS * 3


@pytest.fixture
def model() -> WanModel:
    model = wan()
    torch.manual_seed(0)
    for block in model.blocks:
        block.norm3.weight.normal_()
    return model


def video(model: WanModel, method: HeadForcing = BUSY, measured: bool = False, **options):
    """The latents of a video, and its cache."""
    cache = new_cache(model, ROLES, method, BLOCKS)
    if measured:
        measure(cache)
    return latents(make_blocks(model, cache, BLOCKS, **options)), cache


@pytest.mark.parametrize(
    ("rope", "measured", "joined"), [("contiguous", True, False), ("absolute", False, True)]
)
def test_fused_kernels_make_the_same_video_and_leave_the_same_cache(
    model, rope, measured, joined, request
):
    method = replace(BUSY, rope=rope)
    expected, plain = video(model, method, measured)
    if joined:  # one product for queries, keys and values
        model.join_projections()
        assert torch.equal(video(model, method, measured)[0], expected)
    called = request.getfixturevalue("fused")
    found, cache = video(model, method, measured)
    assert set(called) == {
        "norm_modulate",
        "write_block",
        "merge_frames",
        "pooled_keys",
        "move_frames",
    }
    # sum and norm before self-attention, before cross-attention and before the feed-forward layers,
    # and the write
    assert (
        called.count("write_block") == PASSES * len(ROLES)
        and called.count("norm_modulate") == NORMS
    )
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    assert [group.sources for group in cache.groups] == [group.sources for group in plain.groups]
    for group, other in zip(cache.groups, plain.groups, strict=True):
        for layer in range(len(ROLES)):
            torch.testing.assert_close(
                group.context(layer), other.context(layer), atol=1e-4, rtol=0
            )


def test_the_caches_of_all_layers_are_changed_in_one_launch_each(fused, monkeypatch):
    """Per group of heads: frames take their new places, and are rotated to them; for memory heads
    also the rest.

    Also where no slot is free: frames that only move up need none.
    """
    cache = HeadCache(CacheShape(ROLES, BUSY, 2, 3, 22, 3, 60), torch.float32)
    key = torch.randn(1, 4, 5, 22)
    for block in range(16):
        if block == 12:
            monkeypatch.setattr(
                torch.Tensor, "index_select", lambda *_: pytest.fail("slots were copied in a loop")
            )
        fused.clear()
        cache.begin_block()
        assert block < 12 or all(group.frames == group.k[0].shape[1] for group in cache.groups)
        for layer in range(len(ROLES)):
            cache.write_and_rotate(layer, *torch.randn(2, 18, 4, 22))
        event = cache.commit(PromptKV([(key, key)] * len(ROLES), 4, key[0, 0]))
    assert event is not None and event.merged
    assert fused.count("merge_frames") == 1 and fused.count("pooled_keys") == 2
    # every group rolls and rotates; memory heads also close the gap after a merge and admit a frame
    assert fused.count("move_frames") <= 2 * len(cache.groups) + 2


def test_tables_of_moves_that_come_again_are_not_built_again(fused, monkeypatch):
    built = []
    cache = HeadCache(CacheShape(ROLES, BUSY, 2, 3, 22, 3, 60), torch.float32)
    upload = head_group.upload
    monkeypatch.setattr(
        head_group, "upload", lambda table, device: [built.append(1), upload(table, device)][1]
    )
    for _ in range(12):
        built.clear()
        cache.begin_block()
        cache.close()
    assert "move_frames" in fused and not built


def test_norms_that_a_host_has_its_hands_on_are_called(model, fused):
    expected, _ = video(model)
    first, second = model.blocks
    marks = {  # in virtual memory, patched, and with a patched bias
        first.norm3: dict(comfy_cast_weights=True, _v=object()),
        first.self_attn.norm_k: dict(weight_function=[lambda weight: weight]),
        second.norm3: dict(bias_function=[lambda bias: bias]),
        # without weights there is nothing to patch
        first.norm1: dict(weight_function=[lambda weight: weight]),
    }
    called = []
    for norm, attributes in marks.items():
        for name, value in attributes.items():
            setattr(norm, name, value)
        norm.register_forward_hook(lambda module, *_: called.append(module))
    fused.clear()
    found, _ = video(model)
    assert [called.count(norm) for norm in marks] == [PASSES, PASSES, PASSES - BLOCKS, 0]
    assert fused.count("norm_modulate") == NORMS - 2 * PASSES + BLOCKS
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_norms_whose_weights_a_host_has_loaded_for_good_are_fused_though_it_casts_all_others(
    model, fused
):
    """As ComfyUI's dynamic VRAM does: every layer casts, and small weights stay on the device in
    their file's dtype.
    """
    attention = model.blocks[1].self_attn
    called = []
    norms = (model.blocks[1].norm3, attention.norm_q, attention.norm_k)
    for norm in norms:
        norm.comfy_cast_weights = True
        norm.weight_function = []
        norm.bias_function = []
        norm.register_forward_hook(lambda module, *_: called.append(module))
    expected, _ = video(model)
    for norm in norms:
        norm.double()  # the file's dtype; what is stored is the same
    found, _ = video(model)
    assert not called and fused.count("norm_modulate") == 2 * NORMS
    assert torch.equal(found, expected)


@pytest.mark.usefixtures("fused")
def test_weights_of_a_norm_are_rounded_to_the_dtype_of_its_input():
    """As by a host that casts them: float32 files would else give other numbers where a kernel is
    used.
    """
    torch.manual_seed(0)
    norm = torch.nn.LayerNorm(88)
    x = torch.randn(1, 24, 88).bfloat16()
    for weight in norm.parameters():
        weight.data.normal_()
    _, found = add_norm(x, None, norm)
    _, expected = add_norm(x, None, norm.bfloat16())
    assert torch.equal(found, expected)


@pytest.mark.slow
def test_compiled_layers_make_the_same_video_and_are_compiled_once_for_all(model):
    """Traced as for any compiler, and then run as it is: making machine code takes twenty
    seconds.
    """
    expected, _ = video(model)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    found, _ = video(model, forward=compiled_forward("eager"))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_what_cannot_be_compiled_is_said_in_a_sentence(model):
    def no_compiler(graph, inputs):
        raise OSError("no C compiler. Here are many pages")

    torch._dynamo.reset()
    with pytest.raises(
        HeadForcingError, match=r"^torch.compile failed: .*; render without compiling$"
    ) as told:
        video(model, forward=compiled_forward(no_compiler))
    assert "pages" not in str(told.value)
