"""What JAX made of a function: compiled, never run, and read.

Imports `_findings`, `_tpu`, `_hlo`, `_shardings` and `_core`.
"""
