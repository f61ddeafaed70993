"""Recorded cases, read and run again."""
