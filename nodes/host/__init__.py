"""What touches ComfyUI and is no node."""
