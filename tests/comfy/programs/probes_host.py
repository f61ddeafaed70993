"""The pack inside ComfyUI: how it is imported, the models and attention that it takes as they are,
whom it answers.
"""

import functools
import importlib
import json
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock, patch

import comfy
import comfy.model_management as mm
import comfy.sd
import comfy.utils
import server as core_server
import torch
from parity import (
    LORA,
    TINY,
    apart,
    bridge,
    core,
    hosted,
    imported_by_pack,
    loaded_model,
    make_plan,
    module,
    native,
    probe,
    repo,
    smoke,
    toy,
)


@smoke
def importing_the_pack_pulls_in_nothing_heavy_and_comfys_own_modules_keep_their_names():
    assert imported_by_pack == []  # the nodes are imported when ComfyUI asks for them
    module(".nodes")
    assert Path(importlib.import_module("nodes").__file__).parent == Path(comfy.__path__[0]).parent
    assert repo not in {path.rstrip("/") for path in sys.path}


def messages_of_a_story(minutes):
    """What a page is sent in two blocks of a story with a prompt every 10 s: messages with it,
    messages without, and the answers of the routes.
    """
    browser = {
        name: module(f".nodes.host.browser.{name}") for name in ("pages", "live_story", "progress")
    }
    pages = browser["pages"]
    sent = []
    page = f"page{minutes}"
    core_server.PromptServer.instance = MagicMock(
        client_id=page,
        sockets={page: None},
        send_sync=lambda event, about, client: sent.append((event, about)),
    )
    model = native()
    text = "\n".join(
        f"{second // 60}:{second % 60:02d} a fox trots over a field in the light of hour {second}"
        for second in range(0, 60 * minutes, 10)
    )
    plan = make_plan(model, 60.0 * minutes, text=text)
    hidden = types.SimpleNamespace(
        unique_id="3", prompt={}, extra_pnginfo={"workflow": {"id": page, "nodes": []}}
    )
    story = types.SimpleNamespace(
        node=types.SimpleNamespace(widgets={"prompts": text, "seconds": 60.0 * minutes}),
        node_id="5",
        client_id=page,
        prompt_id="run",
        workflow=page,
        changed_by="",
        more={},
    )
    progress = browser["progress"].RenderProgress(model, [plan], hidden)
    query = {"client": page, "workflow": page}
    assert pages._renders(query) == []
    for block in range(plan.blocks - 2, plan.blocks):
        progress.step(block, 0, None)
        browser["live_story"].LiveStory.announce(story, True)
    whole = [about for _, about in sent[:2]]
    short = [about for _, about in sent[2:]]
    listed = pages._renders(query)
    later = [
        pages._story({**query, "event": event, "node": about.get("node") or about["node_id"]})
        for event, about in listed
    ]
    assert [about["since"] for about in short] == [about["since"] for about in whole]
    lasting = [{name: each[name] for name in each if name in pages.LASTING} for each in whole]
    assert [{**each, "since": 0} for each in later] == [{**each, "since": 0} for each in lasting]
    assert len(lasting[0]["scenes"]) == 6 * minutes and lasting[1]["story"]["prompts"] == text

    story.node = types.SimpleNamespace(widgets={"prompts": f"{text} and stops"})
    browser["live_story"].LiveStory.announce(story, True)
    assert sent[-1][1]["story"] == story.node.widgets and sent[-1][1]["since"] > whole[1]["since"]
    return short, listed


@probe
def messages_of_a_block_do_not_grow_with_the_story_and_a_page_that_comes_later_asks_for_it():
    """Bytes as JSON, of one minute and of five hours."""
    for minutes in (1, 300):
        short, listed = messages_of_a_story(minutes)
        assert len(short) == 2 and len(listed) == 2
        for about in (*short, *listed):
            assert len(json.dumps(about)) < 1000, (minutes, about)


