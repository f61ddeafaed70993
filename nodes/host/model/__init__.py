"""MODELs and VAEs of ComfyUI: what is in them, and the memory that they leave."""
