"""Decode Latents to Video: latents, connected or from a run folder, to an MP4, chunk by chunk, in
constant memory.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import comfy.utils
from comfy_api.latest import InputImpl, io
from torch import Tensor

from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.files import Fields
from ..headforcing_core.model.latents import WAN21, WAN22, latent_format
from ..headforcing_core.plan.request import story_begins
from ..headforcing_core.runs.stored import StoredVideo
from ..headforcing_core.timeline.clock import VIDEO_FPS, video_frames_of
from ..headforcing_core.video.sound import Sound
from ..headforcing_core.video.soundtrack import Soundtrack
from ..headforcing_core.video.stream import write_video
from ..headforcing_core.video.writer import VideoSettings
from .host import folders
from .host.browser import player, runs
from .host.browser.progress import stop_where_asked
from .host.graph import schema, video_files
from .host.graph.sound import soundtrack_of
from .host.model.vae import check_vae, load_decoder, picture_scale
from .host.sentences import Sentence

CHUNK_FRAMES = 3
CONNECTED = "connected samples"


class DecodeLatentsToVideo(schema.FileNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema.node_schema(
            "HeadForcingDecodeVideo",
            "Decode Latents to Video",
            "video",
            aliases="video combine, save video, VAE decode, mp4, export video",
            inputs=[
                io.Latent.Input("samples", optional=True),
                io.Vae.Input("vae"),
                io.String.Input("filename_prefix", default="video/HeadForcing"),
                io.Float.Input("fps", default=16.0, min=1.0, max=120.0, step=1.0),
                schema.crf_input(),
                io.Int.Input("upscale", default=1, min=1, max=16),
                io.Combo.Input("run", options=[CONNECTED, *runs.run_names()], default=CONNECTED),
                io.Audio.Input("audio", optional=True),
            ],
            advanced="crf upscale run",
            outputs={"video": io.Video},
            output_list="video",
            makes_video=True,
        )

    @classmethod
    def fingerprint_inputs(cls, run: str = CONNECTED, **_: Any) -> int:
        """Changes when a run has more blocks, so that ComfyUI decodes again."""
        return runs.finished_blocks(run)

    @classmethod
    @player.shows_errors
    def execute(
        cls,
        vae: Any,
        filename_prefix: str,
        fps: float,
        samples: Fields | None = None,
        crf: int = 18,
        upscale: int = 1,
        run: str = CONNECTED,
        audio: Fields | None = None,
    ) -> io.NodeOutput:
        check_vae(vae)
        connected = soundtrack_of(audio)
        stored = None if run == CONNECTED else runs.find_run(run)
        videos = _of_latent(samples) if stored is None else [_of_run(stored)]
        kind = latent_format(vae.latent_channels)
        progress = comfy.utils.ProgressBar(sum(video.video_frames for video in videos))
        files = []
        before = 0
        for video in videos:
            width, height = kind.pixels(video.size)
            scale = picture_scale(vae)
            about = video.about
            rate = fps
            if fps == VIDEO_FPS:  # the widget's default is that of Wan 2.1
                rate = about.get("fps", kind.fps)

            def on_progress(done: int, before: int = before) -> None:
                stop_where_asked()
                progress.update_absolute(before + done)

            with folders.output_file(filename_prefix, width * scale, height * scale) as file:
                tags = video_files.tags_of(cls.hidden, about, rate)
                write_video(
                    VideoSettings(file.path, rate, tags, crf, scale=upscale),
                    video.chunks,
                    load_decoder(vae, video.size, about),
                    video_frames=video.video_frames,
                    on_progress=on_progress,
                    sound=video.sound(connected, rate),
                )
            before += video.video_frames
            files.append(file)
            if stored is not None:
                runs.link_file(stored, file.path, made_by="")
        shown = player.NodePlayer(cls.hidden)
        shown.show("done", Sentence("wrote %1", ", ".join(file.place for file in files)))
        return io.NodeOutput(
            [InputImpl.VideoFromFile(str(file.path)) for file in files], ui=shown.output(files)
        )


@dataclass(frozen=True)
class _Latents:
    """One video to decode: `chunks` of `[frames, channels, h, w]`; `video_frames` is the number of
    video frames that it is trimmed to, `about` the metadata of `RenderJob.about`, empty for latents
    from elsewhere.
    """

    chunks: Iterable[Tensor]
    size: tuple[int, ...]
    video_frames: int
    about: Fields
    soundtrack: Soundtrack | None = None

    def sound(self, connected: Soundtrack | None, fps: float) -> Sound | None:
        """The connected sound, else that of the story, which begins after the start frames; `fps`
        is the file's.
        """
        soundtrack = connected or self.soundtrack
        if soundtrack is None:
            return None
        return soundtrack.from_second(-story_begins(self.about, fps))


def _of_latent(samples: Fields | None) -> list[_Latents]:
    if samples is None:
        raise HeadForcingError("samples: nothing to decode; connect latents, or choose a run")
    latents = samples["samples"]
    if latents.ndim != 5 or latents.shape[1] not in (WAN21.channels, WAN22.channels):
        raise HeadForcingError(
            "samples: expected Wan video latents [videos, 16 or 48, frames, h, w], got "
            f"{list(latents.shape)}"
        )
    known = samples.get("head_forcing", {})
    # latents that were cut or joined still have this metadata, which is then wrong: their number of
    # frames differs
    if known.get("frames") != latents.shape[2]:
        known = {}
    length = known.get("video_frames", video_frames_of(latents.shape[2]))
    return [
        _Latents(
            video.split(CHUNK_FRAMES),
            latents.shape[3:],
            length,
            about=known.get("about", {}),
            soundtrack=known.get("soundtrack"),
        )
        for video in latents.transpose(1, 2)
    ]


def _of_run(video: StoredVideo) -> _Latents:
    """The finished blocks of a run, one at a time from its folder."""
    chunks = (runs.to_latent(video, block).split(CHUNK_FRAMES) for block in video.blocks())
    return _Latents(
        chain.from_iterable(chunks),
        next(video.blocks()).shape[-2:],
        video_frames=video.about["video_frames"],
        about=video.about,
    )
