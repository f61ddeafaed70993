"""The models of the metrics, read from files in a folder that the user names; nothing is
downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...headforcing_core.errors import HeadForcingError, one_line
from .base import ModelFile

Flow = Callable[[Tensor, Tensor], Tensor]
"""From two images `[1, 3, H, W]`, values 0-255, sides divisible by 8, to the flow between them in
pixels.
"""

RAFT_UPDATES = 20  # VBench's; torchvision's default is 12
Statistics = tuple[tuple[float, ...], tuple[float, ...]]
IMAGENET: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP: Statistics = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


def _list_files(name: str, *files: str) -> tuple[ModelFile, ...]:
    """The files of a published model, in the folder of its name: configuration, weights and
    others.
    """
    folder = name.split("/")[1]
    source = f"https://huggingface.co/{name}"
    found = [
        ModelFile((f"{folder}/config.json",), source),
        ModelFile((f"{folder}/model.safetensors", f"{folder}/pytorch_model.bin"), source),
    ]
    found += [ModelFile((f"{folder}/{file}",), source) for file in files]
    return tuple(found)


DINO = _list_files("facebook/dino-vitb16")
CLIP_BASE = _list_files("openai/clip-vit-base-patch32")
CLIP_BASE_TEXT = _list_files("openai/clip-vit-base-patch32", "vocab.json", "merges.txt")
CLIP_LARGE = _list_files("openai/clip-vit-large-patch14")
AESTHETIC_HEAD = ModelFile(
    ("sa_0_4_vit_l_14_linear.pth",), "https://github.com/LAION-AI/aesthetic-predictor"
)
RAFT = ModelFile(
    ("raft_large_C_T_V1-22a6c225.pth",), "https://pytorch.org/vision/stable/models/raft.html"
)


def prepared(
    video_frames: Tensor, side: int, mode: str, statistics: Statistics, square: bool = False
) -> Tensor:
    """Pixels `[n, 3, h, w]` as VBench makes them of video frames `[n, H, W, 3]` uint8: the shorter
    side is resized to `side`, the middle is cut out if they are to be `square`, and every channel
    has the `statistics`."""
    pixels = video_frames.permute(0, 3, 1, 2).float()
    short = min(pixels.shape[-2:])
    size = [int(side * length / short) for length in pixels.shape[-2:]]
    pixels = functional.interpolate(pixels, size=size, mode=mode, align_corners=False) / 255
    if square:
        top = round((size[0] - side) / 2)
        left = round((size[1] - side) / 2)
        pixels = pixels[..., top : top + side, left : left + side]
    mean, deviation = torch.tensor(statistics, device=pixels.device)[..., None, None]
    return (pixels - mean) / deviation


class ImageEncoder:
    """Unit vectors of video frames, `[n, d]` float32 on the CPU, from a function that `encode`s
    `[n, H, W, 3]` uint8.

    The last batch is kept, so that two metrics with the same model run it once.
    """

    def __init__(self, encode: Callable[[Tensor], Tensor], device: torch.device | str = "cpu"):
        self._encode = encode
        self.device = torch.device(device)
        self._last: tuple[Tensor, Tensor] | None = None

    def __call__(self, video_frames: Tensor) -> Tensor:
        if self._last is None or self._last[0] is not video_frames:
            features = self._encode(video_frames.to(self.device))
            self._last = video_frames, functional.normalize(features.float(), dim=-1).cpu()
        return self._last[1]


@dataclass(frozen=True)
class Clip:
    """CLIP's encoders of images and of texts, whose first 77 tokens count, to unit vectors `[n,
    width]` on the CPU.
    """

    images: ImageEncoder
    texts: Callable[[list[str]], Tensor]
    width: int


class Models:
    """The models in a folder, each read once, when a metric asks for it; they run in float32.

    The folder has a folder for each published model, such as `dino-vitb16`, and the other files;
    `aesthetic_head` is the file of that head where it is not there.
    """

    def __init__(
        self, folder: Path, device: torch.device | str = "cpu", aesthetic_head: Path | None = None
    ):
        self.folder = Path(folder)
        self.device = torch.device(device)
        self._head = aesthetic_head

    def file(self, needed: ModelFile) -> Path:
        """The place of a file, which need not be there."""
        if needed is AESTHETIC_HEAD and self._head is not None:
            return self._head
        found = [self.folder / path for path in needed.paths]
        return next((path for path in found if path.is_file()), found[0])

    def find(self, needed: ModelFile) -> Path:
        """The place of a file; raises HeadForcingError where it is not there."""
        path = self.file(needed)
        if not path.is_file():
            raise HeadForcingError(
                f"{path} was not found: take {needed.paths[0]} from {needed.source}"
            )
        return path

    @cached_property
    def dino(self) -> ImageEncoder:
        """DINO's class token; frames keep their shape, so position embeddings are interpolated."""
        model = self._transformer("ViTModel", DINO, add_pooling_layer=False)
        side = int(model.config.image_size)

        def encode(video_frames: Tensor) -> Tensor:
            pixels = prepared(video_frames, side, "bilinear", IMAGENET)
            return model(pixel_values=pixels, interpolate_pos_encoding=True).last_hidden_state[:, 0]

        return ImageEncoder(encode, self.device)

    @cached_property
    def clip_base(self) -> Clip:
        """CLIP ViT-B/32."""
        return self._clip(CLIP_BASE)

    @cached_property
    def clip_large(self) -> Clip:
        """CLIP ViT-L/14."""
        return self._clip(CLIP_LARGE)

    def _clip(self, needed: tuple[ModelFile, ...]) -> Clip:
        model = self._transformer("CLIPModel", needed)
        side = int(model.config.vision_config.image_size)
        folder = self.file(needed[0]).parent

        def encode(video_frames: Tensor) -> Tensor:
            pixels = prepared(video_frames, side, "bicubic", CLIP, square=True)
            return model.visual_projection(model.vision_model(pixel_values=pixels).pooler_output)

        def texts(prompts: list[str]) -> Tensor:
            transformers = import_package("transformers")
            with _readable(folder.name, CLIP_BASE_TEXT[-1]):
                tokenizer = transformers.CLIPTokenizer.from_pretrained(
                    folder, local_files_only=True
                )
            most = model.config.text_config.max_position_embeddings
            tokens = tokenizer(
                prompts, padding=True, truncation=True, max_length=most, return_tensors="pt"
            )
            with torch.inference_mode():
                found = model.text_model(**tokens.to(model.device))
                return functional.normalize(
                    model.text_projection(found.pooler_output).float(), dim=-1
                ).cpu()

        return Clip(ImageEncoder(encode, self.device), texts, int(model.config.projection_dim))

    @cached_property
    def aesthetic_head(self) -> nn.Linear:
        """The linear layer from `clip_large`'s image features to a score of 0 to 10, on the CPU."""
        path, weights = self._state(AESTHETIC_HEAD)
        width = self.clip_large.width
        shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        if shapes != {"weight": (1, width), "bias": (1,)}:
            raise HeadForcingError(
                f"{path.name} is not a linear head for {width} features: take that for ViT-L/14 "
                f"from {AESTHETIC_HEAD.source}"
            )
        head = nn.Linear(width, 1)
        head.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
        return head.eval()

    @cached_property
    def flow(self) -> Flow:
        """RAFT as its authors published it, in torchvision's layout."""
        raft = import_package("torchvision.models.optical_flow")
        path, weights = self._state(RAFT)
        model = raft.raft_large(weights=None)
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            raise HeadForcingError(
                f"{path.name} is not RAFT (large): take it from {RAFT.source}"
            ) from error
        model = model.eval().to(self.device)

        def flow(before: Tensor, after: Tensor) -> Tensor:
            images = [image.to(self.device).float() / 127.5 - 1 for image in (before, after)]
            return model(*images, num_flow_updates=RAFT_UPDATES)[-1]

        return flow

    def _transformer(self, kind: str, needed: tuple[ModelFile, ...], **options: Any) -> Any:
        """A model of the package transformers from its folder."""
        transformers = import_package("transformers")
        folder = [self.find(file) for file in needed][0].parent
        with _quiet(transformers), _readable(folder.name, needed[0]):
            model, about = getattr(transformers, kind).from_pretrained(
                folder, local_files_only=True, output_loading_info=True, **options
            )
        wrong = sorted(map(str, [*about["missing_keys"], *about["mismatched_keys"]]))
        if wrong:  # which it would have filled with random numbers
            raise HeadForcingError(
                f"{folder.name} lacks {wrong[0]} by its config.json: take all files from "
                f"{needed[0].source}"
            )
        return model.eval().float().to(self.device)  # CLIP is stored in float16 by some

    def _state(self, needed: ModelFile) -> tuple[Path, dict[str, Tensor]]:
        """The tensors of a PyTorch file by name."""
        path = self.find(needed)
        with _readable(path.name, needed):
            weights = torch.load(path, map_location="cpu", weights_only=True)
            if isinstance(weights, dict) and all(
                isinstance(value, Tensor) for value in weights.values()
            ):
                return path, weights
        raise HeadForcingError(f"{path.name} holds no weights: take it from {needed.source}")


def import_package(name: str) -> ModuleType:
    """Import a package that only these metrics need; raises HeadForcingError if it cannot be
    imported.
    """
    try:
        return import_module(name)
    except (
        ImportError,
        RuntimeError,
    ) as error:  # RuntimeError: a torchvision that belongs to another torch
        package = name.split(".")[0]
        raise HeadForcingError(
            f"these metrics need the package {package}, which cannot be imported "
            f"({one_line(error, 200)}): run `pip install {package}`"
        ) from error


@contextmanager
def _readable(name: str, needed: ModelFile) -> Iterator[None]:
    """Turn any error of reading a damaged file into a sentence."""
    try:
        yield
    except HeadForcingError:
        raise
    except Exception as error:  # of four packages, each with exceptions of its own
        raise HeadForcingError(
            f"{name} cannot be read ({one_line(error, 200)}): take it again from {needed.source}"
        ) from error


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Silence lists of weights that are not used, and progress bars; what is missing is checked
    afterwards.
    """
    logging = transformers.utils.logging
    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
