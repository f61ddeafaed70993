"""The paper's claims on real weights, with a verdict for each of its figures."""
