"""TPUs that are not there: meshes of them, their compiler, and what it refuses.

Imports `_core`, `_hlo` and `_hardware`.
"""
