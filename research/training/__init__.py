"""Training of the embedded model."""
