"""A product of two cut matrices: the rule, and its words.

Imports `_core` and `_shardings`.
"""
