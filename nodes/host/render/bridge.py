"""Run a rollout on a native MODEL of ComfyUI.

A rollout runs on whatever MODEL ComfyUI loaded, with its LoRA, quantisation and offloading in
place: a wrapper around the diffusion model's forward passes each call to `forward_block` while our
sampler runs, and does nothing otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import comfy.ldm.modules.attention
import comfy.samplers
import torch
from comfy.cli_args import args as command_line
from comfy.patcher_extension import WrappersMP
from torch import Tensor

from ....headforcing_core.cache.shape import Shape
from ....headforcing_core.devices import upload
from ....headforcing_core.errors import HeadForcingError
from ....headforcing_core.files import Fields
from ....headforcing_core.model.attention import AttentionFunction, attention_function, sdpa
from ....headforcing_core.model.wan import KeyValueCache, PromptKV, encode_prompt, forward_block
from ....headforcing_core.rollout.conditions import PassInputs, VideoConditions
from ....headforcing_core.rollout.schedule import Schedule
from ..model.loaded_model import audio_of, condition_modules
from ..model.memory import load_with_room
from ..model.model_contents import KEY, guiding, used_options, used_wrappers

Result = TypeVar("Result")
_ATTENTION_CHOICES = ("split_cross", "quad_cross", "pytorch_cross", "sage", "flash")


@dataclass(eq=False)
class HostAttention:
    """ComfyUI's attention: the kernel that the user chose, or an override among the `options` of
    the current pass.
    """

    options: Fields

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """`q [heads, queries, d], k, v [heads, keys, d]` -> `[heads, queries, d]`."""
        heads = {"heads": len(q), "skip_reshape": True, "skip_output_reshape": True}
        return _kernel()(q[None], k[None], v[None], **heads, transformer_options=self.options)[0]

    @property
    def name(self) -> str:
        """Its name in reports."""
        override = " overridden by a node" if "optimized_attention_override" in self.options else ""
        return f"ComfyUI's {_kernel().__name__}{override}"

    def or_better(
        self, dtype: torch.dtype, device: torch.device, shape: Shape
    ) -> AttentionFunction:
        """The backend that was fastest at the sizes of the render's cache, if the user chose none;
        else this.

        PyTorch's own is called as ComfyUI does it where nothing was timed, as on a CPU.
        """
        if _attention_chosen() or "optimized_attention_override" in self.options:
            return self
        found = attention_function(
            "auto", device, dtype, head_dim=shape.head_dim, sizes=shape.layer_sizes
        )
        return self if found is sdpa else found


def _attention_chosen() -> bool:
    """Whether ComfyUI was started with a kernel of the user's choice."""
    return any(getattr(command_line, f"use_{name}_attention", False) for name in _ATTENTION_CHOICES)


def _kernel() -> Callable[..., Tensor]:
    """The kernel that the user chose, else PyTorch's: ComfyUI may fall back to one from before
    PyTorch had its own.
    """
    kernels = comfy.ldm.modules.attention
    return kernels.optimized_attention if _attention_chosen() else kernels.attention_pytorch


@dataclass(eq=False)
class HostedModel:
    """A `VideoModel` that calls ComfyUI's denoiser. Kept in a class instance because ComfyUI copies
    nested dicts.
    """

    denoiser: Callable[..., Tensor]
    extra_args: Fields
    device: torch.device
    backbone: Any = None  # known from the first forward pass on
    # puts the weights back when another model has run in between, with so many bytes free
    reload: Callable[..., Any] = lambda memory: None
    model: Any = None  # the MODEL, for its audio tensors
    _embedding: Tensor | None = None  # of the active prompt, until it is encoded
    _pass_inputs: PassInputs | None = None

    def __post_init__(self) -> None:
        # a separate object, because caches refer to it and must not refer to the model, which
        # refers to them
        options = self.extra_args["model_options"].get("transformer_options", {})
        self.attention = HostAttention(options)
        self._prompt: PromptKV

    @property
    def prompt(self) -> PromptKV:
        if self._embedding is not None:  # no pass has been made with it
            self._call(torch.zeros(self._size), 0.0, cache=None, write_only=True)
        return self._prompt

    def use_prompt(self, embedding: Tensor) -> None:
        # encoded in the next forward pass, when ComfyUI has loaded the weights
        self._embedding = embedding

    def use_conditions(self, conditions: VideoConditions) -> None:
        self._pass_inputs = conditions.inputs(condition_modules(self.model, self.device))

    def denoise(self, latents: Tensor, sigma: float | Tensor, cache: KeyValueCache) -> Tensor:
        return self._call(latents, sigma, cache, write_only=False)

    def write_clean(self, latents: Tensor, cache: KeyValueCache) -> None:
        self._call(latents, 0.0, cache, write_only=not cache.reads_queries)

    def _call(
        self, latents: Tensor, sigma: float | Tensor, cache: KeyValueCache | None, write_only: bool
    ) -> Tensor:
        """A pass; without a cache it ends when the prompt is encoded."""
        self._size = latents.shape
        if not isinstance(sigma, Tensor):
            sigma = torch.full((len(latents),), sigma, dtype=torch.float64)
        self._cache: Any = cache
        self._sigmas = sigma
        self._write_only = write_only
        self._ran = False
        options = used_options(self.extra_args["model_options"])
        # set for each call: a lasting reference cycle would keep gigabytes of cache until Python's
        # next gc
        options["transformer_options"][KEY] = self
        x = latents.transpose(0, 1)[None].to(self.device)
        arguments = {**self.extra_args, "model_options": options}
        return self.denoiser(x, x.new_full((1,), float(sigma.max())), **arguments)[0].transpose(
            0, 1
        )

    def forward(self, net: Any, x: Tensor, options: Fields) -> Tensor:
        """Replaces the diffusion model's forward: `x [1, channels, frames, h, w]` -> flow, same
        shape. What a model reads in more channels than it makes is none of `x`.
        """
        self.attention.options = {name: value for name, value in options.items() if name != KEY}
        if len(x) != 1 or self._ran:  # with guidance, both prompts are in one pass or in two
            nodes = guiding(self.extra_args["model_options"])
            remedy = f"; remove {' and '.join(nodes)} from the model" if nodes else ""
            raise HeadForcingError(
                "Head Forcing runs without guidance: cfg must be 1 and there is no negative "
                f"prompt{remedy}"
            )
        self._ran = True
        if self._embedding is not None:
            self._prompt = encode_prompt(net, self._embedding, x.dtype, x.device)
            self._embedding = None
        if self._cache is None:
            return torch.zeros_like(x)
        latents = x[0].transpose(0, 1)
        self.backbone = net
        timesteps = 1000 * self._sigmas
        inputs = None
        if self._pass_inputs is not None:
            inputs = self._pass_inputs.of(self._cache.first_frame, latents)
        flow = forward_block(
            net,
            latents,
            timesteps,
            self.prompt,
            cache=self._cache,
            write_only=self._write_only,
            inputs=inputs,
        )
        if flow is None:
            return torch.zeros_like(x)
        highest = self._sigmas.max()
        # ComfyUI takes the highest level times the flow off every frame
        if self._sigmas.min() < highest:
            flow = (
                flow.float()
                * upload((self._sigmas / highest).float(), flow.device)[:, None, None, None]
            )
        return flow.transpose(0, 1)[None]


