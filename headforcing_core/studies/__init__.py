"""Comparisons, the paper's tables, recorded cases."""
