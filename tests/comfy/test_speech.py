"""A portrait that speech drives, with a small model in the released layout and an audio encoder of
the released size.
"""

import io
from typing import Any

import pytest
import torch
from comfy_graphs import (
    Graph,
    node,
    opened,
    queued,
    saved_latents,
    text_of,
    tiny_graph,
)
from comfy_harness import ComfyServer
from PIL import Image
from safetensors.torch import save_file
from sound_files import heard, near, sound_file
from tiny_checkpoints import livetalk_weights, wan_vae, wav2vec2

MODEL = "hf_livetalk.safetensors"
ENCODER = "hf_wav2vec2_base.safetensors"
SIZE = {"width": 64, "height": 64, "seconds": 0.0, "method": "livetalk"}
CLICKS = (0.25, 1.5)
SECONDS = 2.0  # of the sound: 33 video frames, 9 latent frames


@pytest.fixture(scope="module")
def talking(request: pytest.FixtureRequest) -> ComfyServer:
    """The server with the model, the encoder, sounds and a portrait that is higher than wide."""
    server = request.getfixturevalue("comfy")
    save_file(livetalk_weights(), server.model_path("diffusion_models", MODEL))
    encoder = wav2vec2(server.model_path("audio_encoders", ENCODER))
    wan_vae(server.model_path("vae", "hf_tiny_vae.safetensors"))
    sound_file(server, "hf_speech.wav", SECONDS, CLICKS)
    sound_file(server, "hf_other_end.wav", SECONDS, (0.25, 1.75))
    Image.effect_noise((70, 131), 80).convert("RGB").save(server.input_dir / "hf_face.png")
    yield server
    encoder.unlink()


def graph(sound: str = "hf_speech.wav", speech: dict[str, Any] | None = None, **more: Any) -> Graph:
    """A portrait, a sound, and the sampler with the speech that they give."""
    given = {"vae": ["vae", 0], "start_image": ["face", 0], "speech": ["speech", 0]}
    made = tiny_graph(
        node("HeadForcingLoadModel", checkpoint=MODEL),
        **SIZE | given | {"filename_prefix": "video/talking"} | more,
    )
    del made["profile"]
    del made["sampler"]["inputs"]["head_profile"]
    return made | {
        "vae": node("VAELoader", vae_name="hf_tiny_vae.safetensors"),
        "face": node("LoadImage", image="hf_face.png"),
        "sound": node("LoadAudio", audio=sound),
        "encoder": node("AudioEncoderLoader", audio_encoder_name=ENCODER),
        "speech": node(
            "HeadForcingSpeech", audio_encoder=["encoder", 0], audio=["sound", 0], **speech or {}
        ),
    }


def test_a_portrait_speaks_for_as_long_as_the_sound_which_is_in_the_file(talking: ComfyServer):
    made = queued(talking, graph())
    report = text_of(made)
    latents = saved_latents(talking, made)
    assert latents.shape == (1, 16, 9, 8, 8) and torch.isfinite(latents).all()
    assert "model family livetalk" in report
    assert "portrait: the middle 70x70 of its 70x131 pixels is shown" in report
    (file,) = made.outputs["sampler"]["images"]
    data = talking.view(**file)
    assert opened(data)[:4] == (33, 64, 64, 16.0)
    assert near(heard(io.BytesIO(data)), [*CLICKS])
