"""How fast the engine is, beside the implementation the paper describes. `run.py` is the
command.
"""
