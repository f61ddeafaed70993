"""Comparisons of methods, the paper's tables, questions with intervals, and replay of recorded cases."""
