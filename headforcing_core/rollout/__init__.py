"""The autoregressive rollout: the block loop, noise levels, noise."""
