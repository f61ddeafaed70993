"""The embedded toy world: a tiny trained model that runs through exactly the engine the real weights use."""
