"""A function's compiled program, which is read and never run.

Imports `_findings`, `_player`, `_tpu`, `_hlo`, `_shardings` and `_core`.
"""
