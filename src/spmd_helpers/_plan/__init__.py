"""Which mesh: every way to train a model on so many chips, in the order of its seconds.

Imports `_time`, `_training`, `_gpu`, `_tpu`, `_hardware`, `_hlo` and `_core`.
"""
