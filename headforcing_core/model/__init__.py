"""The Wan 2.1 diffusion transformer (DiT), its rotary position embedding and its attention
backends.
"""
