"""The laboratory beside the product: training, measurements, and claims; not installed."""
