"""A model that speech drives, on a native MODEL: the numbers of the core, and its audio tensors."""

from types import SimpleNamespace

import torch
from parity import (
    Watcher,
    apart,
    core,
    embeds_of,
    folder,
    loaded_model,
    module,
    probe,
    render_video,
    scaled,
    smoke,
    toy,
)

TALKING = f"{folder}/livetalk.safetensors"
ROLES = core.profile.HeadProfile(
    "tiny",
    4,
    2,
    (("local", "anchor"), ("memory", "memory"), ("anchor", "local")) + (("local",) * 2,),
)
load_model = module(".nodes.load_model").load_model
speech = module(".headforcing_core.plan.speech")
HostEncoder = module(".nodes.host.model.audio_encoder").HostEncoder
HostRender = module(".nodes.host.render.host_render").HostRender


def features(seed=3, frames=200):
    return torch.randn(frames, 16, generator=torch.Generator().manual_seed(seed))


def portrait():
    return torch.randn(1, 1, 16, 6, 10, generator=torch.Generator().manual_seed(9))


def request_of(model, method, text, seconds, **more):
    """A render with speech and a portrait, of latents as a LATENT holds them."""
    options = core.options.RenderOptions(
        method_name=method,
        model_family="livetalk",
        profile=ROLES if method == "head_forcing" else None,
        width=80,
        height=48,
        seconds=seconds,
        seed=5,
    )
    timeline = core.timeline.parse_timeline(text, seconds)
    given = {
        "conditions": speech.Speech(features()),
        "start": core.request.StartLatents(portrait()),
    }
    return render_video.request_of(model, options, timeline, embeds_of(timeline), **given | more)


def by_core(request, inner):
    """The latents of the request by the core's own transformer, as a LATENT holds them."""
    weights, _ = core.checkpoint.load_state_dict(TALKING)
    backbone = core.wan.WanModel.from_state_dict(request.config, weights, torch.float32)
    model = core.loop.WanVideoModel(backbone, torch.float32)
    blocks = list(core.render.make_blocks(request.job(), model))
    return scaled(inner.process_latent_out, torch.cat([block.latents for block in blocks]))


@torch.inference_mode()
def by_host(model, request):
    render = HostRender(model, request)
    return render_video.sample(render, request.plan(), 0, Watcher()).latents


@smoke
def speech_and_portrait_drive_the_native_model_as_they_drive_the_cores():
    model = load_model(TALKING, "auto", None)
    request = request_of(model, "livetalk", "one", 3.0)
    made = by_host(model, request)
    assert made.shape == (15, 16, 6, 10)
    assert apart(made, by_core(request, model.model)) < 1e-4
    assert apart(made[:1], portrait()[0]) < 1e-5
    other = request_of(model, "livetalk", "one", 3.0, conditions=speech.Speech(features(seed=4)))
    assert apart(by_host(model, other)[1:], made[1:]) > 1e-3
    silent = request_of(
        model, "livetalk", "one", 3.0, conditions=speech.Speech(features(), scale=0.0)
    )
    assert apart(by_host(model, silent)[1:], made[1:]) > 1e-3


@probe
def caches_by_head_and_a_cache_that_is_written_again_take_the_inputs_of_each_block():
    model = load_model(TALKING, "auto", None)
    for method, text in (
        ("head_forcing", "one"),
        ("longlive", "one | two"),
        ("livetalk", "one | [recache] two"),
    ):
        request = request_of(model, method, text, 4.5)
        assert apart(by_host(model, request), by_core(request, model.model)) < 1e-4, method


@probe
def clones_keep_the_audio_tensors_which_count_in_the_name_of_the_model():
    model = load_model(TALKING, "auto", None)
    names = set(loaded_model.audio_of(model.clone()))
    assert "audio_proj.proj.weight" in names and "audio_cond_projs.0.bias" in names
    assert loaded_model.wan_config(model.clone()).audio_width == 16
    name = loaded_model.name_model(model)
    assert name.is_known and loaded_model.name_model(model.clone()) == name
    other = load_model(TALKING, "auto", None)
    weight = loaded_model.audio_of(other)["audio_proj.proj.weight"]
    weight[0, 0] += 1
    assert loaded_model.name_model(other) != name


@probe
def a_model_that_lost_its_audio_tensors_is_refused_with_the_node_that_keeps_them():
    model = load_model(TALKING, "auto", None)
    model.remove_attachments(toy.AUDIO)
    try:
        loaded_model.wan_config(model)
    except ValueError as error:
        assert "without its 32 audio tensors" in str(error) and "Load Self Forcing" in str(error)
    else:
        raise AssertionError("it was taken")


@probe
def an_encoder_that_is_not_wav2vec2_base_is_refused():
    def encoder(width, layers):
        net = torch.nn.Module()
        net.feature_extractor = torch.nn.Identity()
        net.feature_projection = torch.nn.Module()
        net.feature_projection.projection = torch.nn.Linear(4, width)
        net.encoder = torch.nn.Module()
        net.encoder.layers = torch.nn.ModuleList(torch.nn.Identity() for _ in range(layers))
        return SimpleNamespace(model=net, patcher=None)

    assert HostEncoder(encoder(768, 12)).key
    whisper = SimpleNamespace(model=torch.nn.Linear(2, 2), patcher=None)
    for other, found in (
        (encoder(1024, 24), "an encoder of width 1024 and 24 layers"),
        (whisper, "got Linear"),
        (None, "got NoneType"),
    ):
        try:
            HostEncoder(other)
        except ValueError as error:
            assert found in str(error) and "load wav2vec2-base-960h" in str(error), error
        else:
            raise AssertionError(f"{found} was taken")
