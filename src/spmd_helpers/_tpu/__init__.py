"""TPUs that are not there: meshes of them, their compiler, and what it refuses.

Imports `_aot`, `_core`, `_hlo`, `_hardware` and `_runtime`.
"""
