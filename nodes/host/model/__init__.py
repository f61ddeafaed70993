"""MODELs and VAEs of ComfyUI: what is in them, how they run a rollout, and how a render decodes."""
