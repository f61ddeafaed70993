"""A render on a MODEL of ComfyUI: its request, its rollout, and the file that grows meanwhile."""
