"""Roles of attention heads: measured, classified, stored."""
