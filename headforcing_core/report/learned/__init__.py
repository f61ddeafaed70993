"""Metrics of finished videos that need the weights of other models; the extra `metrics` installs their packages."""
