"""Settings that a run of a recorded case may have; with another one, something else would be
rendered.
"""

from __future__ import annotations

from typing import Any

from ...headforcing_core.errors import HeadForcingError

OWN_FIELDS = ["initial_latent", "lora"]  # of every run of a case without a method of its own
COMMON_FIELDS = (  # of every run of a method whose noise all runs share
    "blocks cut_at_end_of_scene first_chunk frames frames_per_block initial_frames input_frames "
    "latent_width lora manual_recall_scene_ids per_block prompt_order prompt_schedule prompts "
    "repeat_noise steps switch transition_after_scene"
).split()
# of each method; window and head_forcing are those of cases without a method of their own
KNOWN_FIELDS = {
    "causal_forcing": "first_chunk frames input_frames per_block steps".split(),
    "causvid": "frames overlap rollouts steps warp".split(),
    "commit_forcing": (
        "authors_switch base cache_frames commit_frames commit_rule frames global_sink infinite "
        "prompt_order recency_bias recent_frames sink switch window"
    ).split(),
    "deep_forcing": (
        "budget_frames ds_only frames fusion local_attn_size recent_frames sink topc_max_reuse"
    ).split(),
    "dummy_forcing": "ar_start frames global_sink mid num_dummy sink switch window".split(),
    "echo_forcing": (
        "blocks compressed_frames drift_gate_lambda frames fusion manual_recall_scene_ids prompts "
        "recent_frames rolling_cycle sink_frames text topc_max_reuse transition_after_scene "
        "use_amplitude_compensation use_drift_gate window"
    ).split(),
    "forcing_kv": (
        "ar_start dynamic dynamic_len frames global_sink patches_per_frame ratio sink spatial "
        "split switch temporal window"
    ).split(),
    "head_forcing": (
        "anchor_frames episodic_frames fast_frames final_episodic_sources frames memory_events "
        "method neighbor_frames novelty_threshold prompt_schedule roles rope update_interval"
    ).split(),
    "id_forcing": (
        "base cache_frames frames frames_per_block local_attn_size native_chunks noise_tape_chunks "
        "prompt_order sink_size window_chunks"
    ).split(),
    "infinity_rope": "blocks cut_at_end_of_scene frames prompts sink text window".split(),
    "livetalk": "audio exact_timesteps frames grid image prompt sink window".split(),
    "longlive": "frames global_sink infinite prompt_order sink switch window".split(),
    "longlive2": (
        "block clean_recache frames given_frames grid guidance image independent_first_frame lora "
        "multi_shot_sink prefix prompts relative_rope rope_offset shot_starts sink steps t_scale "
        "window"
    ).split(),
    "memflow": "SMA bank frames global_sink interval sink switch window".split(),
    "memrope": (
        "compression ema_adaptive ema_alpha_long ema_alpha_short frames prompt_order sink window"
    ).split(),
    "swift": (
        "adaptive_prompt_window_enabled adaptive_prompt_window_min_size "
        "adaptive_prompt_window_tau_post adaptive_prompt_window_tau_pre frames global_sink "
        "prompt_order segment_anchor_enabled segment_anchor_max_segments "
        "segment_anchor_recent_frames segment_anchor_scale segment_anchor_semantic_mix "
        "semantic_bridge_decay semantic_bridge_enabled semantic_bridge_micro_recache_frames "
        "semantic_bridge_recent_frames semantic_bridge_scale semantic_bridge_tau_high "
        "semantic_bridge_tau_low sink switch window"
    ).split(),
    "tethercache": (
        "alpha budget_size frames initial_frames memory_size prompt_order recent_size "
        "score_temperature sink_size tau"
    ).split(),
    "pyramid_forcing": (
        "anchor_leftover_frame cyclic_period cyclic_places far_clamp frame_tokens frames "
        "input_frames labels latent_width mega merge_blocks merge_patch prompt_schedule "
        "recent_frames sink_frames stale_readout stride_interval stride_places"
    ).split(),
    "reward_forcing": "alpha frames initial_frames prompt_order sink window".split(),
    "rolling_forcing": "frames steps".split(),
    "rolling_sink": "frames initial_frames prompt_order repeat_noise sink window".split(),
    "window": "frames initial_latent method prompt_schedule rope sink_frames window_frames".split(),
}


# of a case: what its replay reads, and what describes it
CASE_FIELDS = (
    "cache_frames cache_states_last_layer cache_states_note context_noise denoising_steps_listed "
    "dim dtype facts facts_format facts_note ffn_dim frame_tokens frames frames_per_block freq_dim "
    "grammar_cases head_splits interactive labels latent_channels latent_height latent_width "
    "latents licence local_attn_size lora lora_alpha lora_rank made max_attention_frames "
    "merged_k_last_layer method model noise num_heads num_layers paper patch_size "
    "patched_constants prompt_names prompt_spread prompts recall_stop_words rope_cut_positions "
    "run_fields runs schedule scheduler seed shims sink_frames source tensors tensors_file "
    "text_cases text_dim text_len timestep_shift vae warp weights wrapped_weights "
    "audio_encoder audio_feature_size audio_hidden_size audio_layers audio_tensors "
    "audio_tensors_file in_dim out_dim packing wav2vec2 weight_values"
).split()
# settings that a replay does not follow, with the values that it renders; all other values are
# refused
FIXED_OF_CASES: dict[str, tuple[Any, ...]] = {
    "context_noise": (0, None),
    "dtype": ("float32", None),
}
FIXED_OF_RUNS: dict[str, dict[str, tuple[Any, ...]]] = {
    "deep_forcing": {"fusion": ("sum", None), "local_attn_size": (21,)},
    "echo_forcing": {"fusion": ("sum", "max"), "recent_frames": (3,)},
}


def check_fields(config: dict[str, Any], run: dict[str, Any]) -> None:
    """Refuse a run if it or its case has settings that its method's replay does not follow."""
    method = config.get("method")
    known = KNOWN_FIELDS.get(method or run["method"])
    if known is None:
        raise HeadForcingError(
            f"the case's method must be one of {', '.join(KNOWN_FIELDS)}, got "
            f"{method or run['method']!r}"
        )
    further = OWN_FIELDS if method is None else COMMON_FIELDS
    if method in ("longlive2", "causvid", "livetalk"):  # they have readers of their own
        further = ["lora"]
    unknown = sorted({*run}.difference(known, further) | {*config}.difference(CASE_FIELDS))
    if unknown:
        raise HeadForcingError(
            f"the run cannot be used: its replay does not know {', '.join(unknown)}"
        )
    _check_values(config, FIXED_OF_CASES)
    _check_values(run, FIXED_OF_RUNS.get(method or "", {}))


def _check_values(settings: dict[str, Any], fixed: dict[str, tuple[Any, ...]]) -> None:
    for name, values in fixed.items():
        if settings.get(name, values[0]) not in values:
            allowed = " or ".join(repr(value) for value in values if value is not None)
            raise HeadForcingError(
                f"the run cannot be used: {name} must be {allowed}, got {settings[name]!r}"
            )
