"""The help texts of the command line: of its commands, and of options that mean the same in all commands."""

from __future__ import annotations

from ..names import ALL, ATTENTION_HELP, COMPARED_METHODS, DEFAULT_START_SECONDS, METRICS, bundled_profiles
from ..timeline.references import MAX_REFERENCES

COMMANDS = {
    "demo": "Render a one-minute, six-prompt video with the embedded toy model; no download.",
    "generate": "Render a video from Self Forcing weights (or a relative) and prompts.",
    "encode": "Write the embeddings of prompts, which `generate --embeddings` reads.",
    "decode": "Decode a stored run, finished or not, or latents of `generate --latents`, to an MP4.",
    "batch": "Render many videos, named in a file; the same command goes on where it stopped.",
    "inspect": "Describe a checkpoint or head profile, and the cache it needs.",
    "methods": "All methods, with their options and defaults for --set.",
    "budget": "Size of the 1.3B model's KV cache by method and length.",
    "memory": "What a minute of the 1.3B model takes, how it fits on a card; by estimate.",
    "convert": "Write one bf16 copy of a checkpoint as .safetensors with metadata.",
    "profile": "Measure what every attention head attends to and save a head profile.",
    "profiles": "Merge, compare, describe and plot head profiles.",
    "report": "Measure flicker, seams, drift, freezes and repetition of a video; not VBench.",
    "compare": "Render one timeline with several methods: videos side by side, one table.",
    "runs": "List, show and prune run folders.",
    "replay": "Run a recorded case again and write its latents (parity, bug reports).",
}

HELP = {
    "--aesthetic-head": "LAION's linear head, if not in the folder",
    "--attention": ATTENTION_HELP,
    "--blend-blocks": "blocks over which the text embedding is interpolated at a new prompt; tag: [blend 3]",
    "--compile": "compile the parts of layers that do not use the cache with torch.compile, in place of the fused "
    "kernels: compiles first and needs a C compiler; not yet tried on a GPU (off)",
    "--compression": "how episodic memory chooses the tokens of a merge: by the prompt, or trigonometric, by the query "
    "statistics of a measured head profile (prompt)",
    "--cuda-graph": "on CUDA: replay denoising passes as a CUDA graph while the cache's layout is the same; needs the "
    "memory of one more pass; not yet tried on a GPU (off)",
    "--decoder": "what the file of --vae is: wan, or one of the tiny decoders; auto goes by its tensors (auto)",
    "--device": "auto, cpu, cuda, mps (auto)",
    "--dtype": "compute dtype (bf16)",
    "--embeddings": "precomputed prompt embeddings instead of a text encoder",
    "--farm": "make videos at the same time with Ray: local starts it on this machine, auto finds the cluster that "
    "this machine belongs to, ray://HOST:PORT reaches another; all machines need the same files at the same paths",
    "--farm-gpus": "GPUs for each video, 0.5 for two videos on one; default: 1 if there are any",
    "--farm-workers": "with --farm local: videos at a time; default: one for each GPU, or core",
    "--follow": "like --prompts @FILE, and reads FILE again when it changes: prompts that have not begun take the new "
    "text; the story that was rendered is written beside the video, with the ending .story.txt",
    "--found-profiles": "folder for found profiles; default: in the user's cache",
    "--fp8-linears": "inexact: linear layers of all blocks in 8-bit floating point, which halves their memory; meant "
    "for GPUs that multiply it, not yet tried on one (off)",
    "--gpu-speeds": "with --gpus: how fast the GPUs are relative to each other, as 2,1; work is divided in proportion "
    "(equal)",
    "--gpus": "GPUs of this machine that make the video together, with the heads and their caches divided among them; "
    "not yet tried on GPUs (1)",
    "--lora": "LoRA to merge, such as LongLive's",
    "--methods": f"names, as of --method; {ALL}: every published one that the weights allow "
    f"({' '.join(COMPARED_METHODS)})",
    "--metric-device": "where they run: auto, cpu, cuda, mps (auto)",
    "--metric-models": "models of further metrics, see docs/metrics.md; nothing is downloaded (extra `metrics`)",
    "--metrics": f"which of them: {', '.join(METRICS)} (those that have their files in the folder)",
    "--model-family": "noise levels, block, profile; auto goes by what the weights file states, or by its name (auto)",
    "--num-heads": "only for models whose heads are not 128 wide",
    "--park-features": "on a GPU: what the VAE keeps of earlier frames waits in the host's memory while blocks are "
    "sampled (off)",
    "--profile": f"head profile: a file, {', '.join(bundled_profiles())}, or auto, which finds the roles in the first "
    "seconds and stores them for later runs; default: the bundled one that fits the model, else auto",
    "--rank-timeout": "with --gpus: a rank that does not answer the others for so long counts as dead, and all are "
    "started again (600)",
    "--re-anchor": "scene cut: a new prompt's first frames replace the anchor heads' first frames; tag: [re-anchor]",
    "--reference": "picture that scenes keep: hero=hero.png is held while the scene of a prompt with @hero lasts; may "
    f"be given up to {MAX_REFERENCES} times; needs --vae",
    "--rope-jitter": "change the rotary base of every head by up to this fraction, such as 0.8 (0: off)",
    "--rule": "roles from the profile's shares: quota (the paper's), function (memory heads are those that look at the "
    "middle most), auto (function where the quota misnames a head); default: as in the profile",
    "--runs": "folder for finished blocks; the same command resumes from them",
    "--set": "an option of the method, such as window_frames=12; may be given several times; `headforcing methods` "
    "lists all of them",
    "--shard-weights": "with --gpus: the weights, too, in equal shares on all GPUs, for models that do not fit on one "
    "(off)",
    "--shuffle": "with --roles shuffled: which shuffle (0)",
    "--sigmas": "noise levels, such as '1, 0.9375, 0.8333, 0.625'",
    "--sink-gate": "leave a sink or episodic frame out of a pass where more than this share of heads prefers it to "
    "recent frames, such as 0.8 (0: off)",
    "--size": "WIDTHxHEIGHT in pixels (832x480)",
    "--start-image": "image that the video begins with, for framewise models, LongLive 2.0 and Self Gradient Forcing; "
    "cropped around the middle and scaled to the size",
    "--start-latents": "latents of a video to continue",
    "--start-part": "which part of --start-video is taken (last)",
    "--start-seconds": f"how much of it is taken at most, in whole blocks ({DEFAULT_START_SECONDS:g})",
    "--start-video": "video of any size and frame rate to go on from, without sound",
    "--state-seconds": "seconds between two stored states of the cache in --runs; 0: never",
    "--switch": "what a new prompt does to the caches: reset nothing, recache writes the last blocks again under the "
    "new prompt, flush keeps only the first and the last two latent frames; a tag before a prompt, such as [flush], "
    "sets it for that prompt (reset)",
    "--text-encoder": "umT5-xxl encoder, ComfyUI's or the original file",
    "--theme": "of the plot (light)",
    "--vae": "Wan 2.1 VAE, or a tiny decoder for a fast draft; needed for a video",
    "--vae-device": "decode on this device, such as cuda:1, while the next block is sampled; default: on --device, in "
    "turn",
    "--weights": "checkpoint, .safetensors or .pt",
}
"""Of options that mean the same in every command that has them."""
