"""Decode Latents to Video: LATENT and VAE to an MP4, chunk by chunk, in constant memory."""

import json
from typing import Any

import comfy.utils
from comfy.cli_args import args
from comfy_api.latest import InputImpl, io, ui

from ..headforcing_core.clock import pictures_of
from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.video import write_video
from . import folders, node_helpers, vae_decoding

CHUNK_FRAMES = 3


class DecodeLatentsToVideo(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HeadForcingDecodeVideo",
            display_name="Decode Latents to Video",
            category=node_helpers.CATEGORY,
            description=(
                "Decodes latents of any length with the Wan VAE, a few frames at a time, straight into an H.264 MP4 in "
                "the output folder. The result equals decoding everything at once; memory does not grow with length."
            ),
            inputs=[
                io.Latent.Input("samples", tooltip="Video latents, from Head Forcing Sampler or any Wan sampler."),
                io.Vae.Input("vae", tooltip="The Wan 2.1 VAE (or the demo model's)."),
                io.String.Input(
                    "filename_prefix",
                    default="video/HeadForcing",
                    tooltip="Name of the file under ComfyUI's output folder; a counter is added.",
                ),
                io.Float.Input("fps", default=16.0, min=1.0, max=120.0, step=1.0, tooltip="Wan 2.1 is made for 16."),
                node_helpers.advanced(
                    io.Int.Input(
                        "crf",
                        default=18,
                        min=0,
                        max=51,
                        optional=True,
                        tooltip="H.264 quality: 18 looks like the original, higher is smaller.",
                    )
                ),
                node_helpers.advanced(
                    io.Int.Input(
                        "upscale",
                        default=1,
                        min=1,
                        max=16,
                        optional=True,
                        tooltip="Repeat every pixel this many times, without smoothing: for the demo's 64 pixels.",
                    )
                ),
            ],
            outputs=[io.Video.Output(display_name="video", is_output_list=True)],
            hidden=[io.Hidden.prompt, io.Hidden.extra_pnginfo],
            is_output_node=True,
        )

    @classmethod
    def validate_inputs(cls, filename_prefix: str | None = None) -> bool | str:
        """Refuse a name outside the output folder when the graph is queued, not after the render."""
        try:
            if filename_prefix is not None:
                folders.output_path(filename_prefix, ".mp4", 16, 16)
        except HeadForcingError as error:
            return str(error)
        return True

    @classmethod
    def execute(
        cls, samples: dict[str, Any], vae: Any, filename_prefix: str, fps: float, crf: int = 18, upscale: int = 1
    ) -> io.NodeOutput:
        latents = samples["samples"]
        if latents.ndim != 5 or latents.shape[1] != 16:
            raise HeadForcingError(
                f"samples: expected Wan 2.1 video latents [videos, 16, frames, h, w], got {list(latents.shape)}"
            )
        trim = samples.get("head_forcing", {})
        # latents that were cut or joined since they were made still carry the mark, but it is not theirs any more
        wanted = trim.get("pictures") if trim.get("frames") == latents.shape[2] else None
        total = wanted or pictures_of(latents.shape[2])
        results, videos = [], []
        progress = comfy.utils.ProgressBar(total * len(latents))
        for number, video in enumerate(latents.transpose(1, 2)):
            path, file, subfolder = folders.output_path(
                filename_prefix, ".mp4", video.shape[-1] * 8, video.shape[-2] * 8
            )
            decoder = vae_decoding.streaming_decoder(vae, video.shape)

            def on_progress(done: int, before: int = number * total) -> None:
                progress.update_absolute(before + done)

            write_video(
                path,
                video.split(CHUNK_FRAMES),
                decoder,
                fps=fps,
                crf=crf,
                pictures=wanted,
                scale=upscale,
                metadata=cls._metadata(),
                on_progress=on_progress,
            )
            results.append(ui.SavedResult(file, subfolder, io.FolderType.output))
            videos.append(InputImpl.VideoFromFile(str(path)))
        return io.NodeOutput(videos, ui=ui.PreviewVideo(results))

    @classmethod
    def _metadata(cls) -> dict[str, str]:
        """The tags that let ComfyUI restore the graph when the video is dropped on it."""
        if args.disable_metadata:
            return {}
        tags = dict(cls.hidden.extra_pnginfo or {})
        if cls.hidden.prompt is not None:
            tags["prompt"] = cls.hidden.prompt
        return {key: json.dumps(value) for key, value in tags.items()}
