"""Run folders: finished blocks on disk."""
