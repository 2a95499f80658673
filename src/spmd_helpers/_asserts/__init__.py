"""Asserts about arrays and about compiled programs, in a reader's words.

Imports `_xray`, `_hlo`, `_shardings` and `_core`.
"""
