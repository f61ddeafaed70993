"""Roles of attention heads: measurement, classification, files, comparison."""
