"""What a tree of arrays holds on every device.

Imports `_core` and `_shardings`.
"""