def _diffusion_model_wrapper(
    executor: Any, x: Tensor, timestep: Tensor, context: Any, *args: Any, **kwargs: Any
) -> Any:
    for options in (kwargs.get("transformer_options"), *args):
        if isinstance(options, dict) and KEY in options:
            return options[KEY].forward(executor.class_obj, x, options)
    return executor(x, timestep, context, *args, **kwargs)


def _own_channels(
    executor: Any, x: Tensor, timestep: Tensor, context: Any, *args: Any, **kwargs: Any
) -> Any:
    """Around ComfyUI's `apply_model`, which joins zeros to latents where a model reads more
    channels: the rollout joins what belongs there.
    """
    return executor(x, timestep, None, *args, **kwargs)


def hosting(model: Any, prepare: Callable[..., Any]) -> Any:
    """A clone of a MODEL on which a `HostedModel` can run; `prepare` wraps ComfyUI's
    `prepare_sampling`.
    """
    patched = model.clone()
    wrappers = {
        WrappersMP.DIFFUSION_MODEL: _diffusion_model_wrapper,
        WrappersMP.PREPARE_SAMPLING: prepare,
    }
    if audio_of(model):
        wrappers[WrappersMP.APPLY_MODEL] = _own_channels
    for kind, wrapper in wrappers.items():
        patched.remove_wrappers_with_key(kind, KEY)
        patched.add_wrapper_with_key(kind, KEY, wrapper)
    # of MultiGPU CFG Split: without guidance there is nothing to split, and ComfyUI would load
    # everything once more
    patched.remove_additional_models("multigpu")
    return patched


def is_hosting(model: Any) -> bool:
    """Whether a `HostedModel` can run on a MODEL."""
    return bool(model.get_wrappers(WrappersMP.DIFFUSION_MODEL, KEY))


def host(
    model: Any,
    embedding: Tensor,
    schedule: Schedule,
    block_shape: Sequence[int],
    memory: int,
    body: Callable[[HostedModel, torch.device], Result],
    also: Sequence[Any] = (),
) -> Result:
    """The result of `body`, run inside ComfyUI's sampling, with the weights loaded and extra memory
    reserved.

    Args:
        embedding: of the first prompt, `[tokens, text_dim]`; ComfyUI asks for one.
        memory: bytes that are needed besides the weights.
        also: patchers of other models that `body` needs at the same time.
        body: gets the hosted model and its device. ComfyUI gets one block of zeros back, since it
            would copy the latents of a whole video several times on the GPU.
    """

    loads: list[Callable[[], Any]] = []
    results: list[Result] = []

    def sampler_function(
        denoiser: Any, x: Tensor, sigmas: Tensor, extra_args: Any, **_: Any
    ) -> Tensor:
        hosted = HostedModel(denoiser, extra_args, x.device, reload=loads[-1], model=model)
        results.append(body(hosted, x.device))
        return x

    def prepare(executor: Any, patcher: Any, noise_shape: Any, *args: Any, **kwargs: Any) -> Any:
        loads.append(
            partial(load_with_room, executor, patcher, noise_shape, *args, memory=memory, **kwargs)
        )
        return loads[-1]()

    patched = hosting(model, prepare)
    patched.model_options = used_options(patched.model_options)
    patched.wrappers = used_wrappers(patched.wrappers)
    # loaded together, so that neither unloads the other
    patched.set_additional_models(KEY, list(also))
    guider = comfy.samplers.CFGGuider(patched)
    guider.inner_set_conds({"positive": [[embedding[None], {"pooled_output": None}]]})
    guider.set_cfg(1.0)
    frames, channels, height, width = block_shape
    one_block = torch.zeros((1, channels, frames, height, width))
    sigmas = torch.tensor([*schedule.sigmas, 0.0])
    sampler = comfy.samplers.KSAMPLER(sampler_function)
    try:
        guider.sample(one_block, one_block, sampler, sigmas, disable_pbar=True, seed=0)
    finally:
        loads.clear()  # else a cycle of references
    return results[0]
