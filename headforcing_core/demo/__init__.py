"""The embedded toy model: a tiny trained Wan model that runs through the same engine as real
weights.
"""
