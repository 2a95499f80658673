"""Figures of chapters: schedules, groups, routes and reads, as data and as diagrams.

Imports `_drawing`, `_player`, `_matmul`, `_hlo`, `_shardings` and `_core`.
"""
