"""GPUs that are not there: meshes of them, their compiler, and what does not fit.

Imports `_aot`, `_core`, `_hlo`, `_hardware` and `_runtime`.
"""
