"""How long a compiled program takes: its schedule, priced by sustained rates.

Imports `_xray`, `_drawing`, `_hlo`, `_hardware` and `_core`.
"""
