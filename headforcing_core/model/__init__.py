"""The Wan 2.1 DiT, its rotary position embedding and its attention backends."""
