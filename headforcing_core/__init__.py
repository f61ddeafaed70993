"""Head Forcing, the engine: pure PyTorch, usable from Python and from the command line, never imports ComfyUI."""
