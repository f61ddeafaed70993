"""Metrics of videos with the published models of others, after VBench and ID-Forcing."""
