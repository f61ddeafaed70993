"""Plots of head profiles and drift reports; the only folder that imports matplotlib."""
