"""What is stored and used again in ComfyUI has all that it depends on in its name: each part is
changed alone.
"""

import io
import os
import types
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import av
import torch
from comfy_api.latest import InputImpl, Types
from parity import folder, module, probe

VIDEO = Path(folder, "identities.mp4")


def write_video(shade):
    writer = module(".headforcing_core.video.writer")
    with writer.VideoWriter(writer.VideoSettings(VIDEO, fps=8), 64, 48) as file:
        file.write(torch.full((16, 48, 64, 3), shade, dtype=torch.uint8))
    os.utime(VIDEO, (1e9, 1e9))


def all_different(names):
    assert len(set(names.values())) == len(names), names


@probe
def half_a_finished_video_is_named_by_its_source_the_models_and_the_encoder():
    node = module(".nodes.finish_video")

    def model(weight, kind=torch.nn.Linear):
        network = kind(2, 2)
        torch.nn.init.zeros_(network.weight)
        torch.nn.init.zeros_(network.bias)
        network.bias.data[-1] = weight  # the last number of all
        return types.SimpleNamespace(model=network, scale=2.0)

    class Other(torch.nn.Linear):
        pass

    def name(models=None, crf=18, source="one"):
        models = models or node._Models(model(0.0), model(0.0), 2)
        return node._name_of_part(source, models, crf)

    names = {
        "as it is": name(),
        "source": name(source="another"),
        "upscale model": name(node._Models(model(1.0), model(0.0), 2)),
        "interpolation model": name(node._Models(model(0.0), model(1.0), 2)),
        "kind": name(node._Models(model(0.0, Other), model(0.0), 2)),
        "one model": name(node._Models(model(0.0), None, 2)),
        "factor": name(node._Models(model(0.0), model(0.0), 3)),
        "quality": name(crf=19),
    }
    assert name() == names["as it is"]
    with patch.object(av, "__version__", "0.0"):
        names["encoder"] = name()
    all_different(names)


@probe
def a_video_is_known_again_by_its_file_its_part_its_frames_and_their_rate():
    footage = module(".nodes.finish_video")._footage
    write_video(90)

    def of_file():
        return footage(InputImpl.VideoFromFile(str(VIDEO)))[1]

    def cut(start, duration):
        window = types.SimpleNamespace(
            get_stream_source=lambda: str(VIDEO),
            get_active_trim_window=lambda: (start, duration),
        )
        return footage(window)[1]

    def in_memory(last=0.5, rate=8):
        images = torch.full((3, 48, 64, 3), 0.5)
        images[-1, -1, -1, -1] = last
        parts = Types.VideoComponents(images=images, audio=None, frame_rate=rate)
        return footage(InputImpl.VideoFromComponents(parts))[1]

    names = {"file": of_file(), "beginning": cut(0.5, 0.0), "length": cut(0.0, 0.5)}
    names["bytes"] = footage(InputImpl.VideoFromFile(io.BytesIO(VIDEO.read_bytes())))[1]
    os.utime(VIDEO, (1e9, 1e9 + 1))
    names["time"] = of_file()
    write_video(91)
    VIDEO.write_bytes(VIDEO.read_bytes() + b"\0\0\0\x08free")
    os.utime(VIDEO, (1e9, 1e9))
    names["size"] = of_file()
    names["other bytes"] = footage(InputImpl.VideoFromFile(io.BytesIO(VIDEO.read_bytes())))[1]
    names |= {"frames": in_memory(), "one value": in_memory(0.6), "rate": in_memory(rate=9)}
    all_different(names)
    assert in_memory() == names["frames"]


@probe
def the_file_of_a_take_is_known_by_its_blocks_its_length_its_decoder_and_its_sound():
    take_file = module(".nodes.host.render.take_file")
    Soundtrack = module(".headforcing_core.video.soundtrack").Soundtrack
    sound = Soundtrack.of_samples(torch.linspace(-0.5, 0.5, 800)[None], 8000)

    class Decoder:
        pass

    class Another:
        pass

    def name(last="b", end_block=2, frames=33, kind=Decoder, weights="w", heard=sound, draft=False):
        job = types.SimpleNamespace(
            keys=["a", last], plan=types.SimpleNamespace(video_frames=frames)
        )
        vae = types.SimpleNamespace(first_stage_model=kind())
        render = types.SimpleNamespace(
            request=types.SimpleNamespace(soundtrack=heard), vae=None if draft else vae
        )
        with patch.object(take_file, "decoder_fingerprint", lambda vae: weights):
            return take_file._key(render, job, end_block, vae)

    all_different(
        {
            "as it is": name(),
            "last block": name(last="c"),
            "number of blocks": name(end_block=1),
            "length": name(frames=32),
            "kind of decoder": name(kind=Another),
            "weights of the decoder": name(weights="others"),
            "draft": name(draft=True),
            "no sound": name(heard=None),
            "sound": name(heard=Soundtrack.of_samples(torch.linspace(0.5, -0.5, 800)[None], 8000)),
            "place of the sound": name(heard=replace(sound, offset_seconds=1.0)),
            "gain of the sound": name(heard=replace(sound, gain_db=-3.0)),
        }
    )
    assert name() == name()


@probe
def a_decoder_is_known_by_its_weights_and_a_file_of_a_take_by_its_size():
    vae_decoding = module(".nodes.host.model.vae")
    runs = module(".nodes.host.browser.runs")
    network = torch.nn.Conv3d(2, 2, 1)

    def name():
        codec = module(".headforcing_core.video.restarts").FrameCodec(lambda: None, network)
        with (
            patch.object(vae_decoding, "codec_of", lambda vae: codec),
            patch.object(vae_decoding, "is_draft", lambda vae: False),
        ):
            return vae_decoding.decoder_fingerprint(None)

    before = name()
    network.bias.data[0] += 1
    assert name() != before
    write_video(90)
    maker = runs._maker("one", VIDEO)
    assert runs._maker("another", VIDEO) != maker
    VIDEO.write_bytes(VIDEO.read_bytes() + b"\0")
    assert runs._maker("one", VIDEO) != maker


@probe
def a_waveform_is_read_again_when_the_path_size_or_time_of_its_file_has_changed():
    sounds = module(".nodes.host.browser.sounds")
    path = Path(folder, "identities.wav")
    path.write_bytes(b"one")
    os.utime(path, (1e9, 1e9))
    read = []

    def heard(of=path):
        sounds._heard(of, lambda: None)
        return len(read)

    with (
        patch.dict(sounds._known, clear=True),
        patch.object(sounds, "listen", lambda path, check: read.append(path)),
    ):
        sounds._known.clear()
        assert heard() == 1
        sounds._known[next(iter(sounds._known))] = "a sound"  # what is None is read each time
        assert heard() == 1
        os.utime(path, (1e9, 1e9 + 1))
        assert heard() == 2
        os.utime(path, (1e9, 1e9))
        path.write_bytes(b"three")
        os.utime(path, (1e9, 1e9))
        assert heard() == 3
        other = path.rename(path.with_name("another.wav"))
        path.write_bytes(b"one")
        os.utime(path, (1e9, 1e9))
        assert heard() == 3, "as it was"
        assert heard(other) == 4
