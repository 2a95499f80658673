"""Figures of chapters, as data and as diagrams or players.

Schedules, groups, routes, reads; memory over a step, trees on devices, a reshape, a
ring.

Imports `_xray`, `_drawing`, `_player`, `_matmul`, `_training`, `_hlo`, `_shardings`,
`_hardware`, `_runtime` and `_core`.
"""
