"""What looks like a mistake in a function that runs without an error.

Imports `_core`, `_shardings`, `_hlo` and `_jaxprs`.
"""
