"""The explorers, the calculator and the planner; their JavaScript is in js/.

Imports `_plan`, `_time`, `_training`, `_matmul`, `_gpu`, `_tpu`, `_hardware`,
`_shardings` and `_core`.
"""
