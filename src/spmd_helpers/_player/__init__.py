"""A collective as a figure that plays: who sends what in each hop, and its drawing.

Imports `_hlo`, `_shardings` and `_core`.
"""
