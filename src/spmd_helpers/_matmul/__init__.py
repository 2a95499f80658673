"""A product of two sharded matrices: the rule, one device through it, and its words.

Imports `_core`, `_hlo` and `_shardings`.
"""
