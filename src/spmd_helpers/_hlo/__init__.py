"""The text of a compiled program: parsed, its collectives, its work, who does what.

Imports `_core`, and no JAX.
"""
