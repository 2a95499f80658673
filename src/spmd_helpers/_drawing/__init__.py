"""Drawings of arrays and meshes: what they say, where it stands, as SVG.

Imports `_core` and `_shardings`.
"""
