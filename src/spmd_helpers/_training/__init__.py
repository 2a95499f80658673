"""What a training step or inference needs, by arithmetic: models, state, the table.

Imports `_core`, `_shardings` and `_hardware`.
"""
