"""What JAX made of a function: compiled, never run, and read.

Imports what is below: `_findings`, `_tpu`, `_hlo`, `_shardings`, `_core`.
"""
