"""Makers of the recorded cases in `tests/golden`."""
