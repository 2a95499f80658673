"""What a training step needs, by arithmetic: models, state, activations, the table.

Imports `_core`, `_shardings` and `_hardware`.
"""
