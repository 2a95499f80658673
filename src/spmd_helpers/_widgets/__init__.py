"""The explorers and the calculator; their JavaScript is in js/.

Imports `_training`, `_matmul`, `_hardware`, `_shardings` and `_core`.
"""