@probe
def a_model_is_loaded_once_more_for_another_gpu_and_the_sampler_works_behind_the_node_that_splits_guidance():
    """Select Model Device and MultiGPU CFG Split load the MODEL from what the loader left on it;
    two names of the CPU stand in for two GPUs."""
    node = importlib.import_module("comfy_extras.nodes_multigpu").MultiGPUCFGSplitNode
    multigpu = importlib.import_module("comfy.multigpu")
    tiny = toy.reloadable(module(".nodes.load_model").load_model, TINY, "auto", None)
    (demo, *_) = module(".nodes.load_demo").LoadDemoModel.execute().result
    for model in (tiny, demo):
        copy = model.clone().deepclone_multigpu(new_load_device=torch.device("cpu"))
        weights = dict(model.model.diffusion_model.named_parameters())
        others = dict(copy.model.diffusion_model.named_parameters())
        assert callable(copy.cached_patcher_init[0])
        assert loaded_model.name_model(model) == loaded_model.name_model(copy)
        assert not any(weights[name] is others[name] for name in weights)
    plan = make_plan(tiny, 3.0)
    devices = [tiny.load_device, torch.device("cpu", 0)]
    with (
        patch.object(mm, "get_all_torch_devices", lambda *_, **__: list(devices)),
        patch.object(mm, "set_torch_device", lambda device: None),
        patch.object(multigpu, "MultiGPUThreadPool", wraps=multigpu.MultiGPUThreadPool) as pool,
    ):
        (split,) = node.execute(tiny, 2).result
        found = hosted(split, plan)
    assert len(split.get_additional_models_with_key("multigpu")) == 1, (
        "the MODEL keeps its copy for another GPU"
    )
    pool.assert_not_called()  # and a render has none, nor loads anything there
    assert apart(found, hosted(native(), plan)) == 0


@probe
def fused_kernels_on_the_native_model_leave_alone_what_comfyui_casts():
    """What a GPU's kernels do, in plain torch: on norms that ComfyUI leaves alone, on norms whose
    cast changes nothing (as under dynamic VRAM), and on norms that it changes."""
    operation = module(".kernels.dispatch").Operation
    model = native()
    called = set()
    plan = make_plan(model, 3.0)
    parts = list(model.model.diffusion_model.modules())
    norms = [part for part in parts if isinstance(part, (torch.nn.LayerNorm, torch.nn.RMSNorm))]
    norms = [part for part in norms if part.weight is not None]
    castable = [part for part in parts if hasattr(part, "comfy_cast_weights")]
    for part in norms:  # numbers that both dtypes have
        part.weight.data = part.weight.data.bfloat16().float()
    expected = hosted(model, plan)

    def kernel(self, *arguments, **options):
        if self.name in ("norm_modulate", "write_block"):  # those of every pass
            called.add((self.name, self.name == "write_block" and arguments[3] is None))
        return self.reference(*arguments, **options)

    def kernels_used():
        called.clear()
        assert apart(hosted(model, plan), expected) < 1e-4
        return set(called)

    fused = {("norm_modulate", False)}
    with (
        patch.object(operation, "usable", lambda *_: True),
        patch.object(operation, "kernel", kernel),
    ):
        assert kernels_used() == fused | {("write_block", False)}
        for part in castable:
            part.comfy_cast_weights = True
        for part in norms:
            part.weight.data = part.weight.data.bfloat16()
        assert kernels_used() == fused | {("write_block", False)}
        for part in castable:
            part.weight_function = [lambda weight: weight]
        # those with weights are ComfyUI's own layers'
        assert kernels_used() == fused | {("write_block", True)}


@probe
def comfyuis_fp8_storage_and_products_work_and_are_told_apart():
    """ComfyUI's fp8 products, which it computes on a CPU when told that the device has them."""
    fp8 = {"dtype": torch.float8_e4m3fn}
    model = native()
    stored = comfy.sd.load_diffusion_model(TINY, model_options=fp8)
    with patch.object(mm, "SUPPORT_FP8_OPS", True):
        fast = comfy.sd.load_diffusion_model(TINY, model_options=fp8 | {"fp8_optimizations": True})
    plan = make_plan(model, 1.5)
    exact = hosted(model, plan)
    for other in (stored, fast):
        latents = hosted(other, plan)
        assert 1e-3 < float((latents - exact).norm() / exact.norm()) < 0.3
        assert apart(hosted(other, plan), latents) == 0
    fast_lines = ["linear layers in 8-bit floating point (float8_e4m3fn, ComfyUI's products)"]
    assert (
        loaded_model.approximations(fast) == fast_lines and loaded_model.approximations(model) == []
    )
    assert len({loaded_model.name_model(each) for each in (model, stored, fast)}) == 3


@probe
def attention_goes_through_what_nodes_put_in_its_place():
    model = native()
    calls = []
    plan = make_plan(model, 1.5)
    plain = hosted(model, plan)

    def replaced(function):
        patched = model.clone()
        patched.model_options.setdefault("transformer_options", {})[
            "optimized_attention_override"
        ] = function
        return hosted(patched, plan)

    def watching(function, q, k, v, *args, **kwargs):
        calls.append(
            len(q) == 1 and q.shape[1] == k.shape[1] == (args[0] if args else kwargs["heads"])
        )
        return function(q, k, v, *args, **kwargs)

    assert apart(plain, replaced(watching)) == 0 and len(calls) > 25 and all(calls)
    assert apart(plain, replaced(lambda function, q, *args, **kwargs: q)) > 1e-3


