"""The autoregressive rollout: block by block, schedules, noise."""
