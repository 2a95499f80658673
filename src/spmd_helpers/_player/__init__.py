"""Figures that play: any frames, and a collective with who sends what in each hop.

Imports `_hlo`, `_shardings` and `_core`.
"""