@probe
def attention_is_what_was_fastest_unless_somebody_has_chosen_and_comfyuis_on_a_cpu():
    """What is handed to the cache: ComfyUI's kernels, PyTorch's unless another was chosen at the
    start.
    """
    arguments = [
        torch.randn(3, n, 16, generator=torch.Generator().manual_seed(n)) for n in (5, 9, 9)
    ]
    attention = bridge.HostAttention({})
    kernels = bridge.comfy.ldm.modules.attention
    sizes = (
        torch.float32,
        "cpu",
        types.SimpleNamespace(head_dim=16, layer_sizes="the sizes of the render"),
    )
    expected = torch.nn.functional.scaled_dot_product_attention(*(x[None] for x in arguments))[0]
    assert torch.equal(attention(*arguments), expected) and attention.or_better(*sizes) is attention
    with (
        patch.object(bridge.command_line, "use_quad_cross_attention", True),
        patch.object(kernels, "optimized_attention", kernels.attention_sub_quad),
    ):
        assert attention.or_better(*sizes) is attention
        assert 0 < apart(attention(*arguments), expected) < 1e-5
    timed = core.attention.LayerAttention(
        functools.partial(core.attention.attend_layer, bridge.sdpa), "sdpa (timed)"
    )
    with patch.object(bridge, "attention_function", return_value=timed) as choose:
        assert attention.or_better(*sizes) is timed
        overridden = bridge.HostAttention({"optimized_attention_override": print})
        assert overridden.or_better(*sizes) is overridden
    assert choose.call_args.kwargs["sizes"] == "the sizes of the render", (
        "else the first that works, not the fastest"
    )


@smoke
def a_fingerprint_names_weights_and_loras():
    model = native()
    lora = comfy.utils.load_torch_file(LORA)
    other = {name: tensor.flip(0) if tensor.ndim else tensor for name, tensor in lora.items()}

    def patched(weights, strength):
        return comfy.sd.load_lora_for_models(model, None, weights, strength, 0)[0]

    other_weights = native()
    with_lora = patched(lora, 1.0)
    with torch.no_grad():
        other_weights.model.diffusion_model.blocks[1].ffn[2].weight[0, 0] += 1
    plain = loaded_model.name_model(model)
    named = loaded_model.name_model(with_lora)
    assert plain == loaded_model.name_model(native()) == loaded_model.name_model(model.clone())
    mm.load_models_gpu([with_lora])  # merges the LoRA into the weights
    assert with_lora.backup, "the LoRA was not merged, so loading proves nothing"
    assert (
        named
        == loaded_model.name_model(patched(dict(lora), 1.0))
        == loaded_model.name_model(with_lora)
    )
    others = (patched(lora, 0.5), patched(other, 1.0), other_weights)
    assert len({plain, named, *map(loaded_model.name_model, others)}) == 5


HOME = "127.0.0.1"
ANYWHERE = "0.0.0.0"
HERE = {"Host": "127.0.0.1:8188"}
MINE = {"Host": "my.example", "Origin": "https://my.example"}
EVIL = {"Host": "evil.example", "Origin": "https://evil.example"}


@probe
def requests_are_told_apart_by_site_and_name_however_comfyui_was_started():
    pages = module(".nodes.host.browser.pages")
    # where ComfyUI listens, its --enable-cors-header, a request's headers, and whether it is
    # answered
    for listen, cors, headers, expected in (
        # a server that answers pages of every site: ComfyUI then checks no origin itself
        (HOME, "*", HERE | {"Origin": "http://example.com"}, False),
        (HOME, "*", HERE | {"Origin": "null"}, False),
        (HOME, "*", HERE | {"Origin": "http://["}, False),
        (HOME, "*", HERE | {"Origin": "http://127.0.0.1:1"}, False),
        (
            HOME,
            "*",
            HERE | {"Origin": "http://127.0.0.1:8188", "Sec-Fetch-Site": "same-site"},
            False,
        ),
        (HOME, "*", HERE | {"Origin": "http://127.0.0.1:8188"}, True),
        # a server in a network answers to its domain
        (ANYWHERE, None, EVIL, True),
        (HOME, "https://my.example", MINE, True),
        (HOME, "https://my.example", EVIL, False),
    ):
        with patch.multiple(pages.args, listen=listen, enable_cors_header=cors):
            assert pages.from_here(types.SimpleNamespace(headers=headers)) == expected, (
                listen,
                cors,
                headers,
            )
