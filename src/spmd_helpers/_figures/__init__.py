"""Figures of chapters, as data and as diagrams or players.

Schedules, groups, routes, reads; memory over a step, trees on devices, a reshape, a
ring; a batch of images, a TPU's links.

Imports `_xray`, `_drawing`, `_player`, `_matmul`, `_training`, `_tpu`, `_hlo`,
`_shardings`, `_hardware`, `_runtime` and `_core`.
"""
