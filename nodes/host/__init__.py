"""Everything that uses ComfyUI's modules, except the nodes themselves."""
