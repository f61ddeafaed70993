"""Training of the embedded toy model; not installed."""
