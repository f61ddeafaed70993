"""How the embedded model was trained; not installed."""
