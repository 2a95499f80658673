"""Chips with their sources, and what was measured, dated.

Imports `_core`.
"""
