"""One array over devices: the record, what JAX's objects say of it, the cuts of a spec.

Imports `_core`. Nothing here imports JAX: its objects are read.
"""
