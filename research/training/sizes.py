"""Sizes of the embedded model's videos."""

BLOCK_FRAMES = 3  # latent frames of a block
SPATIAL_FACTOR = 8  # pixels beside one another in a latent pixel
